"""Counts the rows of the modification study, beside the published numbers.

The study's Ops column is the multiply-accumulates of one forward pass of a batch, as its library executed them. Ours
differ where the library used matrix products for operations that are look-ups here, and in a few cases the reverse.
Each such difference is one term below, computed from the model's parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from sixfold.models.build import build
from sixfold.models.count import count
from sixfold.models.model import Model
from sixfold.modifications._shared.factorized import Factors
from sixfold.modifications._shared.synthesizer import SharedDense
from sixfold.modifications.adaptive_input import Clusters
from sixfold.modifications.adaptive_softmax import AdaptiveHead
from sixfold.modifications.evolved import Convolution
from sixfold.modifications.mixture_of_experts import MixtureOfExperts
from sixfold.modifications.product_keys import ProductKeys
from sixfold.modifications.switch import Switch
from sixfold.modifications.weighted import Branches
from sixfold.narang.rows import BATCH, ROWS, SOURCE_LENGTH, TARGET_LENGTH, Row
from sixfold.transformer import TokenEmbedding


def look_ups(model: Model) -> int:
    """The study computed an embedding as the product of a one-hot vector and the table."""

    def numbers(table: nn.Module) -> int:
        return sum(m.weight.numel() for m in table.modules() if isinstance(m, TokenEmbedding | Factors))

    return SOURCE_LENGTH * numbers(model.roles["source"]) + TARGET_LENGTH * numbers(model.roles["target"])


def dispatch(model: Model) -> int:
    """The study moved tokens to the slots of experts, and results back, by products with one-hot matrices."""
    return sum(2 * length * _slots(part) * part.experts.inner.shape[1] for _, part, length in _experts(model))


def slots(model: Model) -> int:
    """The study's experts computed all their slots, full or empty; here they compute the visits of tokens only."""
    total = 0
    for _, part, length in _experts(model):
        visits = 1 if isinstance(part, Switch) else 2
        in_one_expert = part.experts.inner[0].numel() + part.experts.outer[0].numel()
        total += length * (_slots(part) - visits * part.plan.group) * in_one_expert // part.plan.group
    return total


def tails(model: Model) -> int:
    """The study computed the tails of an adaptive softmax for a quarter of the tokens, not for all."""
    left_out = TARGET_LENGTH - -(-TARGET_LENGTH // 4)
    table = model.roles["output"]
    if not isinstance(model.head, AdaptiveHead) or not isinstance(table, Clusters):
        return 0
    return -left_out * sum(p.numel() for cluster in list(table.clusters)[1:] for p in cluster.parameters())


def convolutions(model: Model) -> int:
    """The study did not count convolutions across channels."""
    return -sum(length * part.weight.numel() for _, part, length in _parts(model, Convolution))


def branches(model: Model) -> int:
    """The study applied a shared feed-forward network to each branch; here its second product takes their sum."""
    return sum(
        length * (len(part.kappa) // len(part.outer) - 1) * part.outer.numel()
        for _, part, length in _parts(model, Branches)
    )


def columns(model: Model) -> int:
    """The study's dense Synthesizer scored all positions of its table, not only those of the text."""
    heads = model.sizes.heads
    return sum(
        length * heads * (part.outer.shape[1] - length) * part.outer.shape[2]
        for _, part, length in _parts(model, SharedDense)
    )


def gather(model: Model) -> int:
    """The study read the values of a memory by products with one-hot vectors as long as the memory."""
    return sum(length * p.lookups * p.nearest * p.values.numel() for _, p, length in _parts(model, ProductKeys))


TERMS: tuple[Callable[[Model], int], ...] = (look_ups, dispatch, slots, tails, convolutions, branches, columns, gather)


def _parts(model: Model, kind: type | tuple[type, ...]) -> Iterator[tuple[str, Any, int]]:
    """The parts of a type: name, part, and number of tokens that pass through it."""
    for name, part in model.named_modules():
        if isinstance(part, kind):
            yield name, part, SOURCE_LENGTH if name.startswith("encoder") else TARGET_LENGTH


def _experts(model: Model) -> Iterator[tuple[str, Any, int]]:
    return _parts(model, (MixtureOfExperts, Switch))


def _slots(part: Any) -> int:
    """The slots of all experts together, for one group of tokens."""
    return part.plan.experts * int(part.plan.group * part.plan.capacity / part.plan.experts)


@dataclass(frozen=True)
class Counted:
    """One row: our counts and the published ones. Operations are those of a whole batch."""

    name: str
    parameters: int
    published_parameters: int
    operations: int
    operations_study: int
    published_operations: int
    terms: dict[str, int]


def count_row(row: Row) -> Counted:
    model = build(row.sizes, row.all_modifications, device="meta")
    counted = count(model, SOURCE_LENGTH, TARGET_LENGTH)
    terms = {term.__name__: BATCH * term(model) for term in TERMS}
    operations = BATCH * counted.operations
    return Counted(
        name=row.name,
        parameters=counted.parameters,
        published_parameters=round(row.parameters * 1e6),
        operations=operations,
        operations_study=operations + sum(terms.values()),
        published_operations=round(row.operations * 1e12),
        terms={name: amount for name, amount in terms.items() if amount},
    )


def count_study() -> Iterator[Counted]:
    return map(count_row, ROWS)
