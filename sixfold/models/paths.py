"""How information travels through a model: the longest chain of operations, and the shortest path between two tokens.

A forward pass over n tokens leaves autograd's graph: one node for each operation, whose backward tells which of its
results depend on which of its arguments. Along this graph two numbers are computed for every element of every tensor:

    chain        the most operations that had to be computed one after the other before this element
    distance_j   the fewest operations between token j and this element; infinite if it does not depend on j

An operation that only copies numbers, such as a transposition, is not counted. No part declares anything, so this works
for any modification. Only the structure of a model matters: it is built with the layers and modifications of the real
one, but with a small width.

Letters: n tokens, E elements of a tensor, A elements of an argument, D model width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sixfold.core.place import Sizes
from sixfold.models.build import build
from sixfold.models.count import count
from sixfold.models.model import Model, evaluating

LENGTHS = (8, 16, 32)  # of the texts that are followed
_WIDTH, _HEADS, _WORDS = 4, 2, 16  # of the small model
_MOST_AT_ONCE = 2**22  # derivatives
_LENGTH_OF_WORK = 128  # and twice, and four times as much

COMPARED: tuple[tuple[str, list[str], str], ...] = (  # models to compare: name, modifications, kind
    ("self-attention", [], "encoder_only"),
    ("word windows", ["word_window"], "encoder_only"),
    ("convolution", ["conv_s2s"], "encoder_only"),
    ("dilated convolution", ["bytenet"], "encoder_only"),
    ("recurrent: rnn", ["rnn"], "decoder_only"),
    ("recurrent: lstm", ["lstm"], "decoder_only"),
)


@dataclass(frozen=True)
class Paths:
    """The paths from tokens to states, in a text of `length` tokens."""

    length: int
    chain: int  # operations in the longest chain
    distance: int  # operations on the shortest path between two tokens, for the two that are furthest from each other
    reach: int  # most positions between a token and a state that depends on it


def paths(sizes: Sizes, modifications: Sequence[Any], kind: str, length: int) -> dict[str, Paths]:
    """The paths in each stack of a model, by its name, and on the way "source to target"."""
    small = replace(sizes, d_model=_WIDTH, d_ff=2 * _WIDTH, heads=_HEADS, d_head=0, dropout=0.0)
    small = replace(small, vocab=_WORDS, source_vocab=0, target_vocab=0)
    model = build(small, modifications, kind, seed=0).double().requires_grad_(False)
    _move(model)
    ids = torch.full((1, length), _WORDS - 1)
    with evaluating(model):
        if not model.reads_source:
            read = model.decode if model.writes_text else model.encode
            return {model.stacks[0]: _follow(read, ids, model.input)}
        return {
            "encoder": _follow(lambda ids: model.encode(ids).states[-1], ids, model.encoder_input),
            "decoder": _follow(lambda ids: model.decode(ids, model.encode(ids)), ids, model.decoder_input),
            "source to target": _follow(lambda ids: model.decode(ids, model.encode(ids)), ids, model.encoder_input),
        }


def _move(model: nn.Module) -> None:
    """Change all weights: a fresh gain of 0 would cut the way through a sub-layer."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator))


def _follow(read: Callable[[Tensor], Tensor], ids: Tensor, entrance: nn.Module) -> Paths:
    """The paths to the states `read(ids)` from the tokens, which begin where `entrance` returns their embeddings."""
    n, generator = ids.shape[1], torch.Generator().manual_seed(0)
    tokens = torch.randn(1, n, _WIDTH, dtype=torch.float64, generator=generator).requires_grad_()
    hook = entrance.register_forward_hook(lambda module, given, returned: (tokens, returned[1]))
    try:
        states = read(ids)
    finally:
        hook.remove()
    chain, distance = _Graph(states, tokens).elements()
    length = states.shape[1]  # not n, if the stack shortens the text
    distance_Ln = distance.unflatten(0, (length, -1)).amin(1)
    between_Ln = (torch.arange(length)[:, None] * n // length - torch.arange(n)).abs()
    depends_Ln = distance_Ln.isfinite()
    longest = (int(numbers.max()) for numbers in (chain, distance_Ln[depends_Ln], between_Ln[depends_Ln]))
    return Paths(n, *longest)


@dataclass(frozen=True)
class Travel:
    """How information travels in a stack, or from the source to the target: at all `LENGTHS`."""

    at: tuple[Paths, ...]
    work: tuple[float, float] | None  # (a, b): a·n + b·n² multiply-accumulates for n tokens; None between stacks

    @property
    def chain(self) -> str:
        return growth([paths.chain for paths in self.at])

    @property
    def distance(self) -> str:
        return growth([paths.distance for paths in self.at])

    @property
    def reach(self) -> str:
        *_, shorter, longest = [paths.reach for paths in self.at]
        if shorter == longest:
            return f"{longest} tokens"
        return "all tokens" if longest == LENGTHS[-1] - 1 else growth([paths.reach for paths in self.at])


def travel(sizes: Sizes, modifications: Sequence[Any], kind: str) -> dict[str, Travel]:
    """How information travels in a model, by the names of `paths`."""
    at = [paths(sizes, modifications, kind, length) for length in LENGTHS]
    of_stacks = work(sizes, modifications, kind)
    return {way: Travel(tuple(each[way] for each in at), of_stacks.get(way)) for way in at[0]}


def growth(numbers: Sequence[int]) -> str:
    """How numbers grow over `LENGTHS`, each of which is twice the one before."""
    steps = [after - before for before, after in pairwise(numbers)]
    if not any(steps):
        return "constant"
    if all(after == 2 * before for before, after in pairwise(steps)):
        return f"{steps[0] / (LENGTHS[1] - LENGTHS[0]):g} per token"
    if len(set(steps)) == 1:
        return f"{steps[0]} per doubling"
    return " → ".join(map(str, numbers))


def work(sizes: Sizes, modifications: Sequence[Any], kind: str) -> dict[str, tuple[float, float]]:
    """Multiply-accumulates in each stack, as a·n + b·n² + c for a source and a target of n tokens: (a, b)"""
    model = build(sizes, modifications, kind, device="meta")
    n = _LENGTH_OF_WORK
    once, twice, four_times = (_by_stack(model, length) for length in (n, 2 * n, 4 * n))
    found = {}
    for stack in once:
        first, second = twice[stack] - once[stack], four_times[stack] - twice[stack]
        square = (second - 2 * first) / (6 * n * n)
        found[stack] = first / n - 3 * square * n, square
    return found


def _by_stack(model: Model, length: int) -> Counter[str]:
    """Multiply-accumulates in each stack, without the tables and the head."""
    operations = Counter[str]()
    for part, number in count(model, length, length).operations_by_part.items():
        stack, _, inside = part.partition(".")
        if inside:
            operations[model.stacks[0] if stack == "only" else stack] += number
    return operations


class Elements(NamedTuple):
    """The two numbers of each element of a tensor."""

    chain: Tensor  # (E,)
    distance: Tensor  # (E, n): from each token


Result = tuple[Any, int]  # a node of autograd's graph, and the number of one of its results


class _Graph:
    """Autograd's graph between the tokens and a state."""

    def __init__(self, states: Tensor, tokens: Tensor):
        self.root: Result = (states.grad_fn, states.output_nr)
        self.tokens = tokens
        self.nodes = _in_order(states.grad_fn)
        self.results: dict[Any, int] = {}  # node → the number of its results
        self.shapes: dict[Result, torch.Size] = {}
        self._look(states)

    def elements(self) -> Elements:
        """Those of the states."""
        known: dict[Result, Elements] = {}
        for node in self.nodes:
            for result in (each for each in self.shapes if each[0] is node):
                known[result] = self._next(result, known) if node.next_functions else self._begin()
        return known[self.root]

    def _begin(self) -> Elements:
        """Those of the tokens: each depends on itself."""
        n, width = self.tokens.shape[1:]
        distance = torch.where(torch.eye(n, dtype=torch.bool), 0, torch.inf)
        return Elements(torch.zeros(n * width), distance.repeat_interleave(width, 0))

    def _next(self, result: Result, known: dict[Result, Elements]) -> Elements:
        """Those of a result, from the elements of the arguments that it depends on."""
        node, _ = result
        indices = [index for index, argument in enumerate(node.next_functions) if argument in known]
        arguments = [known[node.next_functions[index]] for index in indices]
        chain_A, distance_An = (torch.cat(numbers) for numbers in zip(*arguments, strict=True))
        of, by, factor = self._derivatives(result, indices)
        cost = 0 if _copies(of, factor) else 1
        elements, n = self.shapes[result].numel(), distance_An.shape[1]
        chain = torch.zeros(elements).scatter_reduce(0, of, chain_A[by] + cost, "amax")
        of_n = of[:, None].expand(-1, n)
        distance = torch.full((elements, n), torch.inf).scatter_reduce(0, of_n, distance_An[by] + cost, "amin")
        return Elements(chain, distance)

    def _derivatives(self, result: Result, indices: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """∂ result / ∂ arguments where it is not 0: an element, one of the arguments, the derivative.

        The arguments are those of `indices`, side by side. The whole matrix could be too large for the memory.
        """
        shape, row = self.shapes[result], partial(self._row, result, indices)
        probe = torch.rand(shape.numel(), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        probed_A = row(probe.view(shape))
        in_order, order = probe.sort()
        place_A = torch.searchsorted(in_order, probed_A).clamp(max=max(len(probe) - 1, 0))
        by = probed_A.nonzero()[:, 0]
        if not len(by) or bool((in_order[place_A[by]] == probed_A[by]).all()):  # each argument is added to one element
            return order[place_A[by]], by, torch.ones(len(by), dtype=torch.float64)
        found, rows_at_once = [], 1 + _MOST_AT_ONCE // len(probed_A)
        for elements in torch.arange(len(probe)).split(rows_at_once):
            ones = (torch.zeros_like(probe).index_fill(0, element, 1) for element in elements)
            derivatives_EA = torch.stack([row(one.view(shape)) for one in ones])
            of, by = derivatives_EA.nonzero(as_tuple=True)
            found.append((elements[of], by, derivatives_EA[of, by]))
        of, by, factor = (torch.cat(each) for each in zip(*found, strict=True))
        return of, by, factor

    def _row(self, result: Result, indices: list[int], gradient: Tensor) -> Tensor:
        """The gradients of a node's arguments at `indices`, side by side."""
        gradients, arguments = self._backward(result, gradient), result[0].next_functions
        return torch.cat([_flat(gradients[index], self.shapes[arguments[index]]) for index in indices])

    def _backward(self, result: Result, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of a node's arguments for a gradient of one of its results."""
        node, number = result
        of_results = [gradient if i == number else None for i in range(self.results[node])]
        backward = node.apply if hasattr(node, "apply") else node  # apply: of a torch.autograd.Function
        gradients = backward(*of_results)
        return gradients if isinstance(gradients, tuple) else (gradients,)

    def _look(self, states: Tensor) -> None:
        """Find the number of results of every node, and their shapes: a backward pass has a gradient of each."""

        def record(node: Any, gradients: tuple[Tensor | None, ...]) -> None:
            self.results[node] = len(gradients)
            for number, gradient in enumerate(gradients):
                if gradient is not None:
                    self.shapes[node, number] = gradient.shape

        hooks = [node.register_prehook(partial(record, node)) for node in self.nodes]
        states.backward(torch.ones_like(states), retain_graph=True)
        for hook in hooks:
            hook.remove()


def _flat(gradient: Tensor | None, shape: torch.Size) -> Tensor:
    """A gradient as a vector, summed where the argument was broadcast."""
    if gradient is None:
        return torch.zeros(shape.numel(), dtype=torch.float64)
    return gradient.sum_to_size(shape).flatten()


def _copies(of: Tensor, factor: Tensor) -> bool:
    """Whether each result is a copy of one argument, or 0, by `_derivatives`."""
    return bool((factor == 1).all()) and len(of.unique()) == len(of)


def _in_order(root: Any) -> list[Any]:
    """All nodes below a node and the node itself, each after its arguments."""
    order: dict[Any, None] = {}
    waiting = [(root, False)]
    while waiting:
        node, is_ready = waiting.pop()
        if node is None or node in order:
            continue
        if is_ready:
            order[node] = None
        else:
            waiting += [(node, True), *((argument, False) for argument, _ in node.next_functions)]
    return list(order)
