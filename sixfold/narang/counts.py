"""Counts parameters and operations of the models in the study of Narang et al. (2021), beside the published numbers.

The study's column "Ops" has the multiply-accumulates of one forward pass of a batch, as the study's library executed
them. For a few parts the library executed other operations than this package. Each such difference is one term below:
a function of the model that returns the study's operations minus ours, for one sentence of the batch.
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
from sixfold.narang.rows import BATCH, ROWS, SOURCE_LENGTH, TARGET_LENGTH, StudyRow
from sixfold.transformer import TokenEmbedding


def look_ups(model: Model) -> int:
    """The study computed an embedding as the product of a one-hot vector and the table; here it is a look-up."""

    def weights(table: nn.Module) -> int:
        return sum(m.weight.numel() for m in table.modules() if isinstance(m, TokenEmbedding | Factors))

    return SOURCE_LENGTH * weights(model.roles["source"]) + TARGET_LENGTH * weights(model.roles["target"])


def dispatch(model: Model) -> int:
    """The study moved tokens to the slots of experts, and results back, by products with one-hot matrices."""
    return sum(2 * length * _slots_of_group(part) * part.experts.inner.shape[1] for _, part, length in _experts(model))


def slots(model: Model) -> int:
    """The study computed all slots of its experts, full or empty. Here an expert computes only the tokens it gets."""
    total = 0
    for _, part, length in _experts(model):
        visits = 1 if isinstance(part, Switch) else 2  # experts that compute each token
        in_one_expert = part.experts.inner[0].numel() + part.experts.outer[0].numel()
        total += length * (_slots_of_group(part) - visits * part.plan.group) * in_one_expert // part.plan.group
    return total


def tails(model: Model) -> int:
    """The study computed the tails of an adaptive softmax for a quarter of the tokens; here, for all."""
    left_out = TARGET_LENGTH - -(-TARGET_LENGTH // 4)
    table = model.roles["output"]
    if not isinstance(model.head, AdaptiveHead) or not isinstance(table, Clusters):
        return 0
    return -left_out * sum(p.numel() for cluster in list(table.clusters)[1:] for p in cluster.parameters())


def convolutions(model: Model) -> int:
    """The study did not count convolutions that mix channels; here they are counted."""
    return -sum(length * part.weight.numel() for _, part, length in _parts(model, Convolution))


def branches(model: Model) -> int:
    """The study applied the second matrix of a shared feed-forward to each branch; here, once to the branches' sum."""
    return sum(
        length * (len(part.kappa) // len(part.outer) - 1) * part.outer.numel()
        for _, part, length in _parts(model, Branches)
    )


def columns(model: Model) -> int:
    """The study's dense Synthesizer computed scores for all key positions of its table; here, for those in the text."""
    heads = model.sizes.heads
    return sum(
        length * heads * (part.outer.shape[1] - length) * part.outer.shape[2]
        for _, part, length in _parts(model, SharedDense)
    )


def gather(model: Model) -> int:
    """The study read the values of product keys by products with one-hot vectors; here they are looked up."""
    return sum(length * p.lookups * p.nearest * p.values.numel() for _, p, length in _parts(model, ProductKeys))


TERMS: tuple[Callable[[Model], int], ...] = (look_ups, dispatch, slots, tails, convolutions, branches, columns, gather)


def _parts(model: Model, kind: type | tuple[type, ...]) -> Iterator[tuple[str, Any, int]]:
    """The parts of a type: name, part, and number of tokens that pass through it."""
    for name, part in model.named_modules():
        if isinstance(part, kind):
            yield name, part, SOURCE_LENGTH if name.startswith("encoder") else TARGET_LENGTH


def _experts(model: Model) -> Iterator[tuple[str, Any, int]]:
    return _parts(model, (MixtureOfExperts, Switch))


def _slots_of_group(part: Any) -> int:
    """The slots of all experts together, for one group of tokens."""
    return part.plan.experts * int(part.plan.group * part.plan.capacity / part.plan.experts)


@dataclass(frozen=True)
class Counted:
    """One row: our counts and the published ones. Operations are those of a batch."""

    name: str
    parameters: int
    published_parameters: int
    operations: int
    operations_study: int  # our count plus the terms: the operations as the study counted them
    published_operations: int
    terms: dict[str, int]


def count_row(row: StudyRow) -> Counted:
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
