"""Writes a model as programs of `torch.export`, which run without this package: encoder.pt2 and step.pt2.

    encoder.pt2   source (B, n)                    →  mask (B, n), kept …
    step.pt2      ids (B, L), mask, kept, past     →  log p (B, V), past …

plain_cache.py explains these tensors. The number of rows, the lengths and the past are dynamic. For a decoder-only
model, there is only step.pt2; its mask is None, and `kept` is empty.

The files hold weights as plain bytes; the example inputs, which torch would pickle, are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sixfold.core.ids import BOS, EOS
from sixfold.core.parts import declared
from sixfold.decoding.step import padded
from sixfold.foreign.plain_cache import Layout, SourceProgram, StepProgram, read
from sixfold.models.model import Model

ENCODER, STEP = "encoder.pt2", "step.pt2"
_ROWS, _LONGEST = 1 << 16, 1 << 20  # upper bounds of the dynamic sizes: rows of a batch, tokens of a text


def write(model: Model, folder: Path) -> Layout:
    """Fill `folder` with the programs; a ValueError names the modifications if torch can't export the model."""
    if not model.writes_text:
        raise ValueError(f"a model of kind {model.kind} writes no text, and has no step to export")
    for part in model.modules():
        if why := declared(part).not_exported:
            raise ValueError(f"{_modifications(model)} can't be exported to torch: {why} ({type(part).__name__})")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about torch's own code, which a user can't change
        layout = Layout.of(model)
        real, kept = None, list[Tensor]()
        if model.reads_source:
            source = padded([[BOS] * 5, [BOS] * 4], torch.device("cpu"))
            _save(model, lambda: _encoder(model, layout, source), folder / ENCODER)
            real, *kept = SourceProgram(model, layout)(source)
        _save(model, lambda: _step(model, layout, real, kept), folder / STEP)
    return layout


def _encoder(model: Model, layout: Layout, source: Tensor) -> ExportedProgram:
    rows, length = Dim("rows", min=1, max=_ROWS), Dim("source", min=1, max=_limit(model, "encoder"))
    return torch.export.export(SourceProgram(model, layout), (source,), dynamic_shapes=({0: rows, 1: length},))


def _step(model: Any, layout: Layout, real: Tensor | None, kept: list[Tensor]) -> ExportedProgram:
    """Export the step by an example: two rows that have read 4 tokens and now read 3 more.

    The states are contiguous: from a view of a longer tensor, torch would derive a condition on the length.
    """
    limit = _limit(model, "only" if real is None else "decoder")
    rows, new = Dim("rows", min=1, max=_ROWS), Dim("new", min=1, max=limit)
    before, source = Dim("past", min=0, max=limit), Dim("source", min=1, max=_LONGEST)
    memory = None if real is None else model.encode(padded([[BOS] * 5, [BOS] * 4], torch.device("cpu")))
    _, cache = read(model, torch.full((2, 4), BOS), memory)
    past, growing = [state.contiguous() for state in layout.past_of(cache)], sum(number for _, number in layout.grown)
    kept = [state.contiguous() for state in kept]
    shapes = (
        {0: rows, 1: new},
        None if real is None else {0: rows, 1: source},
        [{0: rows, state.dim() - 2: source} for state in kept],
        [{0: rows, state.dim() - 2: before} if i < growing else {0: rows} for i, state in enumerate(past)],
    )
    return torch.export.export(
        StepProgram(model, layout), (torch.full((2, 3), BOS), real, kept, past), dynamic_shapes=shapes
    )


def _limit(model: Model, stack: str) -> int:
    """The largest number of tokens that a stack can read."""
    return model.limits.get(stack, _LONGEST)


def _modifications(model: Model) -> str:
    return ", ".join(each.name for each in model.assembly.modifications) or "this model"


def _save(model: Model, make: Callable[[], ExportedProgram], path: Path) -> None:
    try:
        program = make()
    except Exception as error:  # torch raises many types of errors; the message names the line it could not trace
        first = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{_modifications(model)} can't be exported to torch: torch.export reports {first!r:.200}"
        ) from None
    _leave_out_unused(program)
    program.example_inputs = None
    torch.export.save(program, path)


def _leave_out_unused(program: ExportedProgram) -> None:
    """Remove operations that lead to no output, and replace unused weights, such as the decoder's in the encoder's
    program, by a single expanded zero."""
    graph = program.graph_module.graph
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    program.graph_module.recompile()
    read = {node.name for node in graph.find_nodes(op="placeholder") if node.users}
    for spec in program.graph_signature.input_specs:
        if spec.target is not None and spec.arg.name not in read and spec.target in program.state_dict:
            unused = program.state_dict[spec.target]
            program.state_dict[spec.target] = nn.Parameter(
                unused.new_zeros(1).expand(unused.shape), requires_grad=False
            )


class TorchProgram:
    """Runs the exported programs. `never` are the ids that a text never contains, such as BOS."""

    def __init__(self, folder: Path, model: Model, layout: Layout, never: Sequence[int]):
        load = torch.export.load
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.encoder: Any = load(folder / ENCODER).module() if model.reads_source else None
            self.step: Any = load(folder / STEP).module()
        self.never = list(never)
        self.empty = empty_past(model, layout)

    @torch.no_grad()
    def greedy(self, rows: list[list[int]], limit: int) -> list[list[int]]:
        """The greedy output for each row, without EOS. A row is a source without EOS, or a prompt without BOS."""
        return [self._greedy_output(row, limit) for row in rows]

    @torch.no_grad()
    def log_probs(self, rows: list[list[int]], outputs: list[list[int]]) -> list[list[float]]:
        """The log-probability of each token of each output, and of EOS after it."""
        return [self._log_probs_of(row, output) for row, output in zip(rows, outputs, strict=True)]

    def _greedy_output(self, row: list[int], limit: int) -> list[int]:
        ids, real, kept = self._begin(row)
        output, past = list[int](), self.empty
        while len(output) < limit:
            log_probs, *past = self.step(ids, real, kept, past)
            log_probs[:, self.never] = -torch.inf
            word = int(log_probs[0].argmax())
            if word == EOS:
                break
            output.append(word)
            ids = torch.tensor([[word]])
        return output

    def _log_probs_of(self, row: list[int], output: list[int]) -> list[float]:
        ids, real, kept = self._begin(row)
        found, past = list[float](), self.empty
        for word in (*output, EOS):
            log_probs, *past = self.step(ids, real, kept, past)
            found.append(float(log_probs[0, word]))
            ids = torch.tensor([[word]])
        return found

    def _begin(self, row: list[int]) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """The first ids to read, and the mask and kept states of the source."""
        if self.encoder is None:
            return torch.tensor([[BOS, *row]]), None, []
        real, *kept = self.encoder(torch.tensor([[*row, EOS]]))
        return torch.tensor([[BOS]]), real, kept


def empty_past(model: Any, layout: Layout) -> list[Tensor]:
    """The past before the first token: growing states have no token yet, carried states are zero."""
    memory = model.encode(torch.full((1, 2), BOS)) if model.reads_source else None
    with torch.no_grad():
        _, cache = read(model, torch.full((1, 1), BOS), memory)
    past, growing = layout.past_of(cache), sum(number for _, number in layout.grown)
    return [state.narrow(-2, 0, 0) if i < growing else torch.zeros_like(state) for i, state in enumerate(past)]


def shapes(past: Sequence[Tensor]) -> list[list[int]]:
    return [list(state.shape) for state in past]
