"""Kernels for the operations between two matrix products: Python loops, each one pass over the rows, compiled by numba.

Rows are independent, and rounding is fixed: no fast-math, and sums of floats in the order of `reductions`. So the
result of a row is the same to the last bit in every batch, and in every process on this machine.

Letters: R rows, I inputs, O outputs, D width, H heads, K head width, S sentences, B = S·w hypotheses, M slots, V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import config, float32, njit

from sixfold.decoding.cpu import llvm, numba_private, reductions
from sixfold.decoding.cpu.llvm import ADD, LANES, RELU, dots, fills_vectors, weighted_sum
from sixfold.decoding.cpu.reductions import (
    fill_vector,
    vector_exponentials,
    vector_exponentiate,
    vector_max,
    vector_squares,
    vector_sum,
)

LEAST = 1e-30  # the scale of a row of zeros
_LEAST_BITS = np.float32(LEAST).view(np.int32)
_MAGNITUDE = np.int32(0x7FFFFFFF)  # all bits of a float32 but its sign
_BLOCK = 64  # words: `top` compares the maxima of such blocks first
_HIDDEN = -1e30  # a logit for padding lanes: its weight is too small to change a sum

if getattr(config, "DISABLE_JIT", False):
    raise ValueError("NUMBA_DISABLE_JIT is set, but sixfold's decoding kernels must be compiled: unset it")
part: Any = njit(error_model="numpy", inline="always")  # a function that is inlined into kernels


def kernel(function: Callable[..., None]) -> Any:
    """Compile at the first call, and cache the machine code on disk."""
    sources = __file__, llvm.__file__, reductions.__file__
    return numba_private.keep_on_disk(njit(nogil=True, error_model="numpy")(function), sources)


@part
def _largest(bits):  # type: ignore[no-untyped-def]
    """The largest magnitude of a row, given as the bits of its floats; NaN if one of them is NaN or infinite.

    Without the sign bit, floats have the order of their bits as integers, and NaN is the largest.
    """
    most = _LEAST_BITS
    for i in range(len(bits)):
        magnitude = np.int32(bits[i] & _MAGNITUDE)
        if magnitude > most:
            most = magnitude
    largest = np.int32(most).view(np.float32)
    return largest + float32(0) * largest


@part
def quantise_row(x, bits, row, int8_RI):  # type: ignore[no-untyped-def]
    """A row as integers from −127 to 127. → its largest magnitude, which becomes 127"""
    largest = _largest(bits[row])
    times = float32(127) / largest
    for i in range(x.shape[1]):
        int8_RI[row, i] = np.int8(np.int32(np.rint(x[row, i] * times)))
    return largest


@kernel
def quantise(x, int8_RI, largest_R):  # type: ignore[no-untyped-def]
    """Rows in int8, and the largest magnitude of each."""
    bits = x.view(np.int32)
    for row in range(x.shape[0]):
        largest_R[row] = quantise_row(x, bits, row, int8_RI)


@part
def _put(y, i, value, mode):  # type: ignore[no-untyped-def]
    """Store a value by `mode`: SET, ADD or RELU."""
    if mode == ADD:
        value += y[i]
    elif mode == RELU and value < float32(0):
        value = float32(0)
    y[i] = value


@kernel
def rescale(sums_RO, largest_R, scale_O, bias_O, mode, y):  # type: ignore[no-untyped-def]
    """y ← sums of int8 products in float32, plus a bias. Rounds in the same order as `llvm.tile`."""
    for row in range(y.shape[0]):
        line = y[row]
        for i in range(y.shape[1]):
            _put(line, i, float32(sums_RO[row, i]) * scale_O[i] * largest_R[row] + bias_O[i], mode)


@part
def _address(x, row):  # type: ignore[no-untyped-def]
    return x.ctypes.data + row * x.strides[0]


@part
def _squares(x, row, mean, width):  # type: ignore[no-untyped-def]
    """Σ (x − mean)² of the first `width` numbers of a row."""
    total = vector_squares(_address(x, row), width // LANES, mean)
    for i in range(width // LANES * LANES, width):
        total += (x[row, i] - mean) * (x[row, i] - mean)
    return total


@kernel
def norm(x, weight_D, bias_D, epsilon, y):  # type: ignore[no-untyped-def]
    """Layer norm. y may be x."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        total = vector_sum(_address(x, row), width // LANES)
        for i in range(width // LANES * LANES, width):
            total += x[row, i]
        mean = total / float32(width)
        squares = _squares(x, row, mean, width)
        times = float32(1) / np.sqrt(squares / float32(width) + float32(epsilon))
        for i in range(width):
            y[row, i] = (x[row, i] - mean) * times * weight_D[i] + bias_D[i]


@kernel
def rms_norm(x, weight_D, channels, epsilon, y):  # type: ignore[no-untyped-def]
    """RMS norm, with the mean square of the first `channels` numbers. y may be x."""
    for row in range(x.shape[0]):
        squares = _squares(x, row, float32(0), channels)
        times = float32(1) / np.sqrt(squares / float32(channels) + float32(epsilon))
        for i in range(x.shape[1]):
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
def write_kv(x, first, states, scale, sequence_R, slot_R):  # type: ignore[no-untyped-def]
    """Write keys and values: parts `first` and `first` + 1 of x (R, ·, H, K) → states (sequences, slots, 2, H, K).

    With a `scale` (sequences, slots, 2, H), states are int8: value = scale · state.
    """
    rows, _, heads, width = x.shape
    bits = x.view(np.int32)
    for row in range(rows):
        sequence, slot = sequence_R[row], slot_R[row]
        for which in range(2):
            for h in range(heads):
                if scale is None:
                    for c in range(width):
                        states[sequence, slot, which, h, c] = x[row, first + which, h, c]
                else:
                    largest = _largest(bits[row, first + which, h])
                    scale[sequence, slot, which, h] = largest / float32(127)
                    times = float32(127) / largest
                    for c in range(width):
                        number = np.rint(x[row, first + which, h, c] * times)
                        states[sequence, slot, which, h, c] = np.int8(np.int32(number))


@part
def _part_of(states, sequence, which):  # type: ignore[no-untyped-def]
    """The address of the keys or values of a sequence."""
    return states.ctypes.data + sequence * states.strides[0] + which * states.strides[2]


@part
def _logits(q, row, states, sequence, keys, order, at, count, logits):  # type: ignore[no-untyped-def]
    """logits (H, M) ← q · k: the heads of a row with the first `count` slots in line `at` of `order`."""
    heads, width = states.shape[3:]
    if count > 0 and fills_vectors(width):
        where, slots = _part_of(states, sequence, keys), _address(order, at)
        found, stride = logits.ctypes.data, states.strides[1]
        dots(states, width, _address(q, row), where, stride, slots, count, heads, found, logits.shape[1])
    else:
        for j in range(count):
            for h in range(heads):
                product = float32(0)
                for c in range(width):
                    product += q[row, 0, h, c] * float32(states[sequence, order[at, j], keys, h, c])
                logits[h, j] = product


@part
def _exponentiate(weights, count, times, shares):  # type: ignore[no-untyped-def]
    """weights (H, M) ← e^(times · weight − maximum); shares (H,) ← 1 / their sum. A NaN or ∞ makes a head's sum NaN."""
    number = (count + LANES - 1) // LANES
    for h in range(len(weights)):
        fill_vector(_address(weights, h) + 4 * count, float32(_HIDDEN))
        shares[h] = times * vector_max(_address(weights, h), number)
    for h in range(len(weights)):
        shares[h] = float32(1) / vector_exponentiate(_address(weights, h), number, times, shares[h])


@part
def _collect(weights, shares, states, sequence, values, order, at, count, following, y, row):  # type: ignore[no-untyped-def]
    """y[row] (H, K) ← share · Σ weight · v, for each head. Prefetches the keys of the next row: `following` is its
    sequence, its line of `order`, and its count."""
    heads, width = states.shape[3:]
    next_sequence, next_at, next_count = following
    for h in range(heads):
        if count > 0 and fills_vectors(width):
            head = h * states.strides[3]
            here = _part_of(states, sequence, values) + head, states.strides[1], _address(order, at), count
            there = _part_of(states, next_sequence, values - 1) + head, _address(order, next_at), next_count
            to = _address(y, row) + h * y.strides[1]
            weighted_sum(states, width, _address(weights, h), *here, *there, to, shares[h])
        else:
            for c in range(width):
                y[row, h, c] = float32(0)
            for j in range(count):
                for c in range(width):
                    y[row, h, c] += weights[h, j] * float32(states[sequence, order[at, j], values, h, c])
            if count > 0:
                for c in range(width):
                    y[row, h, c] *= shares[h]


@kernel
def attend(q, states, scale, keys, sequence_R, order, order_row_R, visible_R, y):  # type: ignore[no-untyped-def]
    """softmax(q Kᵀ / √K) V: the heads of each row, over the first `visible` slots in its line of `order`.

    q (R, ·, H, K): index 0 of the second dimension holds the queries. states (sequences, slots, ·, H, K): index `keys`
    of the third holds the keys, the next one the values; scale as in `write_kv`. order (lines, ≥ M); y (R, H, K)
    """
    rows, heads, width = y.shape
    times = float32(1 / math.sqrt(width))
    weights_HM = np.empty((heads, (order.shape[1] // LANES + 2) * LANES), np.float32)
    share_H = np.empty(heads, np.float32)  # 1 / the sum of weights
    for row in range(rows):
        sequence, at, count = sequence_R[row], order_row_R[row], visible_R[row]
        _logits(q, row, states, sequence, keys, order, at, count, weights_HM)
        if scale is not None:
            for h in range(heads):
                for j in range(count):
                    weights_HM[h, j] *= scale[sequence, order[at, j], keys, h]
        _exponentiate(weights_HM, count, times, share_H)
        if scale is not None:
            for h in range(heads):
                for j in range(count):
                    weights_HM[h, j] *= scale[sequence, order[at, j], keys + 1, h]
        after = min(row + 1, rows - 1)
        if sequence_R[after] == sequence or visible_R[after] == 0:
            after = row
        following = sequence_R[after], order_row_R[after], visible_R[after]
        _collect(weights_HM, share_H, states, sequence, keys + 1, order, at, count, following, y, row)


@kernel
def log_normaliser(scores, log_z):  # type: ignore[no-untyped-def]
    """log_z (R,) ← log Σ exp scores, for rows (R, V)."""
    words = scores.shape[1]
    number = words // LANES
    for row in range(scores.shape[0]):
        largest = vector_max(_address(scores, row), number)
        for i in range(number * LANES, words):
            if scores[row, i] > largest:
                largest = scores[row, i]
        total = vector_exponentials(_address(scores, row), number, largest)
        for i in range(number * LANES, words):
            total += float32(math.exp(scores[row, i] - largest))
        log_z[row] = largest + float32(math.log(total))


@kernel
def top(scores, values, indices):  # type: ignore[no-untyped-def]
    """The k largest of each row (R, V), in descending order, and their indices, (R, k). Of equal values any may be
    chosen; for k = 1, the first is.

    First the maximum of each block of words is computed. The k largest words lie in the k blocks with the largest
    maxima, so only those are searched.
    """
    words, k = scores.shape[1], values.shape[1]
    blocks = words // _BLOCK
    best = np.empty(k, np.float32)
    chosen, where = np.empty(k, np.int64), np.empty(k, np.int64)
    for row in range(scores.shape[0]):
        several = 0
        for block in range(blocks):
            largest = vector_max(_address(scores, row) + 4 * _BLOCK * block, _BLOCK // LANES)
            if several < k or largest > best[k - 1]:
                several = _insert(best, chosen, several, largest, block)
        kept = 0
        for number in range(several):
            first = chosen[number] * _BLOCK
            for i in range(first, first + _BLOCK):
                if kept < k or scores[row, i] > best[k - 1]:
                    kept = _insert(best, where, kept, scores[row, i], i)
        for i in range(blocks * _BLOCK, words):  # after the last block
            if kept < k or scores[row, i] > best[k - 1]:
                kept = _insert(best, where, kept, scores[row, i], i)
        for rank in range(k):
            values[row, rank], indices[row, rank] = best[rank], where[rank]


@part
def _insert(best, where, kept, value, index):  # type: ignore[no-untyped-def]
    """Sort a value into the first `kept` of `best`, which is in descending order; the last one may drop out. → the new
    `kept`"""
    rank = min(kept, len(best) - 1)
    while rank > 0 and value > best[rank - 1]:
        best[rank], where[rank] = best[rank - 1], where[rank - 1]
        rank -= 1
    best[rank], where[rank] = value, index
    return min(kept + 1, len(best))
