"""Inner loops written as LLVM IR: accumulators stay in registers, where numba would spill them after each loop.

The IR fixes the order of additions, and where a product and a sum are rounded once (fused multiply-add). So the result
of a row does not depend on how a compiler arranges loops, nor on the other rows of a batch, to the last bit.

Arrays are passed as addresses (int64).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import extending, types

from sixfold.decoding.cpu.numba_private import cpu_features, multiplies_and_adds, no_value

LANES = 16  # numbers in a vector: one register of AVX-512, two of AVX2, four of ARM
BYTES = 64  # size of a float32 vector, and of a cache line
_HALF = LANES // 2

# A tile has 6 rows × 1 or 4 vectors of accumulators: as many as fit in the registers.
TILE_ROWS, _TILE_VECTORS = 6, 4 if "avx512f" in cpu_features() else 1
TILE_OUTPUTS = _TILE_VECTORS * LANES

SET, ADD, RELU = 0, 1, 2  # y ← value; y ← y + value; y ← max(value, 0)

_HEAD_WIDTHS = [*range(LANES, 129, LANES), 8, 24, 40, 56]  # `dots` and `weighted_sum` have a loop for each

intrinsic: Any = extending.intrinsic
register_jitable: Any = extending.register_jitable
_INT64, INT32, FLOAT, _INT8 = ir.IntType(64), ir.IntType(32), ir.FloatType(), ir.IntType(8)
FLOATS, INT32S = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)


class Program:
    """Writes LLVM IR with a builder."""

    def __init__(self, builder: Any):
        self.builder = builder

    def sum(self, address: Any, *offsets: Any) -> Any:
        """An address plus offsets, which may be Python integers."""
        for offset in offsets:
            address = self.builder.add(address, self._int64(offset))
        return address

    def times(self, number: Any, factor: Any) -> Any:
        return self.builder.mul(self._int64(number), self._int64(factor))

    def load(self, kind: Any, address: Any) -> Any:
        return self.builder.load(self._pointer(kind, address), align=1)

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self._pointer(value.type, address), align=1)

    def prefetch(self, address: Any) -> None:
        """Prefetch a cache line."""
        pointer = self._pointer(_INT8, address)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, INT32, INT32, INT32])
        fetch = self.builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        self.builder.call(fetch, [pointer, INT32(0), INT32(3), INT32(1)])  # for reading, into all caches, as data

    def multiply_add(self, a: Any, b: Any, total: Any) -> Any:
        """a · b + total by lane, rounded once if the CPU has fused multiply-add, otherwise twice."""
        if multiplies_and_adds():
            return self.call(f"llvm.fma.v{a.type.count}f32", a.type, a, b, total)
        return self.builder.fadd(total, self.builder.fmul(a, b))

    def spread(self, number: Any, lanes: int = LANES) -> Any:
        """A vector with this number in all lanes."""
        empty = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
        zeros = ir.Constant(ir.VectorType(INT32, lanes), None)
        return self.builder.shuffle_vector(self.builder.insert_element(empty, number, INT32(0)), empty, zeros)

    def constant(self, number: float) -> Any:
        return ir.Constant(FLOATS, [number] * LANES)

    def reduce(self, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
        """A vector reduced to one number: its halves are joined until one lane is left."""
        while (lanes := vector.type.count) > 1:
            vector = join(*self.halves(vector, lanes // 2))
        return self.builder.extract_element(vector, INT32(0))

    def halves(self, vector: Any, half: int) -> tuple[Any, Any]:
        low, high = (ir.Constant(ir.VectorType(INT32, half), list(range(at, at + half))) for at in (0, half))
        return self.builder.shuffle_vector(vector, vector, low), self.builder.shuffle_vector(vector, vector, high)

    def call(self, name: str, result: Any, *numbers: Any) -> Any:
        """An LLVM intrinsic."""
        known = self.builder.module.globals.get(name)
        kind = ir.FunctionType(result, [number.type for number in numbers])
        return self.builder.call(known or ir.Function(self.builder.module, kind, name), numbers)

    def loop(self, count: Any, first: Sequence[Any], body: Callable[[Any, list[Any]], Sequence[Any]]) -> Sequence[Any]:
        """body(index, values) → the next values, for each index below `count` ≥ 1. → the last values"""
        builder, before = self.builder, self.builder.block
        block, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(block)
        builder.position_at_end(block)
        index, values = builder.phi(_INT64), [builder.phi(value.type) for value in first]
        following = body(index, values)
        next_index, end = builder.add(index, _INT64(1)), builder.block
        builder.cbranch(builder.icmp_signed("<", next_index, count), block, after)
        for phi, *ways in zip([index, *values], [_INT64(0), *first], [next_index, *following], strict=True):
            for value, origin in zip(ways, (before, end), strict=True):
                phi.add_incoming(value, origin)
        builder.position_at_end(after)
        return following

    def choose(self, number: Any, cases: Iterable[int], write: Callable[[int], None]) -> None:
        """A switch with a branch for each case; any other number skips all branches."""
        builder, after = self.builder, self.builder.append_basic_block("chosen")
        choice = builder.switch(number, after)
        for case in cases:
            block = builder.append_basic_block("case")
            choice.add_case(_INT64(case), block)
            builder.position_at_end(block)
            write(case)
            builder.branch(after)
        builder.position_at_end(after)

    def _pointer(self, kind: Any, address: Any) -> Any:
        return self.builder.inttoptr(address, kind.as_pointer())

    @staticmethod
    def _int64(number: Any) -> Any:
        return _INT64(number) if isinstance(number, int) else number


@register_jitable
def fills_vectors(width: int) -> bool:
    """Whether `dots` and `weighted_sum` have a loop for heads of this width (`_HEAD_WIDTHS`)."""
    return (width % 16 == 0 and 0 < width <= 128) or (width % 8 == 0 and 0 < width < 64)


@intrinsic
def dots(typing, states, width, q, keys, stride, order, count, heads, products, products_width):  # type: ignore[no-untyped-def]
    """products (heads, products_width) ← q · k, for each head and its keys in the first `count` ≥ 1 slots of `order`.

    The dtype of `states` is that of the keys, float32 or int8; slots are `stride` bytes apart.
    """

    def generate(context, builder, signature, numbers):  # type: ignore[no-untyped-def]
        _, width, *others = numbers
        program = _Dots(builder, states.dtype, *others)
        program.choose(width, _HEAD_WIDTHS, program.write)
        return no_value(context)

    return types.none(states, *[types.int64] * 9), generate


@intrinsic
def weighted_sum(  # type: ignore[no-untyped-def]
    typing, states, width, weights, values, stride, order, count, next_states, next_order, next_count, y, factor
):
    """y ← factor · Σ weight · value, for one head, over slots as in `dots`. Meanwhile the states that will be read next
    (one slot at least) are prefetched."""

    def generate(context, builder, signature, numbers):  # type: ignore[no-untyped-def]
        _, width, *others = numbers
        program = _WeightedSum(builder, states.dtype, *others)
        program.choose(width, _HEAD_WIDTHS, program.write)
        return no_value(context)

    return types.none(states, *[types.int64] * 10, types.float32), generate


class _Slots(NamedTuple):
    """The slots of a sequence, in the order of a hypothesis's tokens."""

    states: Any
    stride: Any
    order: Any
    count: Any


class _OverSlots(Program):
    """A loop over slots whose states are of one dtype."""

    def __init__(self, builder: Any, dtype: Any, slots: _Slots):
        super().__init__(builder)
        self.dtype, self.slots, self.item = dtype, slots, dtype.bitwidth // 8

    @staticmethod
    def parts(width: int) -> list[tuple[int, int]]:
        """A head as vectors: (first number, lanes). The last one may be half as long."""
        return [(first, min(LANES, width - first)) for first in range(0, width, LANES)]

    def at(self, slots: _Slots, index: Any) -> Any:
        """The address of the slot at this index of `order`."""
        slot = self.load(_INT64, self.sum(slots.order, self.times(index, 8)))
        return self.sum(slots.states, self.times(slot, slots.stride))

    def floats(self, address: Any, lanes: int) -> Any:
        """A vector of states, as float32."""
        floats = ir.VectorType(FLOAT, lanes)
        if self.dtype is types.float32:
            return self.load(floats, address)
        return self.builder.sitofp(self.load(ir.VectorType(_INT8, lanes), address), floats)


class _Dots(_OverSlots):
    def __init__(self, builder: Any, dtype: Any, q: Any, keys: Any, stride: Any, order: Any, count: Any, *others: Any):
        super().__init__(builder, dtype, _Slots(keys, stride, order, count))
        self.q, (self.heads, self.products, self.products_width) = q, others

    def write(self, width: int) -> None:
        def one_slot(index: Any, _: list[Any]) -> Sequence[Any]:
            keys = self.at(self.slots, index)
            return self.loop(self.heads, [], lambda head, _: self._one_head(keys, index, head, width))

        self.loop(self.slots.count, [], one_slot)

    def _one_head(self, keys: Any, index: Any, head: Any, width: int) -> Sequence[Any]:
        totals: dict[int, Any] = {}  # by the number of lanes
        for first, lanes in self.parts(width):
            number = self.sum(self.times(head, width), first)
            q = self.load(ir.VectorType(FLOAT, lanes), self.sum(self.q, self.times(number, 4)))
            k = self.floats(self.sum(keys, self.times(number, self.item)), lanes)
            totals[lanes] = self.multiply_add(q, k, totals[lanes]) if lanes in totals else self.builder.fmul(q, k)
        if len(totals) > 1:
            joined = self.builder.fadd(*self.halves(totals.pop(LANES), _HALF))
            totals[_HALF] = self.builder.fadd(joined, totals[_HALF])
        (total,) = totals.values()
        at = self.sum(self.times(head, self.products_width), index)
        self.store(self.reduce(total, self.builder.fadd), self.sum(self.products, self.times(at, 4)))
        return []


class _WeightedSum(_OverSlots):
    def __init__(self, builder: Any, dtype: Any, weights: Any, values: Any, stride: Any, order: Any, *others: Any):
        count, next_states, next_order, next_count, self.y, self.factor = others
        super().__init__(builder, dtype, _Slots(values, stride, order, count))
        self.weights, self.next = weights, _Slots(next_states, stride, next_order, next_count)

    def write(self, width: int) -> None:
        parts = self.parts(width)
        zeros = [ir.Constant(ir.VectorType(FLOAT, lanes), None) for _, lanes in parts]
        totals = self.loop(self.slots.count, zeros, lambda index, sums: self._add(index, sums, width))
        for (first, lanes), total in zip(parts, totals, strict=True):
            self.store(self.builder.fmul(total, self.spread(self.factor, lanes)), self.sum(self.y, first * 4))

    def _add(self, index: Any, sums: list[Any], width: int) -> Sequence[Any]:
        values = self.at(self.slots, index)
        weight = self.load(FLOAT, self.sum(self.weights, self.times(index, 4)))
        self._prefetch_next(index, width)
        return [
            self.multiply_add(
                self.spread(weight, lanes), self.floats(self.sum(values, first * self.item), lanes), total
            )
            for (first, lanes), total in zip(self.parts(width), sums, strict=True)
        ]

    def _prefetch_next(self, index: Any, width: int) -> None:
        """Prefetch the slot at `index` of the next states, or their last one."""
        last = self.sum(self.next.count, -1)
        index = self.builder.select(self.builder.icmp_signed("<", index, last), index, last)
        states = self.at(self.next, index)
        for line in range(0, width * self.item, BYTES):
            self.prefetch(self.sum(states, line))


def has_tiles(dtype: Any) -> bool:
    """Whether this CPU has the instructions for tiles of these weights: float32, or int8 (shifted to uint8)."""
    return "avx512vnni" in cpu_features() if np.dtype(dtype) == np.uint8 else multiplies_and_adds()


@intrinsic
def tile(typing, panels, rows, x, panel, steps, ahead, sums, scales, mode, y):  # type: ignore[no-untyped-def]
    """y ← X W + b, by `mode`, for 1 to 6 rows of X and a panel of W: see gemm.py.

    x and y are (address, bytes from row to row). Each step reads 4 bytes of each row and one panel vector per vector of
    accumulators, and prefetches 64 bytes at `ahead`. `scales` are three addresses: the largest magnitude of each row,
    the scale of each output, and the bias. float32 reads the bias only. For int8, `sums` holds the initial accumulator
    of each row.
    """

    def generate(context, builder, signature, numbers):  # type: ignore[no-untyped-def]
        _, rows, *others = numbers
        program = (_Tile if panels.dtype == types.float32 else _Int8Tile)(builder, *others)
        program.choose(rows, range(1, TILE_ROWS + 1), program.write)
        return no_value(context)

    one, two, three = types.int64, types.UniTuple(types.int64, 2), types.UniTuple(types.int64, 3)
    return types.none(panels, one, two, one, one, one, one, three, one, two), generate


class _Tile(Program):
    """A tile of float32 products."""

    def __init__(
        self, builder: Any, x: Any, panel: Any, steps: Any, ahead: Any, sums: Any, scales: Any, mode: Any, y: Any
    ):
        super().__init__(builder)
        self.panel, self.steps, self.ahead, self.first_sums = panel, steps, ahead, sums
        (self.x, self.x_stride), (self.y, self.y_stride) = (self._each(pair, 2) for pair in (x, y))
        self.largest, self.scale, self.bias = self._each(scales, 3)
        self.adds, relu = (self._has(mode, each) for each in (ADD, RELU))
        self.least = self.spread(builder.select(relu, FLOAT(0.0), FLOAT(-math.inf)))

    def write(self, rows: int) -> None:
        parts = [(row, part) for row in range(rows) for part in range(_TILE_VECTORS)]
        sums = self.loop(self.steps, [self._first(*part) for part in parts], self._step)
        for part, total in zip(parts, sums, strict=True):
            value = self._result(total, *part)
            less = self.builder.fcmp_ordered("<", value, self.least)  # false for NaN, which passes through
            self.store(self.builder.select(less, self.least, value), self._address(*part))

    def _step(self, step: Any, sums: list[Any]) -> Sequence[Any]:
        """Add the products of one step."""
        self.prefetch(self.sum(self.ahead, self.times(step, BYTES)))
        weights = self.sum(self.panel, self.times(step, _TILE_VECTORS * BYTES))
        column = [self._load_vector(weights, part) for part in range(_TILE_VECTORS)]
        lines = [sums[first : first + _TILE_VECTORS] for first in range(0, len(sums), _TILE_VECTORS)]
        now: list[Any] = []
        for row, line in enumerate(lines):
            at = self.sum(self.x, self.times(self.x_stride, row), self.times(step, 4))
            factor = self.spread(self._load_number(at))
            now += [self._product(weight, factor, total) for total, weight in zip(line, column, strict=True)]
        return now

    def _product(self, weight: Any, factor: Any, total: Any) -> Any:
        return self.multiply_add(weight, factor, total)

    def _address(self, row: int, part: int) -> Any:
        return self.sum(self.y, self.times(self.y_stride, row), part * BYTES)

    def _before(self, row: int, part: int) -> Any:
        """The old y in mode ADD, otherwise zeros."""
        zeros = ir.Constant(FLOATS, None)
        return self.builder.select(self.adds, self.load(FLOATS, self._address(row, part)), zeros)

    def _first(self, row: int, part: int) -> Any:
        return self._before(row, part)

    def _result(self, total: Any, row: int, part: int) -> Any:
        return self.builder.fadd(total, self._load_vector(self.bias, part))

    def _load_vector(self, address: Any, part: int) -> Any:
        return self.load(FLOATS, self.sum(address, part * BYTES))

    def _load_number(self, address: Any) -> Any:
        return self.load(FLOAT, address)

    def _each(self, numbers: Any, count: int) -> list[Any]:
        return [self.builder.extract_value(numbers, index) for index in range(count)]

    def _has(self, mode: Any, bit: int) -> Any:
        return self.builder.icmp_signed("!=", self.builder.and_(mode, _INT64(bit)), _INT64(0))


class _Int8Tile(_Tile):
    """A tile of int8 products, four inputs per step."""

    def _product(self, weight: Any, factor: Any, total: Any) -> Any:
        return self.call("llvm.x86.avx512.vpdpbusd.512", INT32S, total, weight, factor)

    def _first(self, row: int, part: int) -> Any:
        return self.spread(self.load(INT32, self.sum(self.first_sums, row * 4)))

    def _result(self, total: Any, row: int, part: int) -> Any:
        """In the order of `kernels.rescale`, so that both round alike."""
        scale, bias = (self.load(FLOATS, self.sum(each, part * BYTES)) for each in (self.scale, self.bias))
        largest = self.spread(self.load(FLOAT, self.sum(self.largest, row * 4)))
        value = self.builder.fmul(self.builder.sitofp(total, FLOATS), scale)
        value = self.builder.fadd(self.builder.fmul(value, largest), bias)
        return self.builder.fadd(value, self._before(row, part))

    def _load_vector(self, address: Any, part: int) -> Any:
        return self.load(INT32S, self.sum(address, part * BYTES))

    def _load_number(self, address: Any) -> Any:
        return self.load(INT32, address)
