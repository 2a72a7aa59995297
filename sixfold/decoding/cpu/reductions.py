"""Sums, maxima and exponentials of rows, 64 and then 16 numbers at a time, as LLVM IR.

    x₀ … x₆₃   x₆₄ … x₁₂₇   …      four vector accumulators of 16 lanes: each lane adds up every 64th number;
                                   at the end the four are added in pairs
    x₁₂₈ … x₁₄₃   …                the remaining vectors are added to that one; at the end its lanes in pairs

Without fast-math a compiler must not reorder a sum of floats, so it adds one number at a time. With fast-math it
chooses the order, which may differ from program to program. Here the order is fixed and depends only on the row's
length.

Each function takes an address and a number of vectors (of 16 numbers), which may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import float32, types

from sixfold.decoding.cpu.llvm import BYTES, FLOATS, INT32, INT32S, LANES, Program, intrinsic
from sixfold.decoding.cpu.numba_private import no_value

Add = Callable[[Any, Any, Any], Any]  # (total, x, address of x) → the next total
Join = Callable[[Any, Any], Any]

_INT64 = types.int64
_AT_ONCE = 4  # vector accumulators
_LOWEST = -87.0  # below, e^x is a subnormal number

# e^r ≈ 1 + r + r² p(r) for |r| ≤ ½ log 2, the highest power first
_POLYNOMIAL = 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
_LOG_2 = 0.693359375, -2.12194440e-4  # in two parts, so that n times the first is exact
_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127


class _Reduction(Program):
    def over(self, address: Any, vectors: Any, first: float, add: Add, join: Join) -> Any:
        """One number: accumulators that start with `first` and grow by `add`, combined by `join`."""
        four = vectors.type(_AT_ONCE)
        some, rest = self.builder.sdiv(vectors, four), self.builder.srem(vectors, four)
        total = self._part(address, some, [self.constant(first)] * _AT_ONCE, add, join)
        at = self.sum(address, self.times(some, _AT_ONCE * BYTES))
        return self.reduce(self._part(at, rest, [total], add, join), join)

    def _part(self, address: Any, count: Any, first: list[Any], add: Add, join: Join) -> Any:
        """Reduce `count` · len(first) vectors to one total; count = 0 gives first[0]."""
        builder, before = self.builder, self.builder.block
        some, after = builder.append_basic_block("some"), builder.append_basic_block("end")
        builder.cbranch(builder.icmp_signed(">", count, count.type(0)), some, after)
        builder.position_at_end(some)

        def step(index: Any, totals: list[Any]) -> list[Any]:
            each = [self.sum(address, self.times(index, len(first) * BYTES), n * BYTES) for n in range(len(first))]
            return [add(total, self.load(FLOATS, at), at) for total, at in zip(totals, each, strict=True)]

        totals = self.loop(count, first, step)
        while len(totals) > 1:
            totals = [join(one, other) for one, other in zip(totals[::2], totals[1::2], strict=True)]
        end = builder.block
        builder.branch(after)
        builder.position_at_end(after)
        total = builder.phi(FLOATS)
        for value, origin in ((first[0], before), (totals[0], end)):
            total.add_incoming(value, origin)
        return total

    def larger(self, a: Any, b: Any) -> Any:
        """The larger of a and b, by lane. NaN compares false, so a NaN in a is ignored."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def exponential(self, x: Any) -> Any:
        """e^x for x ≤ 0, as 2^n · e^r. NaN stays NaN; x is clamped at −87."""
        builder, lowest = self.builder, self.constant(_LOWEST)
        x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
        n = self.call("llvm.floor.v16f32", FLOATS, self._times_plus(x, 1 / math.log(2), 0.5))
        r = self.multiply_add(n, self.constant(-_LOG_2[0]), x)
        r = self.multiply_add(n, self.constant(-_LOG_2[1]), r)
        p = self.constant(_POLYNOMIAL[0])
        for coefficient in _POLYNOMIAL[1:]:
            p = self.multiply_add(p, r, self.constant(coefficient))
        p = self.multiply_add(self.builder.fmul(p, r), r, self.builder.fadd(r, self.constant(1.0)))
        exponent = builder.add(builder.fptosi(n, INT32S), self._int32(_EXPONENT_BIAS))
        return builder.fmul(p, builder.bitcast(builder.shl(exponent, self._int32(_MANTISSA_BITS)), FLOATS))

    def _times_plus(self, x: Any, factor: float, summand: float) -> Any:
        return self.multiply_add(x, self.constant(factor), self.constant(summand))

    @staticmethod
    def _int32(number: int) -> Any:
        return ir.Constant(INT32S, [INT32(number)] * LANES)


def _sum_of(write: Callable[..., Any]) -> Callable[..., Any]:
    """A code generator for Σ write(program, x, address of x, arguments …)."""

    def generate(context: Any, builder: Any, signature: Any, numbers: Any) -> Any:
        address, vectors, *arguments = numbers
        program = _Reduction(builder)
        spread = [program.spread(number) for number in arguments]

        def add(total: Any, x: Any, at: Any) -> Any:
            return builder.fadd(total, write(program, x, at, *spread))

        return program.over(address, vectors, 0.0, add, builder.fadd)

    return generate


def _squared(program: _Reduction, x: Any, at: Any, mean: Any) -> Any:
    difference = program.builder.fsub(x, mean)
    return program.builder.fmul(difference, difference)


def _exponential(program: _Reduction, x: Any, at: Any, shift: Any) -> Any:
    return program.exponential(program.builder.fsub(x, shift))


def _stored_exponential(program: _Reduction, x: Any, at: Any, factor: Any, shift: Any) -> Any:
    value = _exponential(program, program.builder.fmul(x, factor), at, shift)
    program.store(value, at)
    return value


@intrinsic
def vector_sum(typing, address, vectors):  # type: ignore[no-untyped-def]
    """Σ x"""
    return float32(_INT64, _INT64), _sum_of(lambda program, x, at: x)


@intrinsic
def vector_squares(typing, address, vectors, mean):  # type: ignore[no-untyped-def]
    """Σ (x − mean)²"""
    return float32(_INT64, _INT64, float32), _sum_of(_squared)


@intrinsic
def vector_exponentials(typing, address, vectors, shift):  # type: ignore[no-untyped-def]
    """Σ e^(x − shift), for shift ≥ x"""
    return float32(_INT64, _INT64, float32), _sum_of(_exponential)


@intrinsic
def vector_exponentiate(typing, address, vectors, factor, shift):  # type: ignore[no-untyped-def]
    """x ← e^(factor · x − shift), for shift ≥ factor · x. → Σ x"""
    return float32(_INT64, _INT64, float32, float32), _sum_of(_stored_exponential)


@intrinsic
def vector_max(typing, address, vectors):  # type: ignore[no-untyped-def]
    """max x; −∞ for 0 vectors. NaN is ignored."""

    def generate(context: Any, builder: Any, signature: Any, numbers: Any) -> Any:
        program, (address, vectors) = _Reduction(builder), numbers
        return program.over(address, vectors, -math.inf, lambda most, x, at: program.larger(x, most), program.larger)

    return float32(_INT64, _INT64), generate


@intrinsic
def fill_vector(typing, address, number):  # type: ignore[no-untyped-def]
    """Store one number in all 16 lanes at an address."""

    def generate(context: Any, builder: Any, signature: Any, numbers: Any) -> Any:
        program, (address, number) = Program(builder), numbers
        program.store(program.spread(number), address)
        return no_value(context)

    return types.none(_INT64, float32), generate
