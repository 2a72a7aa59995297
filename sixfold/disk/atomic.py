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

STAGED = ".sixfold-aside."  # prefix of staging directories: they hold new files, or old ones that are being removed
_OLD = ".old"  # suffix of a directory that is being replaced


def write_text(path: Path, text: str) -> None:
    """Write a text to the file `path`. An older file there is replaced in one rename."""
    with StagedFiles(path.parent) as staging:
        staging.write(path.name, lambda staged: staged.write_text(text, encoding="utf-8"))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """If the body raises an OSError that names no file, such as "no space left on device", add this path to it."""
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

    Some writers, such as safetensors, create temporary files beside the file they write. They do so in the staging
    directory, so that `sweep` finds all files of a killed process there.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._written: list[str] = []

    def __enter__(self) -> Self:
        # Not "files.": that would be the prefix for a `new_directory` called "files".
        self._staging = Path(tempfile.mkdtemp(dir=self.directory, prefix=f"{STAGED}files-"))
        return self

    def write(self, name: str, write: Callable[[Path], Any]) -> None:
        with naming(self.directory / name):
            write(self._staging / name)
            sync(self._staging / name)
        self._written.append(name)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            for name in self._written if failed is None else ():
                (self._staging / name).chmod(0o666 & ~_umask())
                (self._staging / name).replace(self.directory / name)
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yield a staging directory to fill. Afterwards its files are synced, and it replaces `directory` in one rename.

    If `directory` is a symbolic link, its target is replaced. On failure, the staging directory is removed, and so are
    the parent directories that were created for it.
    """
    directory = _behind_link(directory)
    with _parents(directory), _locked_staging(directory) as staging:
        with naming(directory):
            yield staging
            for path in [*staging.rglob("*"), staging]:
                sync(path)
        staging.chmod(0o777 & ~_umask())
        _replace(directory, staging)


def _behind_link(path: Path) -> Path:
    return Path(os.path.realpath(path)) if path.is_symlink() else path  # Path.resolve raises at links in a circle


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
def _locked_staging(directory: Path) -> Iterator[Path]:
    """A new staging directory beside `directory`, locked by this process; it is removed on failure.

    When this process ends, however it ends, the kernel releases the lock. `sweep_beside` then knows that the staging
    directory is abandoned.
    """
    staging = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f"{STAGED}{directory.name}."))
    handle = os.open(staging, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no such locks; `_abandoned` is always False there
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield staging
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _replace(directory: Path, staging: Path) -> None:
    """Rename `staging` to `directory`. An older directory there is removed afterwards, or put back if this fails."""
    old = staging.with_name(f"{staging.name}{_OLD}")
    if directory.exists():
        directory.rename(old)
    try:
        staging.rename(directory)
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
    directory.rename(gone / directory.name)  # inside `gone`, rmtree removes it even if it is a file or a link
    shutil.rmtree(gone)


def sweep(directory: Path) -> None:
    """Remove the staging directories of killed processes. The caller must hold the lock of `directory`.

    If a process was killed after it had renamed an old directory, but before the new one was in its place, the old
    directory gets its name back.
    """
    _clear([*directory.glob(f"{STAGED}*")])


def sweep_beside(directory: Path) -> None:
    """As `sweep`, for the staging directories of `new_directory(directory)` only.

    The caller needs no lock: staging directories that a running process uses are left alone.
    """
    directory = _behind_link(directory)
    _clear([path for path in directory.parent.glob(f"{STAGED}{glob.escape(directory.name)}.*") if _abandoned(path)])


def _abandoned(staging: Path) -> bool:
    """Whether no process holds the lock of this staging directory. For NAME.old, the lock of NAME counts."""
    try:
        handle = os.open(staging.with_name(staging.name.removesuffix(_OLD)), os.O_RDONLY)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _clear(leftovers: Sequence[Path]) -> None:
    for old in (path for path in leftovers if path.name.endswith(_OLD)):
        original = old.with_name(old.name.removeprefix(STAGED).removesuffix(_OLD).rpartition(".")[0])
        if not original.exists():
            old.rename(original)
    for path in leftovers:
        _remove(path)


def _remove(path: Path) -> None:
    """Delete a directory or any other file. (`shutil.rmtree` on a named pipe would block.)"""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the listing of a directory, is on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without O_NONBLOCK, a named pipe would block
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
