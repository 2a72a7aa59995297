"""Checks of training: dropout acts where it should, every parameter learns, and the gradient is a sum over rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sixfold.core.batch import Batch
from sixfold.core.ids import BOS
from sixfold.verify.contract.check import Broken, check, need_same
from sixfold.verify.contract.subject import Subject, batch_of, random_ids, random_rows, seeded, states_of

_FEWEST_DROPPED = 0.25  # of the numbers, at a rate of a half
_SUBLAYERS = ("attention", "cross", "feed_forward")  # their names in a layer
_STEPS = 300
_EXACTLY = 1e-12


# Dropout ---------------------------------------------------------------------------------------------------


@dataclass
class _Output:
    """The output of a module, and torch's random state at that time."""

    name: str
    y: Tensor
    state: Tensor
    drawn: bool = False  # whether random numbers were drawn before the next of these modules began


@contextmanager
def _outputs(modules: dict[str, nn.Module]) -> Iterator[list[_Output]]:
    """A list of the outputs (B, L, D) of these modules, in the order in which they are computed.

    Outputs of another shape are left out: a recurrent layer calls its attention for one token at a time.
    """
    found: list[_Output] = []

    def look_back(*_: Any) -> None:
        if found:
            found[-1].drawn = not torch.equal(found[-1].state, torch.get_rng_state())

    def note(name: str, y: Any) -> None:
        if isinstance(y, Tensor) and y.dim() == 3:
            found.append(_Output(name, y, torch.get_rng_state()))

    hooks = [module.register_forward_pre_hook(look_back) for module in modules.values()]
    hooks += [module.register_forward_hook(lambda _, x, y, n=name: note(n, y)) for name, module in modules.items()]
    try:
        yield found
        look_back()
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    model.train()
    try:
        yield
    finally:
        model.eval()


def _sublayers(model: nn.Module) -> dict[str, nn.Module]:
    """The sub-layers of all layers, without those inside others."""
    found: dict[str, nn.Module] = {}
    for name, part in model.named_modules():
        if name.rpartition(".")[2] in _SUBLAYERS and not any(name.startswith(f"{outer}.") for outer in found):
            found[name] = part
    return found


@check(
    "a residual applies Dropout(spec.sizes.dropout) of sixfold.core.dropout to the output y of its sub-layer, and an "
    "input to the embeddings"
)
def dropout(subject: Subject) -> None:
    """In training, dropout acts on the embeddings and on the output of each sub-layer, as in the plain model.

    A number that dropout sets to zero has no gradient. If another
    operation lies between the output and its dropout, torch's random state shows that dropout was applied: it has
    changed before the next sub-layer begins.
    """
    model = subject.dropping
    tables = {f"the table {role!r}": table for role, table in model.roles.items() if role != "output"}
    with torch.random.fork_rng([]), _training(model), _outputs({**tables, **_sublayers(model)}) as found:
        torch.manual_seed(1)
        states = states_of(model, random_ids(2, 6, seeded(1)), source=random_ids(2, 6, seeded(2)))
    direction = torch.randn(states.shape, dtype=states.dtype, generator=seeded(3))
    gradients = torch.autograd.grad(states, [each.y for each in found], direction)
    for each, gradient in zip(found, gradients, strict=True):
        if not each.drawn and (gradient == 0).double().mean() < _FEWEST_DROPPED:
            raise Broken(f"no dropout acts on the output of {each.name}")


@check("dropout and other noise act only if self.training: use Dropout of sixfold.core.dropout")
@torch.no_grad()
def no_chance_in_evaluation(subject: Subject) -> None:
    """In evaluation mode there is no dropout, and nothing is random."""
    model, ids, states = subject.dropping, random_ids(2, 6, seeded(1)), []
    for seed in (1, 2):
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            states.append(states_of(model, ids))
    if not torch.equal(*states):
        raise Broken("two passes with different seeds give different states")


# Gradients -------------------------------------------------------------------------------------------------


@check("a parameter that is never used, or only behind .detach() or a comparison, can't learn: remove it")
def every_parameter_learns(subject: Subject) -> None:
    """Gradients reach every parameter.

    A parameter that holds all experts of a part needs a gradient for at least one of them, since some may get no
    token; the same holds for the slots of a memory.
    """
    model: Any = subject.moved().train()
    generator = seeded(10)
    losses = model(batch_of(model, random_rows([13] * 8, generator), random_rows([12] * 8, generator)))
    (losses.sum + losses.auxiliary).backward()
    for name, p in model.named_parameters():
        if p.requires_grad and (p.grad is None or not bool((p.grad != 0).any())):
            raise Broken(f"no gradient reaches {name}")


def gradients(model: Any, batch: Batch, auxiliary: bool = False, **rest: Any) -> list[Tensor]:
    """The loss and its gradient for each parameter."""
    model.zero_grad()
    with torch.random.fork_rng([]):
        torch.manual_seed(10)
        losses = model(batch, **rest)
        total = losses.sum + losses.auxiliary if auxiliary else losses.sum
        total.backward()
    return [total.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters())]


def _need_same(got: list[Tensor], expected: list[Tensor], model: Any, what: str, **rest: float) -> None:
    names = ["the loss", *(f"the gradient of {name}" for name, _ in model.named_parameters())]
    for name, one, other in zip(names, got, expected, strict=True):
        need_same(one, other, f"{name} {what}", **rest)


@check(
    "a part may not keep results of one pass for the next (self.last = …): a layer is run twice when it is recomputed",
    rate=(0.0, 0.3),
)
def recomputing(subject: Subject, rate: float) -> None:
    """Layers that are recomputed in the backward pass give the same gradients."""
    model, generator = subject.moved(dropout=rate).train(), seeded(11)
    batch = batch_of(model, random_rows((6, 3), generator), random_rows((2, 5), generator))
    again, once = (gradients(model, batch, True, recompute=recompute) for recompute in (True, False))
    _need_same(again, once, model, "is another when layers are recomputed", within=_EXACTLY)


@check("the loss of a row may not depend on the other rows, nor on padding (call.real)", smoothing=(0.0, 0.1))
def loss_by_rows(subject: Subject, smoothing: float) -> None:
    """The loss of a batch, and its gradients, are the sums over its rows."""
    model, generator = subject.moved(), seeded(12)
    rows, sources = random_rows((6, 3, 4), generator), random_rows((2, 5, 3), generator)
    together = gradients(model, batch_of(model, rows, sources), smoothing=smoothing)
    apart = [
        gradients(model, batch_of(model, [row], [source]), smoothing=smoothing)
        for row, source in zip(rows, sources, strict=True)
    ]
    sums = [torch.stack(each).sum(0) for each in zip(*apart, strict=True)]
    _need_same(together, sums, model, "of a batch is not the sum over its rows")
    counted = len(rows) if model.sizes.classes else sum(len(row) - model.writes_text for row in rows)
    assert model(batch_of(model, rows, sources)).tokens == counted, "the loss counts real tokens, or texts"


# Learning --------------------------------------------------------------------------------------------------


@check("look at the losses of a short training, with a smaller rate, or without the part", slow=True)
def copying(subject: Subject) -> str | None:
    """It learns to copy 32 texts of six words; with an encoder's memory, by reading that."""
    if subject.sizes.classes:
        return "it predicts classes"
    double = {name: 2 * getattr(subject.sizes, name) for name in ("d_model", "d_ff", "heads")}
    model: Any = subject.fresh(dtype=torch.float32, **double, d_head=0)
    words = random_ids(32, 6, seeded(5))
    begun = torch.cat([torch.full((32, 1), BOS), words[:, :-1]], 1)
    data = Batch(source=words, inputs=begun, targets=words) if model.writes_text else Batch(source=words, targets=words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98))
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        for step in range(_STEPS):
            model.train()
            losses = model(data)
            (losses.sum / losses.tokens + losses.auxiliary).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            model.after_step(step, _STEPS)
            if step % 10 == 9 and _copies(model, data):
                return None
    raise Broken(f"it did not learn to copy in {_STEPS} steps")


@torch.no_grad()
def _copies(model: Any, data: Batch) -> bool:
    """Whether the loss is below a third of guessing; with an encoder, of the loss with its memory zeroed."""
    model.eval()
    if not model.reads_source:
        losses = model(data)
        return bool(losses.sum / losses.tokens < torch.tensor(model.sizes.vocabulary("decoder")).log() / 3)
    memory = model.encode(data.source)
    blind = memory._replace(
        states=tuple(torch.zeros_like(states) for states in memory.states),
        tokens={name: torch.zeros_like(values) for name, values in memory.tokens.items()},
        sentences={name: torch.zeros_like(values) for name, values in memory.sentences.items()},
    )
    read, unread = (
        model.head.loss(model.decode(data.inputs, each), model.roles["output"], data.targets)[0]
        for each in (memory, blind)
    )
    return bool(read < unread / 3)
