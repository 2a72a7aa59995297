"""What a CPU does between two products, each in one pass over the rows: loops in Python, compiled by numba.

A row is computed by itself, in an order that depends on nothing but its own length. So what comes out for one sentence
is the same to the last bit, whoever its neighbours are.

Letters: R rows, I inputs, O outputs, D width, H heads, K head width, S sentences, B = S·w hypotheses, M slots, V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import config, float32, njit

from sixfold.decoding.cpu import llvm
from sixfold.decoding.cpu.llvm import ADD, LANES, POSITIVE, dots, fills_registers, more, weigh

LEAST = 1e-30  # a row of zeros has a scale, too
_STRETCH = 64  # words of which the largest is found at once

_MATHS = {"reassoc", "contract", "arcp", "nsz", "afn"}  # sums in any order; but what is no number stays none
if getattr(config, "DISABLE_JIT", False):
    raise ValueError("NUMBA_DISABLE_JIT is set, but what sixfold decodes with must be compiled: unset it")
part: Any = njit(error_model="numpy", inline="always")  # of a kernel, and compiled as that is


def kernel(function: Callable[..., None]) -> Any:
    """Compiled at its first call, and kept on disk beside the program, or in the user's cache, or else nowhere."""
    return _kept(njit(fastmath=_MATHS, nogil=True, error_model="numpy")(function))


def strict_kernel(function: Callable[..., None]) -> Any:
    """The same, but it computes in the order that is written, and so comes to the same bits as another that does."""
    return _kept(njit(nogil=True, error_model="numpy")(function))


def _kept(compiled: Any) -> Any:
    with suppress(RuntimeError, OSError):  # there is no place that may be written to
        compiled.enable_caching()
        _forgive(compiled._cache)
    return compiled


def _forgive(kept: Any) -> None:
    """What is kept and can't be read is compiled anew, also when a file has changed of which it is made; what can't be
    kept is not."""
    kept._cache_file._source_stamp = kept._cache_file._source_stamp, _stamp()
    load, save = kept.load_overload, kept.save_overload

    def load_overload(*what: Any) -> Any:
        try:
            return load(*what)
        except Exception:  # whatever comes of reading what is damaged
            with suppress(OSError):
                kept.flush()

    def save_overload(*what: Any) -> None:
        with suppress(OSError):  # a full disk, for one
            save(*what)

    kept.load_overload, kept.save_overload = load_overload, save_overload


@cache
def _stamp() -> tuple[tuple[float, int], ...]:
    """When the files were written that kernels have parts of."""
    found = (Path(file).stat() for file in (__file__, llvm.__file__))
    return tuple((status.st_mtime, status.st_size) for status in found)


@part
def _exp(x):  # type: ignore[no-untyped-def]
    """e^x for x ≤ 0, as 2^n · e^r with |r| ≤ ½ log 2: a polynomial that many lanes compute at once."""
    x = more(x, float32(-87.0))
    n = np.floor(x * float32(1.4426950408889634) + float32(0.5))
    r = x - n * float32(0.693359375) + n * float32(2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    power = np.int32((n + float32(127)) * float32(8388608))  # the bits of 2^n
    return (p * r * r + r + float32(1)) * power.view(np.float32)


@njit(fastmath=_MATHS, error_model="numpy")
def whole_row(x, whole, row):  # type: ignore[no-untyped-def]
    """A row in whole numbers from −127 to 127. → the largest number of it, which 127 stands for"""
    largest, strange = float32(LEAST), float32(0)
    for i in range(x.shape[1]):
        largest = more(largest, abs(x[row, i]))
        strange += float32(0) * x[row, i]
    times = float32(127) / largest
    for i in range(x.shape[1]):
        whole[row, i] = np.int8(np.int32(np.rint(x[row, i] * times)))
    return largest + strange


@part
def _meaning(total, scale, largest, bias):  # type: ignore[no-untyped-def]
    """What a sum of whole numbers stands for, plus a bias."""
    return float32(total) * scale * largest + bias


@kernel
def quantise(x, whole_RI, largest_R):  # type: ignore[no-untyped-def]
    """Rows in whole numbers, and the largest number of each."""
    for row in range(x.shape[0]):
        largest_R[row] = whole_row(x, whole_RI, row)


@part
def _put(y, i, value, how):  # type: ignore[no-untyped-def]
    """Write a value where one is, as `how` says."""
    if how == ADD:
        value += y[i]
    elif how == POSITIVE and value < float32(0):
        value = float32(0)
    y[i] = value


@strict_kernel
def rescale(sums_RO, largest_R, scale_O, bias_O, how, y):  # type: ignore[no-untyped-def]
    """y ← what sums of whole numbers stand for, plus a bias."""
    for row in range(y.shape[0]):
        line = y[row]
        for i in range(y.shape[1]):
            _put(line, i, _meaning(sums_RO[row, i], scale_O[i], largest_R[row], bias_O[i]), how)


@kernel
def norm(x, weight_D, bias_D, epsilon, y):  # type: ignore[no-untyped-def]
    """Layer norm. y may be x."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        total = float32(0)
        for i in range(width):
            total += x[row, i]
        mean = total / float32(width)
        squares = float32(0)
        for i in range(width):
            squares += (x[row, i] - mean) * (x[row, i] - mean)
        times = float32(1) / np.sqrt(squares / float32(width) + float32(epsilon))
        for i in range(width):
            y[row, i] = (x[row, i] - mean) * times * weight_D[i] + bias_D[i]


@kernel
def rms_norm(x, weight_D, epsilon, y):  # type: ignore[no-untyped-def]
    """The same without a mean and a bias."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        squares = float32(0)
        for i in range(width):
            squares += x[row, i] * x[row, i]
        times = float32(1) / np.sqrt(squares / float32(width) + float32(epsilon))
        for i in range(width):
            y[row, i] = x[row, i] * times * weight_D[i]


@kernel
def embed(ids, table_VD, waves, position_R, x):  # type: ignore[no-untyped-def]
    """√D · E[id] + position"""
    width = x.shape[1]
    times = float32(math.sqrt(width))
    for row in range(x.shape[0]):
        word, position = ids[row], position_R[row]
        for i in range(width):
            x[row, i] = table_VD[word, i] * times + waves[position, i]


@kernel
def lay(x, part, room, scale, home_R, slot_R):  # type: ignore[no-untyped-def]
    """Put keys and values in slots of homes: of x (R, ·, H, K) this part and the next, in room (homes, slots, 2, H, K).

    With a `scale` (homes, slots, 2, H) they are whole numbers, and it says what 1 stands for.
    """
    rows, _, heads, width = x.shape
    for row in range(rows):
        home, slot = home_R[row], slot_R[row]
        for which in range(2):
            for h in range(heads):
                if scale is None:
                    for c in range(width):
                        room[home, slot, which, h, c] = x[row, part + which, h, c]
                else:
                    largest, strange = float32(LEAST), float32(0)
                    for c in range(width):
                        largest = more(largest, abs(x[row, part + which, h, c]))
                        strange += float32(0) * x[row, part + which, h, c]
                    scale[home, slot, which, h] = (largest + strange) / float32(127)
                    times = float32(127) / largest
                    for c in range(width):
                        room[home, slot, which, h, c] = np.int8(np.int32(np.rint(x[row, part + which, h, c] * times)))


@part
def _compare(q, row, room, home, part, order, line, count, products):  # type: ignore[no-untyped-def]
    """products (H, M) ← q · k, of the heads of a row with what is in the slots, as they lie in memory."""
    heads, width = room.shape[3:]
    if count > 0 and fills_registers(width):
        asked, keys = q.ctypes.data + row * q.strides[0], _part_of(room, home, part)
        slots, found = order.ctypes.data + line * order.strides[0], products.ctypes.data
        dots(room, width // LANES, asked, keys, room.strides[1], slots, count, heads, found, products.shape[1])
    else:
        for j in range(count):
            for h in range(heads):
                product = float32(0)
                for c in range(width):
                    product += q[row, 0, h, c] * float32(room[home, order[line, j], part, h, c])
                products[h, j] = product


@part
def _collect(weights, room, home, part, order, line, count, soon, y, row):  # type: ignore[no-untyped-def]
    """y[row] (H, K) ← Σ weight · v, of each head. What is before these values `soon` (a home, a line, a count) will be
    asked for, and is fetched ahead."""
    heads, width = room.shape[3:]
    at_order, at_y = order.ctypes.data, y.ctypes.data + row * y.strides[0]
    next_home, next_line, next_count = soon
    values, keys = _part_of(room, home, part), _part_of(room, next_home, part - 1)
    for h in range(heads):
        if count > 0 and fills_registers(width):
            weight, head = weights.ctypes.data + h * weights.strides[0], h * room.strides[3]
            here = values + head, room.strides[1], at_order + line * order.strides[0], count
            there = keys + head, at_order + next_line * order.strides[0], next_count
            weigh(room, width // LANES, weight, *here, *there, at_y + h * y.strides[1])
        else:
            for c in range(width):
                y[row, h, c] = float32(0)
            for j in range(count):
                for c in range(width):
                    y[row, h, c] += weights[h, j] * float32(room[home, order[line, j], part, h, c])


@part
def _part_of(room, home, part):  # type: ignore[no-untyped-def]
    """Where keys or values begin in a home."""
    return room.ctypes.data + home * room.strides[0] + part * room.strides[2]


@kernel
def look(q, room, scale, part, home_R, order, line_R, count_R, y):  # type: ignore[no-untyped-def]
    """softmax(q Kᵀ / √K) V: the heads of each row look at so many slots of a home, in the order of a line.

    q (R, ·, H, K), of which the first; room (homes, slots, ·, H, K), of which `part` are keys and the next one values,
    and its scale, as in `lay`; order (lines, M or more); y (R, H, K)
    """
    rows, heads, width = y.shape
    times = float32(1 / math.sqrt(width))
    weights_HM = np.empty((heads, order.shape[1]), np.float32)
    for row in range(rows):
        home, line, count = home_R[row], line_R[row], count_R[row]
        _compare(q, row, room, home, part, order, line, count, weights_HM)
        for h in range(heads):
            for j in range(count):
                weights_HM[h, j] *= times
            if scale is not None:
                for j in range(count):
                    weights_HM[h, j] *= scale[home, order[line, j], part, h]
            largest, total = float32(-3e38), float32(0)
            for j in range(count):
                largest = more(largest, weights_HM[h, j])
                total += float32(0) * weights_HM[h, j]
            for j in range(count):
                weights_HM[h, j] = _exp(weights_HM[h, j] - largest)
                total += weights_HM[h, j]
            for j in range(count):
                weights_HM[h, j] /= total
            if scale is not None:
                for j in range(count):
                    weights_HM[h, j] *= scale[home, order[line, j], part + 1, h]
        after = min(row + 1, rows - 1)
        if home_R[after] == home or count_R[after] == 0:
            after = row
        soon = home_R[after], line_R[after], count_R[after]
        _collect(weights_HM, room, home, part + 1, order, line, count, soon, y, row)


@kernel
def normalise(scores, log_z):  # type: ignore[no-untyped-def]
    """log Σ exp scores, of rows (R, V)."""
    for row in range(scores.shape[0]):
        largest, total = scores[row, 0], float32(0)
        for i in range(scores.shape[1]):
            largest = more(largest, scores[row, i])
            total += float32(0) * scores[row, i]
        for i in range(scores.shape[1]):
            total += _exp(scores[row, i] - largest)
        log_z[row] = largest + float32(math.log(total))


@kernel
def top(scores, values, indices):  # type: ignore[no-untyped-def]
    """The k largest of each row (R, V), the largest first, and where they are, (R, k). Of equal ones, any; but for
    k = 1, the first.

    The largest of each stretch of words are found many at a time. The k largest words lie in the k stretches with the
    largest: nothing of the others is looked at.
    """
    words, k = scores.shape[1], values.shape[1]
    stretches = words // _STRETCH
    largest, best = np.empty(stretches, np.float32), np.empty(k, np.float32)
    looked_at, where = np.empty(k, np.int64), np.empty(k, np.int64)
    for row in range(scores.shape[0]):
        for stretch in range(stretches):
            most, first = float32(-np.inf), np.uintp(stretch * _STRETCH)
            for i in range(_STRETCH):
                most = more(most, scores[row, first + np.uintp(i)])
            largest[stretch] = most
        several = 0
        for stretch in range(stretches):
            if several < k or largest[stretch] > best[k - 1]:
                several = _insert(best, looked_at, several, largest[stretch], stretch)
        kept = 0
        for number in range(several):
            first = looked_at[number] * _STRETCH
            for i in range(first, first + _STRETCH):
                if kept < k or scores[row, i] > best[k - 1]:
                    kept = _insert(best, where, kept, scores[row, i], i)
        for i in range(stretches * _STRETCH, words):  # what is left over
            if kept < k or scores[row, i] > best[k - 1]:
                kept = _insert(best, where, kept, scores[row, i], i)
        for place in range(k):
            values[row, place], indices[row, place] = best[place], where[place]


@part
def _insert(best, where, kept, value, index):  # type: ignore[no-untyped-def]
    """Put a value in its place among the best, of which there are so many; the last one may drop out. → how many"""
    place = min(kept, len(best) - 1)
    while place > 0 and value > best[place - 1]:
        best[place], where[place] = best[place - 1], where[place - 1]
        place -= 1
    best[place], where[place] = value, index
    return min(kept + 1, len(best))
