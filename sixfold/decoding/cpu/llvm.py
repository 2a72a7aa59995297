"""What compiled loops are too slow for without a hand: programs that keep numbers in registers, written for LLVM.

numba compiles Python loops, and LLVM finds out which of them can be computed many lanes at a time. It can't find out
that sums may stay in registers from one loop to the next. Here it is said.

Whatever lies in memory is passed as an address: a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import extending, float32, types
from numba.core.registry import cpu_target

BYTES, LANES = 64, 16  # of a register, with numbers of 4 bytes
_MOST = 8  # registers that a head's numbers fill

TALL, _ACROSS = 6, 4  # rows of a tile, and the registers of sums of each
WIDE = _ACROSS * LANES  # outputs of a tile

SET, ADD, POSITIVE = 0, 1, 2  # y ← a value; y ← y + a value; y ← max(a value, 0); or the last two in one

intrinsic: Any = extending.intrinsic
register_jitable: Any = extending.register_jitable
_INDEX, _SUM, _FLOAT, _BYTE = ir.IntType(64), ir.IntType(32), ir.FloatType(), ir.IntType(8)
_SUMS, _FLOATS = ir.VectorType(_SUM, LANES), ir.VectorType(_FLOAT, LANES)
_ZEROS = ir.Constant(_FLOATS, None)
_FREELY = ("reassoc", "contract", "nsz")  # sums in any order


class _Program:
    """A function that is being written."""

    def __init__(self, builder: Any):
        self.builder = builder

    def sum(self, address: Any, *offsets: Any) -> Any:
        """Of addresses, and numbers that are known by now."""
        for offset in offsets:
            address = self.builder.add(address, self._number(offset))
        return address

    def times(self, number: Any, factor: Any) -> Any:
        return self.builder.mul(self._number(number), self._number(factor))

    def load(self, kind: Any, address: Any) -> Any:
        return self.builder.load(self._pointer(kind, address), align=1)

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self._pointer(value.type, address), align=1)

    def fetch(self, address: Any) -> None:
        """Ask for memory that will soon be read."""
        place = self._pointer(_BYTE, address)
        kind = ir.FunctionType(ir.VoidType(), [place.type, _SUM, _SUM, _SUM])
        fetch = self.builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        self.builder.call(fetch, [place, _SUM(0), _SUM(3), _SUM(1)])  # to be read, often, as data

    def plus(self, total: Any, a: Any, b: Any) -> Any:
        """total + a b"""
        return self.builder.fadd(total, self.builder.fmul(a, b, flags=_FREELY), flags=_FREELY)

    def spread(self, number: Any) -> Any:
        """In all lanes of a register."""
        nothing, zeros = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined), ir.Constant(_SUMS, None)
        return self.builder.shuffle_vector(self.builder.insert_element(nothing, number, _SUM(0)), nothing, zeros)

    def call(self, name: str, result: Any, *numbers: Any, flags: Sequence[str] = ()) -> Any:
        """An instruction that has a name of its own."""
        known = self.builder.module.globals.get(name)
        kind = ir.FunctionType(result, [number.type for number in numbers])
        return self.builder.call(known or ir.Function(self.builder.module, kind, name), numbers, fastmath=flags)

    def loop(self, count: Any, first: Sequence[Any], body: Callable[[Any, list[Any]], Sequence[Any]]) -> Sequence[Any]:
        """body(index, values) → the next values, once at least, for indices below a count. → the last values"""
        builder, before = self.builder, self.builder.block
        block, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(block)
        builder.position_at_end(block)
        index, values = builder.phi(_INDEX), [builder.phi(value.type) for value in first]
        following = body(index, values)
        next_index, end = builder.add(index, _INDEX(1)), builder.block
        builder.cbranch(builder.icmp_signed("<", next_index, count), block, after)
        for phi, *ways in zip([index, *values], [_INDEX(0), *first], [next_index, *following], strict=True):
            for value, origin in zip(ways, (before, end), strict=True):
                phi.add_incoming(value, origin)
        builder.position_at_end(after)
        return following

    def choose(self, number: Any, cases: Iterable[int], write: Callable[[int], None]) -> None:
        """One program for each case; for other numbers, none."""
        builder, after = self.builder, self.builder.append_basic_block("chosen")
        choice = builder.switch(number, after)
        for case in cases:
            block = builder.append_basic_block("case")
            choice.add_case(_INDEX(case), block)
            builder.position_at_end(block)
            write(case)
            builder.branch(after)
        builder.position_at_end(after)

    def _pointer(self, kind: Any, address: Any) -> Any:
        return self.builder.inttoptr(address, kind.as_pointer())

    @staticmethod
    def _number(number: Any) -> Any:
        return _INDEX(number) if isinstance(number, int) else number


@intrinsic
def more(typing, a, b):  # type: ignore[no-untyped-def]
    """max(a, b) as many lanes compute it at once: of Python's own, a compiler makes a loop over single numbers.

    It passes over what is no number. Where that must not be lost, 0 · x is added up: 0, or else no number either.
    """

    def generate(context, builder, signature, numbers):  # type: ignore[no-untyped-def]
        return _Program(builder).call("llvm.maxnum.f32", _FLOAT, *numbers, flags=("nnan", "nsz"))

    return float32(float32, float32), generate


@register_jitable
def fills_registers(width: int) -> bool:
    """Whether `dots` and `weigh` know heads that are so wide."""
    return width % LANES == 0 and width <= _MOST * LANES


@intrinsic
def dots(typing, room, registers, q, keys, stride, order, count, heads, products, width):  # type: ignore[no-untyped-def]
    """products (heads, width) ← q · k, of each head with its part of the keys in some slots of a room.

    A head fills so many registers. Slots are `stride` bytes apart, and as many are looked at as counted (at least one),
    in this order.
    """

    def generate(context, builder, signature, numbers):  # type: ignore[no-untyped-def]
        _, registers, *others = numbers
        program = _Dots(builder, room.dtype, *others)
        program.choose(registers, range(1, _MOST + 1), program.write)
        return context.get_dummy_value()

    return types.none(room, *[types.int64] * 9), generate


@intrinsic
def weigh(  # type: ignore[no-untyped-def]
    typing, room, registers, weights, values, stride, order, count, next_states, next_order, next_count, y
):
    """y ← Σ weight · value, of one head, over slots as in `dots`. States that will be looked at next (of one slot at
    least) are fetched meanwhile."""

    def generate(context, builder, signature, numbers):  # type: ignore[no-untyped-def]
        _, registers, *others = numbers
        program = _Weigh(builder, room.dtype, *others)
        program.choose(registers, range(1, _MOST + 1), program.write)
        return context.get_dummy_value()

    return types.none(room, *[types.int64] * 10), generate


class _Slots(NamedTuple):
    """Slots of a room."""

    states: Any
    stride: Any
    order: Any
    count: Any


class _OverSlots(_Program):
    """What goes over slots, whose numbers are of a kind."""

    def __init__(self, builder: Any, kind: Any, slots: _Slots):
        super().__init__(builder)
        self.kind, self.slots, self.bytes = kind, slots, LANES * kind.bitwidth // 8  # of numbers that fill a register

    def at(self, slots: _Slots, index: Any) -> Any:
        """Where the states begin of the slot that comes so late in the order."""
        slot = self.load(_INDEX, self.sum(slots.order, self.times(index, 8)))
        return self.sum(slots.states, self.times(slot, slots.stride))

    def floats(self, address: Any, part: Any) -> Any:
        """So many registers after an address."""
        at = self.sum(address, self.times(part, self.bytes))
        if self.kind is types.float32:
            return self.load(_FLOATS, at)
        return self.builder.sitofp(self.load(ir.VectorType(_BYTE, LANES), at), _FLOATS)


class _Dots(_OverSlots):
    def __init__(self, builder: Any, kind: Any, q: Any, keys: Any, stride: Any, order: Any, count: Any, *others: Any):
        super().__init__(builder, kind, _Slots(keys, stride, order, count))
        self.q, (self.heads, self.products, self.width) = q, others

    def write(self, registers: int) -> None:
        def look(index: Any, _: list[Any]) -> Sequence[Any]:
            keys = self.at(self.slots, index)
            return self.loop(self.heads, [], lambda head, _: self._compare(keys, index, head, registers))

        self.loop(self.slots.count, [], look)

    def _compare(self, keys: Any, index: Any, head: Any, registers: int) -> Sequence[Any]:
        total = _ZEROS
        for each in range(registers):
            part = self.sum(self.times(head, registers), each)
            q = self.load(_FLOATS, self.sum(self.q, self.times(part, BYTES)))
            total = self.plus(total, q, self.floats(keys, part))
        product = self.call("llvm.vector.reduce.fadd.v16f32", _FLOAT, _FLOAT(0.0), total, flags=_FREELY)
        place = self.sum(self.times(head, self.width), index)
        self.store(product, self.sum(self.products, self.times(place, 4)))
        return []


class _Weigh(_OverSlots):
    def __init__(self, builder: Any, kind: Any, weights: Any, values: Any, stride: Any, order: Any, *others: Any):
        count, next_states, next_order, next_count, self.y = others
        super().__init__(builder, kind, _Slots(values, stride, order, count))
        self.weights, self.next = weights, _Slots(next_states, stride, next_order, next_count)

    def write(self, registers: int) -> None:
        for part, total in enumerate(self.loop(self.slots.count, [_ZEROS] * registers, self._add)):
            self.store(total, self.sum(self.y, part * BYTES))

    def _add(self, index: Any, sums: list[Any]) -> Sequence[Any]:
        values = self.at(self.slots, index)
        weight = self.spread(self.load(_FLOAT, self.sum(self.weights, self.times(index, 4))))
        self._fetch_next(index, len(sums))
        return [self.plus(total, weight, self.floats(values, part)) for part, total in enumerate(sums)]

    def _fetch_next(self, index: Any, registers: int) -> None:
        """The states of one slot of the next, or of its last."""
        last = self.sum(self.next.count, -1)
        index = self.builder.select(self.builder.icmp_signed("<", index, last), index, last)
        states = self.at(self.next, index)
        for line in range(0, registers * self.bytes, BYTES):
            self.fetch(self.sum(states, line))


def knows_tiles(kind: Any) -> bool:
    """Whether this CPU has the instructions for tiles of such weights, and programs are made for it."""
    needed = {np.dtype(np.uint8): "+avx512vnni", np.dtype(np.float32): "+avx512f"}[np.dtype(kind)]
    return needed in cpu_target.target_context.codegen()._tm_features.split(",")


@intrinsic
def tile(typing, panels, rows, x, panel, steps, ahead, sums, scales, how, y):  # type: ignore[no-untyped-def]
    """y ← X W + b, as `how` says, for 1 to 6 rows of X and a panel of W: see sixfold/products.py.

    x and y are (address, bytes from row to row). Each step takes 4 bytes of each row, 256 of the panel, and fetches 64
    that will be read soon. Of whole numbers, `sums` are what those of each row begin with, and `scales` are the largest
    number of each row, and what stands for 1 of each output; then, and for floats alone, a bias.
    """

    def generate(context, builder, signature, numbers):  # type: ignore[no-untyped-def]
        _, rows, *others = numbers
        program = (_Tile if panels.dtype == types.float32 else _WholeTile)(builder, *others)
        program.choose(rows, range(1, TALL + 1), program.write)
        return context.get_dummy_value()

    one, two, three = types.int64, types.UniTuple(types.int64, 2), types.UniTuple(types.int64, 3)
    return types.none(panels, one, two, one, one, one, one, three, one, two), generate


class _Tile(_Program):
    """Of float32."""

    def __init__(
        self, builder: Any, x: Any, panel: Any, steps: Any, ahead: Any, sums: Any, scales: Any, how: Any, y: Any
    ):
        super().__init__(builder)
        self.panel, self.steps, self.ahead, self.first_sums = panel, steps, ahead, sums
        (self.x, self.x_stride), (self.y, self.y_stride) = (self._each(pair, 2) for pair in (x, y))
        self.largest, self.scale, self.bias = self._each(scales, 3)
        self.adding, positive = (self._has(how, each) for each in (ADD, POSITIVE))
        self.least = self.spread(builder.select(positive, _FLOAT(0.0), _FLOAT(-math.inf)))

    def write(self, tall: int) -> None:
        places = [(row, part) for row in range(tall) for part in range(_ACROSS)]
        sums = self.loop(self.steps, [self._begun(*place) for place in places], self._go_on)
        for place, total in zip(places, sums, strict=True):
            value = self._meaning(total, *place)
            less = self.builder.fcmp_ordered("<", value, self.least)  # what is no number is not, and stays so
            self.store(self.builder.select(less, self.least, value), self._at(*place))

    def _go_on(self, step: Any, sums: list[Any]) -> Sequence[Any]:
        """Add the products of one step."""
        self.fetch(self.sum(self.ahead, self.times(step, BYTES)))
        weights = self.sum(self.panel, self.times(step, _ACROSS * BYTES))
        column = [self._load_many(weights, part) for part in range(_ACROSS)]
        lines = [sums[first : first + _ACROSS] for first in range(0, len(sums), _ACROSS)]
        now: list[Any] = []
        for row, line in enumerate(lines):
            at = self.sum(self.x, self.times(self.x_stride, row), self.times(step, 4))
            factor = self.spread(self._load_one(at))
            now += [self.plus(total, weight, factor) for total, weight in zip(line, column, strict=True)]
        return now

    def _at(self, row: int, part: int) -> Any:
        return self.sum(self.y, self.times(self.y_stride, row), part * BYTES)

    def _before(self, row: int, part: int) -> Any:
        """What is added to."""
        return self.builder.select(self.adding, self.load(_FLOATS, self._at(row, part)), _ZEROS)

    def _begun(self, row: int, part: int) -> Any:
        return self._before(row, part)

    def _meaning(self, total: Any, row: int, part: int) -> Any:
        return self.builder.fadd(total, self._load_many(self.bias, part))

    def _load_many(self, address: Any, part: int) -> Any:
        return self.load(_FLOATS, self.sum(address, part * BYTES))

    def _load_one(self, address: Any) -> Any:
        return self.load(_FLOAT, address)

    def _each(self, numbers: Any, count: int) -> list[Any]:
        return [self.builder.extract_value(numbers, index) for index in range(count)]

    def _has(self, how: Any, way: int) -> Any:
        return self.builder.icmp_signed("!=", self.builder.and_(how, _INDEX(way)), _INDEX(0))


class _WholeTile(_Tile):
    """Of whole numbers of 8 bits, four at a step."""

    def plus(self, total: Any, weights: Any, factor: Any) -> Any:
        return self.call("llvm.x86.avx512.vpdpbusd.512", _SUMS, total, weights, factor)

    def _begun(self, row: int, part: int) -> Any:
        return self.spread(self.load(_SUM, self.sum(self.first_sums, row * 4)))

    def _meaning(self, total: Any, row: int, part: int) -> Any:
        """In the order of `kernels.rescale`, and so to the same bits."""
        scale, bias = (self.load(_FLOATS, self.sum(each, part * BYTES)) for each in (self.scale, self.bias))
        largest = self.spread(self.load(_FLOAT, self.sum(self.largest, row * 4)))
        value = self.builder.fmul(self.builder.sitofp(total, _FLOATS), scale)
        value = self.builder.fadd(self.builder.fmul(value, largest), bias)
        return self.builder.fadd(value, self._before(row, part))

    def _load_many(self, address: Any, part: int) -> Any:
        return self.load(_SUMS, self.sum(address, part * BYTES))

    def _load_one(self, address: Any) -> Any:
        return self.load(_SUM, address)
