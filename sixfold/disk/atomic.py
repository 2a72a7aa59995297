"""Writing to disk so that a file is either whole or not there."""

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

STAGED = ".sixfold-aside."  # how names of what is not yet, or no longer, in its place begin
_OLD = ".old"  # and how those of directories end that are being replaced


def write_text(path: Path, text: str) -> None:
    """Put a text in the place of `path` in one move."""
    with StagedFiles(path.parent) as aside:
        aside.write(path.name, lambda place: place.write_text(text, encoding="utf-8"))


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """Whoever hears that the disk is full should hear where: errors of writing don't say it by themselves."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(place)
        raise


def save_tensors(tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file; if the disk fails it is an OSError, as with every other file."""
    import safetensors.torch

    try:
        safetensors.torch.save_file(dict(tensors), path, None if about is None else dict(about))
    except safetensors.SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from None


class StagedFiles:
    """Files written in a directory beside their places and brought to disk; moved there when all are done, or none.

    A directory, since who writes a file may do so under names of its own (safetensors does): what a kill leaves is all
    in one place, and `sweep` finds it.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._written: list[str] = []

    def __enter__(self) -> Self:
        # With a dash, so that nobody takes it for what a new directory called "files" left.
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
def new_directory(place: Path) -> Iterator[Path]:
    """A directory to fill, which becomes `place` in one move when all in it is on disk; what was there goes.

    A link stays, and what it leads to is replaced. If this fails, there is no new directory, nor any above it.
    """
    place = _behind_link(place)
    with _parents(place), _held_aside(place) as aside:
        with naming(place):
            yield aside
            for path in [*aside.rglob("*"), aside]:
                sync(path)
        aside.chmod(0o777 & ~_umask())
        _put(aside, place)


def _behind_link(place: Path) -> Path:
    return Path(os.path.realpath(place)) if place.is_symlink() else place  # `resolve` fails at a loop of links


@contextmanager
def _parents(place: Path) -> Iterator[None]:
    """Made if they are missing; those go again if what was to come does not."""
    missing = [parent for parent in place.parents if not parent.exists()]
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # somebody else may have put something there
            for parent in missing:
                parent.rmdir()
        raise


@contextmanager
def _held_aside(place: Path) -> Iterator[Path]:
    """A new directory beside a place; it goes if whoever fills it fails.

    It is locked meanwhile. The lock is the kernel's, so it goes when its holder does, and `sweep_beside` sees that.
    """
    aside = Path(tempfile.mkdtemp(dir=place.parent, prefix=f"{STAGED}{place.name}."))
    handle = os.open(aside, os.O_RDONLY)
    try:
        with suppress(OSError):  # where directories have no locks, nobody takes it for abandoned either
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield aside
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _put(aside: Path, place: Path) -> None:
    """Rename a directory to its place; what was there goes afterwards, and comes back if this fails."""
    old = aside.with_name(f"{aside.name}{_OLD}")
    if place.exists():
        place.rename(old)
    try:
        aside.rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise
    sync(place.parent)
    with suppress(OSError):
        _remove(old)


def remove_directory(place: Path) -> None:
    """Out of sight in one move, so that nobody ever sees half of it; then bit by bit."""
    gone = Path(tempfile.mkdtemp(dir=place.parent, prefix=f"{STAGED}{place.name}."))
    place.rename(gone / place.name)  # into it: whatever is in the directory's place goes, too
    shutil.rmtree(gone)


def sweep(directory: Path) -> None:
    """Remove what writers that were killed left aside. Only for who holds the lock of the directory.

    What was about to be replaced, and has not been, goes back to its place.
    """
    _clear([*directory.glob(f"{STAGED}*")])


def sweep_beside(place: Path) -> None:
    """The same for one `new_directory` alone, where nobody has a lock: what somebody is still filling stays."""
    place = _behind_link(place)
    _clear([path for path in place.parent.glob(f"{STAGED}{glob.escape(place.name)}.*") if _abandoned(path)])


def _abandoned(aside: Path) -> bool:
    """Whether nobody holds what `new_directory` made, or what it was about to replace."""
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
        place = old.with_name(old.name.removeprefix(STAGED).removesuffix(_OLD).rpartition(".")[0])
        if not place.exists():
            old.rename(place)
    for left in lefts:
        _remove(left)


def _remove(path: Path) -> None:
    """A directory with all that is in it, or whatever is in its place: `rmtree` alone would wait for a named pipe."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the listing of a directory, is on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe in its place is an error, and not waited for
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
