"""What a CPU does between two products, each in one pass over the rows: loops in Python, compiled by numba.

A row is computed by itself, in an order that depends on nothing but its own length. So what comes out for one sentence
is the same to the last bit, whoever its neighbours are.

Letters: R rows, I inputs, O outputs, D width, H heads, K head width, S sentences, B = S·w hypotheses, M slots, V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, njit, types
from numba.extending import intrinsic

LEAST = 1e-30  # a row of zeros has a scale, too
_LINE = 64  # bytes that memory hands over at once
_STRETCH = 64  # words of which the largest is found at once

_MATHS = {"reassoc", "contract", "arcp", "nsz", "afn"}  # sums in any order; but what is no number stays none
_intrinsic: Any = intrinsic
_part: Any = njit(fastmath=_MATHS, error_model="numpy", inline="always")


def _kernel(function: Callable[..., None]) -> Any:
    """Compiled at its first call, and kept on disk beside the program, or in the user's cache, or else nowhere."""
    kernel: Any = njit(fastmath=_MATHS, nogil=True, error_model="numpy")(function)
    with suppress(RuntimeError):  # there is no place that may be written to
        kernel.enable_caching()
        _forgive(kernel._cache)
    return kernel


def _forgive(kept: Any) -> None:
    """What is kept and can't be read is compiled anew; what can't be kept is not."""
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


@_intrinsic
def _more(typing, a, b):  # type: ignore[no-untyped-def]
    """max(a, b) as many lanes compute it at once: of Python's own, a compiler makes a loop over single numbers.

    It passes over what is no number. Where that must not be lost, 0 · x is added up: 0, or else no number either.
    """

    def generate(context, builder, signature, numbers):  # type: ignore[no-untyped-def]
        number = ir.FloatType()
        kind = ir.FunctionType(number, [number, number])
        maximum = builder.module.declare_intrinsic("llvm.maxnum", [number], kind)
        return builder.call(maximum, numbers, fastmath=("nnan", "nsz"))

    return float32(float32, float32), generate


@_intrinsic
def _fetch_line(typing, address):  # type: ignore[no-untyped-def]
    """Ask for memory that will soon be read."""

    def generate(context, builder, signature, numbers):  # type: ignore[no-untyped-def]
        number, place = ir.IntType(32), builder.inttoptr(numbers[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        builder.call(fetch, [place, number(0), number(3), number(1)])  # to be read, often, as data
        return context.get_dummy_value()

    return types.none(types.int64), generate


@_part
def _fetch(room, home, slot, part, h):  # type: ignore[no-untyped-def]
    """What one head will read of a slot."""
    by_home, by_slot, by_part, by_head, by_number = room.strides
    first = room.ctypes.data + home * by_home + slot * by_slot + part * by_part + h * by_head
    for line in range(0, room.shape[4] * by_number, _LINE):
        _fetch_line(first + line)


@_part
def _exp(x):  # type: ignore[no-untyped-def]
    """e^x for x ≤ 0, as 2^n · e^r with |r| ≤ ½ log 2: a polynomial that many lanes compute at once."""
    x = _more(x, float32(-87.0))
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


@_kernel
def quantise(x, whole_RI, largest_R):  # type: ignore[no-untyped-def]
    """Rows in whole numbers from −127 to 127, and the largest of each, which 127 stands for."""
    for row in range(x.shape[0]):
        largest, strange = float32(LEAST), float32(0)
        for i in range(x.shape[1]):
            largest = _more(largest, abs(x[row, i]))
            strange += float32(0) * x[row, i]
        largest_R[row] = largest + strange
        times = float32(127) / largest
        for i in range(x.shape[1]):
            whole_RI[row, i] = np.int8(np.int32(np.rint(x[row, i] * times)))


@_kernel
def rescale(sums_RO, largest_R, scale_O, bias_O, y):  # type: ignore[no-untyped-def]
    """Sums of whole numbers → what they stand for, plus a bias."""
    for row in range(y.shape[0]):
        largest = largest_R[row]
        for i in range(y.shape[1]):
            y[row, i] = float32(sums_RO[row, i]) * scale_O[i] * largest + bias_O[i]


@_kernel
def add_rescaled(sums_RO, largest_R, scale_O, bias_O, x):  # type: ignore[no-untyped-def]
    """The same, added to x."""
    for row in range(x.shape[0]):
        largest = largest_R[row]
        for i in range(x.shape[1]):
            x[row, i] += float32(sums_RO[row, i]) * scale_O[i] * largest + bias_O[i]


@_kernel
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


@_kernel
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


@_kernel
def embed(ids, table_VD, waves, position_R, x):  # type: ignore[no-untyped-def]
    """√D · E[id] + position"""
    width = x.shape[1]
    times = float32(math.sqrt(width))
    for row in range(x.shape[0]):
        word, position = ids[row], position_R[row]
        for i in range(width):
            x[row, i] = table_VD[word, i] * times + waves[position, i]


@_kernel
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
                        largest = _more(largest, abs(x[row, part + which, h, c]))
                        strange += float32(0) * x[row, part + which, h, c]
                    scale[home, slot, which, h] = (largest + strange) / float32(127)
                    times = float32(127) / largest
                    for c in range(width):
                        room[home, slot, which, h, c] = np.int8(np.int32(np.rint(x[row, part + which, h, c] * times)))


@_kernel
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
        for j in range(count):  # as they lie in memory
            slot = order[line, j]
            for h in range(heads):
                product = float32(0)
                for c in range(width):
                    product += q[row, 0, h, c] * float32(room[home, slot, part, h, c])
                product *= times
                if scale is not None:
                    product *= scale[home, slot, part, h]
                weights_HM[h, j] = product
        after = min(row + 1, rows - 1)
        others = count_R[after] if home_R[after] != home else 0
        for h in range(heads):
            largest, total = float32(-3e38), float32(0)
            for j in range(count):
                largest = _more(largest, weights_HM[h, j])
                total += float32(0) * weights_HM[h, j]
            for j in range(count):
                weights_HM[h, j] = _exp(weights_HM[h, j] - largest)
                total += weights_HM[h, j]
            for c in range(width):
                y[row, h, c] = float32(0)
            for j in range(count):
                if j < others:
                    _fetch(room, home_R[after], order[line_R[after], j], part, h)
                slot, weight = order[line, j], weights_HM[h, j] / total
                if scale is not None:
                    weight *= scale[home, slot, part + 1, h]
                for c in range(width):
                    y[row, h, c] += weight * float32(room[home, slot, part + 1, h, c])


@_part
def _log_sum_exp(scores, row):  # type: ignore[no-untyped-def]
    largest, total = scores[row, 0], float32(0)
    for i in range(scores.shape[1]):
        largest = _more(largest, scores[row, i])
        total += float32(0) * scores[row, i]
    for i in range(scores.shape[1]):
        total += _exp(scores[row, i] - largest)
    return largest + float32(math.log(total))


@_kernel
def normalise(scores, log_z):  # type: ignore[no-untyped-def]
    """log Σ exp scores, of rows (R, V)."""
    for row in range(scores.shape[0]):
        log_z[row] = _log_sum_exp(scores, row)


@_kernel
def rescale_scores(sums_RV, largest_R, scale_V, scores, log_z):  # type: ignore[no-untyped-def]
    """`rescale` and `normalise`, row by row, as there are many words: the sums become the bits of the scores, which are
    a view of them."""
    for row in range(sums_RV.shape[0]):
        largest = largest_R[row]
        for i in range(sums_RV.shape[1]):
            score = np.float32(float32(sums_RV[row, i]) * scale_V[i] * largest)
            sums_RV[row, i] = score.view(np.int32)
        log_z[row] = _log_sum_exp(scores, row)


@_kernel
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
                most = _more(most, scores[row, first + np.uintp(i)])
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


@_part
def _insert(best, where, kept, value, index):  # type: ignore[no-untyped-def]
    """Put a value in its place among the best, of which there are so many; the last one may drop out. → how many"""
    place = min(kept, len(best) - 1)
    while place > 0 and value > best[place - 1]:
        best[place], where[place] = best[place - 1], where[place - 1]
        place -= 1
    best[place], where[place] = value, index
    return min(kept + 1, len(best))
