"""Products of rows with weights that lie ready for it: by one thread, faster than torch's own.

    y = X Wᵀ + b                      in float32
    y = a s · (X W'ᵀ) + b             in whole numbers of 8 bits: see sixfold/int8.py

    panel        all inputs of 64 outputs, in the order in which they are read: input 0 of outputs 0, 1, … 63; input 1 …
    tile         up to 6 rows × a panel: 24 registers of sums, written to memory when all inputs are read

So nothing is laid out anew for each product; weights come from memory once, and while one block of them is multiplied
with all rows, the next is fetched.

For whole numbers, one instruction (`vpdpbusd`) takes 4 numbers from 0 to 255 and 4 from −128 to 127, and adds their
products to a sum; for 16 sums at once. So four inputs of an output lie side by side; and weights are shifted by 128,
which adds 128 ΣX to all sums of a row, and is taken off again.

Letters: R rows, I inputs, O outputs.
"""

from __future__ import annotations

import numpy as np

from sixfold.decoding.cpu.kernels import part, strict_kernel, whole_row
from sixfold.decoding.cpu.llvm import ADD, BYTES, POSITIVE, SET, TALL, WIDE, knows_tiles, tile

_FOUR = 4  # inputs that the instruction takes
_SHIFT = 128
_BLOCK = 96  # steps whose weights a CPU keeps at hand for one tile after another


def panels(weight_OI: np.ndarray) -> np.ndarray | None:
    """Weights as (panels, I, 64), filled up with zeros; None if this CPU has no tiles."""
    return _laid_out(weight_OI, 1, np.float32(0)) if knows_tiles(np.float32) else None


def whole_panels(weight_OI: np.ndarray) -> np.ndarray | None:
    """Whole numbers as (panels, I / 4, 256), shifted, and filled up with what stands for zero; or None."""
    shifted = weight_OI.view(np.uint8) ^ np.uint8(_SHIFT)  # which is to add it
    return _laid_out(shifted, _FOUR, np.uint8(_SHIFT)) if knows_tiles(np.uint8) else None


def _laid_out(weight_OI: np.ndarray, side_by_side: int, zero: np.generic) -> np.ndarray:
    outputs, inputs = weight_OI.shape
    number, steps = -(-outputs // WIDE), -(-inputs // side_by_side)
    filled = np.full((number * WIDE, steps * side_by_side), zero)
    filled[:outputs, :inputs] = weight_OI
    made = _aligned((number, steps, WIDE, side_by_side), filled.dtype)
    made[:] = filled.reshape(number, WIDE, steps, side_by_side).transpose(0, 2, 1, 3)
    return made.reshape(number, steps, -1)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that begins where what fills a register does."""
    size = int(np.prod(shape)) * dtype.itemsize
    paper = np.empty(size + BYTES, np.uint8)
    first = -paper.ctypes.data % BYTES
    return paper[first : first + size].view(dtype).reshape(shape)


def filled_up(numbers_O: np.ndarray) -> np.ndarray:
    """With zeros, for as many outputs as panels have."""
    return np.pad(numbers_O, (0, -len(numbers_O) % WIDE))


@strict_kernel
def multiply(x, panels, bias, how, y):  # type: ignore[no-untyped-def]
    """y ← W x + b, as `how` says. The bias is filled up."""
    nothing = np.empty(0, np.int32)
    _cover(x, panels, _BLOCK, nothing, bias, bias, bias, how, y)


@strict_kernel
def multiply_whole(x, panels, scale, bias, how, y):  # type: ignore[no-untyped-def]
    """The same in whole numbers. The scale and the bias are filled up."""
    rows, steps = len(x), panels.shape[1]
    whole, largest = np.empty((rows, steps * _FOUR), np.int8), np.empty(rows, np.float32)
    first = np.empty(rows, np.int32)
    for row in range(rows):
        for i in range(x.shape[1], whole.shape[1]):
            whole[row, i] = 0
        largest[row] = whole_row(x, whole, row)
        total = np.int32(0)
        for i in range(x.shape[1]):
            total = np.int32(total + whole[row, i])
        first[row] = np.int32(-_SHIFT * total)
    _cover(whole, panels, steps, first, largest, scale, bias, how, y)


@part
def _cover(x, panels, block, first, largest, scale, bias, how, y):  # type: ignore[no-untyped-def]
    """y with tiles, a block of steps at a time: the first may add to y, all others do; the last adds the bias."""
    steps, no_bias = panels.shape[1], np.zeros(WIDE, np.float32)
    blocks = (steps + block - 1) // block
    for panel in range(len(panels)):
        for number in range(blocks):
            start, stop, is_last = steps * number // blocks, steps * (number + 1) // blocks, number == blocks - 1
            now = (how & ADD if number == 0 else ADD) | (how & POSITIVE if is_last else SET)
            at_bias = bias.ctypes.data + 4 * panel * WIDE if is_last else no_bias.ctypes.data
            _go_down(x, panels, panel, start, stop, first, largest, scale, at_bias, now, y)


@part
def _go_down(x, panels, panel, start, stop, first, largest, scale, at_bias, how, y):  # type: ignore[no-untyped-def]
    """One tile below the other, of about the same height, while the next block of weights is fetched part by part."""
    rows, of_step, left = len(y), panels.strides[1], panel * WIDE
    weights, size = panels.ctypes.data + panel * panels.strides[0] + start * of_step, stop - start
    nothing_ahead = panel == len(panels) - 1 and stop == panels.shape[1]
    tiles = (rows + TALL - 1) // TALL
    for place in range(tiles):
        top, bottom = rows * place // tiles, rows * (place + 1) // tiles
        ahead = weights + size * (of_step + BYTES * place)
        if nothing_ahead or place >= of_step // BYTES:
            ahead = weights
        read = x.ctypes.data + top * x.strides[0] + 4 * start, x.strides[0]
        scales = largest.ctypes.data + 4 * top, scale.ctypes.data + 4 * left, at_bias
        what = read, weights, size, ahead, first.ctypes.data + 4 * top, scales, how
        if left + WIDE <= y.shape[1]:
            tile(panels, bottom - top, *what, (y.ctypes.data + top * y.strides[0] + 4 * left, y.strides[0]))
        else:
            _narrow_tile(panels, top, bottom, what, y, left)


@part
def _narrow_tile(panels, top, bottom, what, y, left):  # type: ignore[no-untyped-def]
    """By way of a sheet that is wide enough."""
    sheet, width = np.empty((TALL, WIDE), np.float32), y.shape[1] - left
    for row in range(top, bottom):
        for i in range(width):
            sheet[row - top, i] = y[row, left + i]
    tile(panels, bottom - top, *what, (sheet.ctypes.data, sheet.strides[0]))
    for row in range(top, bottom):
        for i in range(width):
            y[row, left + i] = sheet[row - top, i]
