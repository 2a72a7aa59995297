"""Atomic writes: a file or directory is either complete on disk or absent."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from torch import Tensor

STAGED = ".sixfold-aside."  # prefix of staged files and directories: not yet, or no longer, under their final path
_OLD = ".old"  # suffix of a directory that is being replaced


def write_text(path: Path, text: str) -> None:
    """Replace the file `path` by a text, in one rename."""
    with StagedFiles(path.parent) as aside:
        aside.write(path.name, lambda staged: staged.write_text(text, encoding="utf-8"))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to an OSError that names no file: "no space left on device" alone does not say where."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def save_tensors(tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file; a failing disk raises OSError, as for every other file."""
    import safetensors.torch

    try:
        safetensors.torch.save_file(dict(tensors), path, None if about is None else dict(about))
    except safetensors.SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from None


class StagedFiles:
    """Files that are written to a staging directory, synced, and renamed to their final paths: all of them, or none.

    Some writers create temporary files of their own (safetensors does). In a staging directory, all that a killed
    process leaves is together, and `sweep` finds it.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._written: list[str] = []

    def __enter__(self) -> Self:
        # The dash tells it apart from the staging directory of a new directory called "files".
        self._aside = Path(tempfile.mkdtemp(dir=self.directory, prefix=f"{STAGED}files-"))
        return self

    def write(self, name: str, write: Callable[[Path], Any]) -> None:
        with naming(self.directory / name):
            write(self._aside / name)
            sync(self._aside / name)
        self._written.append(name)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            for name in self._written if failed is None else ():
                (self._aside / name).chmod(0o666 & ~_umask())
                (self._aside / name).replace(self.directory / name)
        finally:
            shutil.rmtree(self._aside, ignore_errors=True)


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yield a staging directory to fill; once all in it is on disk, it replaces `directory` in one rename.

    A symbolic link stays, and its target is replaced. If this fails, neither the new directory nor any new parent of it
    is left.
    """
    directory = _behind_link(directory)
    with _parents(directory), _held_aside(directory) as aside:
        with naming(directory):
            yield aside
            for path in [*aside.rglob("*"), aside]:
                sync(path)
        aside.chmod(0o777 & ~_umask())
        _put(aside, directory)


def _behind_link(path: Path) -> Path:
    return Path(os.path.realpath(path)) if path.is_symlink() else path  # `resolve` fails at a loop of links


@contextmanager
def _parents(directory: Path) -> Iterator[None]:
    """Create missing parent directories; remove them again on failure."""
    missing = [parent for parent in directory.parents if not parent.exists()]
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # another process may have put files there
            for parent in missing:
                parent.rmdir()
        raise


@contextmanager
def _held_aside(directory: Path) -> Iterator[Path]:
    """A new staging directory beside `directory`; it is removed on failure.

    It is locked meanwhile. The kernel releases the lock when its holder ends, and `sweep_beside` checks it.
    """
    aside = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f"{STAGED}{directory.name}."))
    handle = os.open(aside, os.O_RDONLY)
    try:
        with suppress(OSError):  # where directories can't be locked, `_abandoned` is never true either
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield aside
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _put(aside: Path, directory: Path) -> None:
    """Rename `aside` to `directory`. An older directory there is removed afterwards, or put back if this fails."""
    old = aside.with_name(f"{aside.name}{_OLD}")
    if directory.exists():
        directory.rename(old)
    try:
        aside.rename(directory)
    except OSError:
        if old.exists():
            old.rename(directory)
        raise
    sync(directory.parent)
    with suppress(OSError):
        _remove(old)


def remove_directory(directory: Path) -> None:
    """Rename a directory away, so that no reader sees half of it; then delete it."""
    gone = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f"{STAGED}{directory.name}."))
    directory.rename(gone / directory.name)  # into it, so that a file or a link is removed, too
    shutil.rmtree(gone)


def sweep(directory: Path) -> None:
    """Remove the staged files of killed writers. The caller must hold the lock of the directory.

    A directory whose replacement never arrived gets its name back.
    """
    _clear([*directory.glob(f"{STAGED}*")])


def sweep_beside(directory: Path) -> None:
    """The same for one `new_directory`, without a lock on its parent: staging directories in use stay."""
    directory = _behind_link(directory)
    _clear([path for path in directory.parent.glob(f"{STAGED}{glob.escape(directory.name)}.*") if _abandoned(path)])


def _abandoned(aside: Path) -> bool:
    """Whether no process holds the lock of this staging directory (or, for NAME.old, of the one that replaces it)."""
    try:
        handle = os.open(aside.with_name(aside.name.removesuffix(_OLD)), os.O_RDONLY)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _clear(lefts: Sequence[Path]) -> None:
    for old in (left for left in lefts if left.name.endswith(_OLD)):
        original = old.with_name(old.name.removeprefix(STAGED).removesuffix(_OLD).rpartition(".")[0])
        if not original.exists():
            old.rename(original)
    for left in lefts:
        _remove(left)


def _remove(path: Path) -> None:
    """Delete a directory, or any other file: `rmtree` alone would wait for a named pipe."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the listing of a directory, is on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe is an error, not a wait
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
