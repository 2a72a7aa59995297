"""Matrix products (gemm) with prepacked weights: with one thread, faster than torch's own.

    y = X Wᵀ + b                      in float32
    y = a s · (X W'ᵀ) + b             in int8: see int8.py

    panel        all inputs of 64 outputs, in the order in which they are read: input 0 of outputs 0, 1, … 63; input 1 …
    tile         up to 6 rows × a panel: 24 registers of accumulators, written to memory after the last input

(Without AVX-512 there are fewer registers, and a panel has 16 outputs.) Weights are packed once, not in every product.
Each product reads them from memory once; while one block is multiplied with all rows, the next is prefetched.

The accumulator of a row and an output starts with y in mode ADD, otherwise with 0. Its inputs are added in order, in
float32 with one rounding each, and the bias last. So the result is the same to the last bit for any number of rows and
threads. torch's products do not guarantee that.

In int8, one instruction (`vpdpbusd`) multiplies 4 numbers from 0 to 255 by 4 from −128 to 127 and adds the products to
an accumulator, in 16 lanes at once. So four inputs of an output are adjacent in memory. Weights are shifted by 128 to
be unsigned, which adds 128 ΣX to every accumulator of a row; the accumulators start with −128 ΣX.

Letters: R rows, I inputs, O outputs.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from sixfold.decoding.cpu.kernels import kernel, part, quantise_row
from sixfold.decoding.cpu.llvm import ADD, BYTES, RELU, SET, TILE_OUTPUTS, TILE_ROWS, has_tiles, tile

_FOUR = 4  # inputs per `vpdpbusd`
_SHIFT = 128
_BLOCK = 96 * 64 // TILE_OUTPUTS  # steps whose weights stay in the L1 cache from one tile to the next
_WORTH_A_THREAD = 1 << 22  # multiplications below which a further thread does not pay


def panels(weight_OI: np.ndarray) -> np.ndarray | None:
    """Weights as (panels, I, 64), padded with zeros; None if this CPU has no tiles."""
    return _laid_out(weight_OI, 1, np.float32(0)) if has_tiles(np.float32) else None


def int8_panels(weight_OI: np.ndarray) -> np.ndarray | None:
    """int8 weights as (panels, I / 4, 256), shifted; padding is the shift, the image of 0. None: no int8 tiles."""
    shifted = weight_OI.view(np.uint8) ^ np.uint8(_SHIFT)  # equals adding it, modulo 256
    return _laid_out(shifted, _FOUR, np.uint8(_SHIFT)) if has_tiles(np.uint8) else None


def _laid_out(weight_OI: np.ndarray, side_by_side: int, zero: np.generic) -> np.ndarray:
    outputs, inputs = weight_OI.shape
    number, steps = -(-outputs // TILE_OUTPUTS), -(-inputs // side_by_side)
    complete = np.full((number * TILE_OUTPUTS, steps * side_by_side), zero)
    complete[:outputs, :inputs] = weight_OI
    made = _aligned((number, steps, TILE_OUTPUTS, side_by_side), complete.dtype)
    made[:] = complete.reshape(number, TILE_OUTPUTS, steps, side_by_side).transpose(0, 2, 1, 3)
    return made.reshape(number, steps, -1)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array aligned to a cache line."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + BYTES, np.uint8)
    first = -memory.ctypes.data % BYTES
    return memory[first : first + size].view(dtype).reshape(shape)


def padded(numbers_O: np.ndarray) -> np.ndarray:
    """Padded with zeros to a multiple of the panel's width."""
    return np.pad(numbers_O, (0, -len(numbers_O) % TILE_OUTPUTS))


def multiply(x: np.ndarray, panels: np.ndarray, bias: np.ndarray, mode: int, y: np.ndarray, threads: int = 1) -> None:
    """y ← W x + b, by `mode`, with a padded bias. Large products divide their panels among threads."""
    number = len(panels)
    threads = min(threads, number, x.size * y.shape[1] // _WORTH_A_THREAD)
    if threads < 2:
        multiply_part(x, panels, 0, number, bias, mode, y)
        return

    def share(thread: int) -> None:
        first, last = number * thread // threads, number * (thread + 1) // threads
        multiply_part(x, panels, first, last, bias, mode, y)

    others = [_pool(os.getpid(), threads - 1).submit(share, thread) for thread in range(1, threads)]
    share(0)
    for other in others:
        other.result()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """One pool per process: threads do not survive a fork."""
    return ThreadPoolExecutor(threads, "sixfold-product")


@kernel
def multiply_part(x, panels, first_panel, last_panel, bias, mode, y):  # type: ignore[no-untyped-def]
    """`multiply`, only the outputs of these panels."""
    no_sums = np.empty(0, np.int32)
    _cover(x, panels, first_panel, last_panel, _BLOCK, no_sums, bias, bias, bias, mode, y)


@kernel
def multiply_int8(x, panels, scale, bias, mode, y):  # type: ignore[no-untyped-def]
    """`multiply` in int8, with a padded scale and a padded bias."""
    rows, steps, bits = len(x), panels.shape[1], x.view(np.int32)
    int8_RI, largest = np.empty((rows, steps * _FOUR), np.int8), np.empty(rows, np.float32)
    first = np.empty(rows, np.int32)
    for row in range(rows):
        for i in range(x.shape[1], int8_RI.shape[1]):
            int8_RI[row, i] = 0
        largest[row] = quantise_row(x, bits, row, int8_RI)
        total = np.int32(0)
        for i in range(x.shape[1]):
            total = np.int32(total + int8_RI[row, i])
        first[row] = np.int32(-_SHIFT * total)
    _cover(int8_RI, panels, 0, len(panels), steps, first, largest, scale, bias, mode, y)


@part
def _cover(x, panels, first_panel, last_panel, block, sums, largest, scale, bias, mode, y):  # type: ignore[no-untyped-def]
    """y by tiles, one block of steps after another. The first block adds to y in mode ADD, the others always; the last
    one adds the bias."""
    steps, no_bias = panels.shape[1], np.zeros(TILE_OUTPUTS, np.float32)
    blocks = (steps + block - 1) // block
    for panel in range(first_panel, last_panel):
        for number in range(blocks):
            start, stop, is_last = steps * number // blocks, steps * (number + 1) // blocks, number == blocks - 1
            now = (mode & ADD if number == 0 else ADD) | (mode & RELU if is_last else SET)
            at_bias = bias.ctypes.data + 4 * panel * TILE_OUTPUTS if is_last else no_bias.ctypes.data
            _tiles_of_panel(x, panels, panel, start, stop, sums, largest, scale, at_bias, now, y)


@part
def _tiles_of_panel(x, panels, panel, start, stop, sums, largest, scale, at_bias, mode, y):  # type: ignore[no-untyped-def]
    """All rows of one panel, in tiles of about equal height. Each prefetches a part of the next block of weights."""
    rows, of_step, left = len(y), panels.strides[1], panel * TILE_OUTPUTS
    weights, size = panels.ctypes.data + panel * panels.strides[0] + start * of_step, stop - start
    is_last = panel == len(panels) - 1 and stop == panels.shape[1]
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
    for index in range(tiles):
        top, bottom = rows * index // tiles, rows * (index + 1) // tiles
        ahead = weights + size * (of_step + BYTES * index)
        if is_last or index >= of_step // BYTES:
            ahead = weights
        read = x.ctypes.data + top * x.strides[0] + 4 * start, x.strides[0]
        scales = largest.ctypes.data + 4 * top, scale.ctypes.data + 4 * left, at_bias
        inputs = read, weights, size, ahead, sums.ctypes.data + 4 * top, scales, mode
        if left + TILE_OUTPUTS <= y.shape[1]:
            tile(panels, bottom - top, *inputs, (y.ctypes.data + top * y.strides[0] + 4 * left, y.strides[0]))
        else:
            _narrow_tile(panels, top, bottom, inputs, y, left)


@part
def _narrow_tile(panels, top, bottom, inputs, y, left):  # type: ignore[no-untyped-def]
    """The last outputs, fewer than a tile: computed in an array as wide as a tile, then copied."""
    wide, width = np.empty((TILE_ROWS, TILE_OUTPUTS), np.float32), y.shape[1] - left
    for row in range(top, bottom):
        for i in range(width):
            wide[row - top, i] = y[row, left + i]
    tile(panels, bottom - top, *inputs, (wide.ctypes.data, wide.strides[0]))
    for row in range(top, bottom):
        for i in range(width):
            y[row, left + i] = wide[row - top, i]
