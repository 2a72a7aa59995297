"""Reading untrusted files: reads never block, and their memory is bounded."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LARGEST_JSON = 16 << 20  # bytes; a run's own files have some kilobytes
DEEPEST_JSON = 50  # levels of lists and objects inside each other
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


def regular_file(path: str, flags: int) -> int:
    """An opener for `open` that accepts regular files only: a named pipe would block, a device may never end.

    >>> open(path, "rb", opener=regular_file)
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)  # without O_NONBLOCK, opening a pipe waits for a writer
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"this is {_KINDS.get(kind, 'something else')}, not a regular file", str(path))


def read_bytes(path: Path, limit: int) -> bytes:
    """The bytes of a file; ValueError if there are more than `limit`."""
    with open(path, "rb", opener=regular_file) as file:
        found = file.read(limit + 1)
    if len(found) > limit:
        raise ValueError(f"it has more than {limit:,} bytes")
    return found


def read_json(path: Path) -> Any:
    """The value in a JSON file. Invalid content raises a ValueError without the file's name, which the caller adds."""
    return parse_json(read_bytes(path, LARGEST_JSON).decode())


def parse_json(text: str) -> Any:
    """The value of a JSON text. Deep nesting raises a ValueError, since the code that processes a value recurses."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    if text.count("[") + text.count("{") > DEEPEST_JSON:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = _nested([value])
    for _ in range(DEEPEST_JSON):
        level = [item for each in level for item in _nested(each.values() if isinstance(each, dict) else each)]
        if not level:
            return
    raise _too_deep()


def _nested(items: Iterable[Any]) -> list[Any]:
    return [item for item in items if isinstance(item, dict | list)]


def _too_deep() -> ValueError:
    return ValueError(f"its values are nested more than {DEEPEST_JSON} deep")
