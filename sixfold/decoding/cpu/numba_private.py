"""All uses of numba's internals, in one file.

    cpu_features     the instruction sets that numba compiles for
    keep_on_disk     caches compiled kernels on disk; survives damaged files, a full disk and changed sources
    no_value         the result of an intrinsic that returns nothing

`tests/decoding/cpu/test_numba_private.py` fails when numba changes one of them. Until this file is adapted, decoding
works without them: torch computes the matrix products, and every process compiles the kernels anew.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any


@cache
def cpu_features() -> frozenset[str]:
    """For instance {"avx2", "fma"}: this CPU's, or those in NUMBA_CPU_FEATURES. Empty if numba's internals changed."""
    try:
        from numba.core.registry import cpu_target

        features = cpu_target.target_context.codegen()._tm_features
    except (ImportError, AttributeError):
        return frozenset()
    return frozenset(name[1:] for name in features.split(",") if name.startswith("+"))


@cache
def multiplies_and_adds() -> bool:
    """Whether the CPU has fused multiply-add: a · b + c with one rounding. Every 64-bit ARM has it."""
    return "fma" in cpu_features() or platform.machine().lower() in ("aarch64", "arm64")


def no_value(context: Any) -> Any:
    """The value that the code generator of an intrinsic of type `types.none` returns."""
    return context.get_dummy_value()


def keep_on_disk(compiled: Any, sources: Sequence[str]) -> Any:
    """Cache a kernel beside its source file, or in the user's cache directory, until one of `sources` changes.

    If the cache file is unreadable, the kernel is compiled anew; if it can't be written, that is ignored. → the kernel
    """
    try:
        from numba.core.caching import FunctionCache

        kept = FunctionCache(compiled.py_func)
        _tolerate_errors(kept)
        kept._cache_file._source_stamp = kept._cache_file._source_stamp, _stamp(tuple(sources))
        compiled._cache = kept
    except (ImportError, AttributeError, RuntimeError, OSError):  # numba's internals changed, or no writable directory
        pass
    return compiled


def _tolerate_errors(kept: Any) -> None:
    load, save = kept.load_overload, kept.save_overload

    def load_overload(*arguments: Any) -> Any:
        try:
            return load(*arguments)
        except Exception:  # a damaged file may raise anything
            with suppress(OSError):
                kept.flush()

    def save_overload(*arguments: Any) -> None:
        with suppress(OSError):  # for instance a full disk
            save(*arguments)

    kept.load_overload, kept.save_overload = load_overload, save_overload


@cache
def _stamp(sources: tuple[str, ...]) -> tuple[tuple[float, int], ...]:
    """Time and size of the files whose functions are compiled into a kernel. (numba checks only the kernel's own.)"""
    found = (Path(file).stat() for file in sources)
    return tuple((status.st_mtime, status.st_size) for status in found)
