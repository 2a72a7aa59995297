"""The candidates of the task `reward`: outputs of the model, their rewards, and their weights in the gradient.

Letters: S rows, K candidates of all rows, L tokens of the longest, m samples of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from math import exp, fsum
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sixfold.core.batch import Batch
from sixfold.core.ids import BOS, CONTROLS, EOS, PAD, UNK
from sixfold.core.loss import CHUNK
from sixfold.core.memory import Memory
from sixfold.decoding.cpu.step import make_step
from sixfold.decoding.engine import search
from sixfold.decoding.job import Job, Method
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.sample import Sample
from sixfold.decoding.session import never_written
from sixfold.decoding.step import StepFunction, batches_by_length, padded
from sixfold.models.model import evaluating
from sixfold.scoring.gleu import gleu_of_items
from sixfold.scoring.metrics import METRICS
from sixfold.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sixfold.models.encoder_decoder import EncoderDecoder
    from sixfold.tasks.reward import Options

Tokens = tuple[int, ...]  # an output, without BOS and EOS
Reward = Callable[[Sequence[Tokens], Tokens], list[float]]  # outputs for one source, its reference → from 0 to 1 each

_RATIO, _MORE = 2, 10  # limit of an output: this multiple of the reference's tokens, and these tokens more
_TOKENS = 1 << 15  # source tokens, times hypotheses, that are decoded together
_PART = 1 << 11  # tokens of candidates that are read at once: those of similar length, so that little is padding


class SampledPair(NamedTuple):
    """One pair of a batch."""

    source: list[int]  # with EOS
    reference: Tokens
    limit: int  # most tokens of an output
    key: int


class Candidate(NamedTuple):
    """An output, and its weight w: the gradient is −Σ w · ∇log P."""

    tokens: Tokens
    ended: bool  # False: cut at the limit, so that EOS is not part of it
    weight: float

    @property
    def scored(self) -> Tokens:
        return (*self.tokens, EOS) if self.ended else self.tokens


class RowResult(NamedTuple):
    """The candidates of a row that have an effect, and what is reported."""

    candidates: list[Candidate]
    reward: float  # mean of the outputs
    length: float


# Before the forward: search, rewards and weights --------------------------------------------------------------


def with_candidates(model: EncoderDecoder, batch: Batch, options: Options, tokenizer: Tokenizer) -> Batch:
    """The batch with the candidates of its rows. Without dropout and gradient, as `Task.before` is called."""
    rows = rows_of(batch, model.limits.get("decoder"))
    results = weighted(model, rows, options, reward_of(options.metric, tokenizer))
    device = batch.targets.device
    measured = {
        "reward": [result.reward for result in results],
        "sample_length": [result.length for result in results],
        "without_signal": [float(not result.candidates) for result in results],
    }
    numbers = [len(result.candidates) for result in results] or [0]  # [0]: of the row of padding
    return Batch(
        counts={**batch.counts, **dict.fromkeys(measured, len(rows))},
        **batch.fields,
        **{f"row_{name}": torch.tensor(values, device=device) for name, values in measured.items()},
        candidates=torch.tensor(numbers, device=device),
        **arrays([each for result in results for each in result.candidates], device),
    )


def rows_of(batch: Batch, positions: int | None) -> list[SampledPair]:
    """The pairs of a batch. A batch without rows has one row of padding, which is left out."""
    rows = []
    sources, targets, keys = (tensor.tolist() for tensor in (batch.source, batch.targets, batch.get("keys")))
    for source, target, key in zip(sources, targets, keys, strict=True):
        if EOS not in target:
            continue
        reference = tuple(target[: target.index(EOS)])
        limit = _RATIO * len(reference) + _MORE
        limit = limit if positions is None else min(limit, positions - 1)  # BOS takes a position
        rows.append(SampledPair([id_ for id_ in source if id_ != PAD], reference, limit, key % (1 << 64)))
    return rows


def weighted(model: EncoderDecoder, rows: Sequence[SampledPair], options: Options, reward: Reward) -> list[RowResult]:
    """Search, and weigh the outputs of each row by the method of the options."""
    step, m = make_step(model), options.samples
    if options.method == "risk":
        drawn = decoded(step, rows, Sample(m) if options.candidates == "sampled" else Beam(m, n_best=m))
        sets = [distinct(row, found, options.reference) for row, found in zip(rows, drawn, strict=True)]
        likelihoods = log_likelihoods(model, rows, sets)
        weigh = partial(_by_risk, alpha=options.alpha)
        return [weigh(*each, reward) for each in zip(rows, drawn, sets, likelihoods, strict=True)]
    drawn = decoded(step, rows, Sample(m))
    if options.method == "self_critical":
        greedy = [found[0] for found in decoded(step, rows, Greedy())]
        return [_by_greedy(*each, reward) for each in zip(rows, drawn, greedy, strict=True)]
    return [_by_mean(row, found, reward) for row, found in zip(rows, drawn, strict=True)]


def decoded(step: StepFunction, rows: Sequence[SampledPair], method: Method) -> list[list[Tokens]]:
    """For each row the outputs of a search; PAD is the only word that is never chosen."""
    jobs = [Job(source=row.source, limit=row.limit, seed=row.key, tag=index) for index, row in enumerate(rows)]
    outputs: list[list[Tokens]] = [[] for _ in rows]
    for job, found in search(step, jobs, method, never=(PAD,), batch_tokens=_TOKENS):
        outputs[job.tag] = [hypothesis.tokens for hypothesis in found]
    return outputs


def distinct(row: SampledPair, outputs: Iterable[Tokens], reference: bool) -> list[Tokens]:
    """Each output once, and the reference, if it is wanted and within the limit."""
    own = [row.reference] if reference and len(row.reference) < row.limit else []
    return list(dict.fromkeys([*own, *outputs]))


def _by_mean(row: SampledPair, outputs: Sequence[Tokens], reward: Reward) -> RowResult:
    """(r − r̄)/(m − 1), which is (r − mean of the others)/m"""
    rewards = reward(outputs, row.reference)
    mean = fsum(rewards) / len(rewards)
    weights = [(r - mean) / (len(outputs) - 1) for r in rewards]
    return _result(row, outputs, rewards, outputs, weights if len(set(rewards)) > 1 else [])


def _by_greedy(row: SampledPair, outputs: Sequence[Tokens], greedy: Tokens, reward: Reward) -> RowResult:
    """(r − r of the greedy output)/m"""
    *rewards, baseline = reward([*outputs, greedy], row.reference)
    return _result(row, outputs, rewards, outputs, [(r - baseline) / len(outputs) for r in rewards])


def _by_risk(
    row: SampledPair,
    outputs: Sequence[Tokens],
    chosen: Sequence[Tokens],
    log_p: Sequence[float],
    reward: Reward,
    *,
    alpha: float,
) -> RowResult:
    """Q (r − E_Q r), with Q ∝ P^α over the chosen outputs"""
    rewards = dict(zip(chosen, reward(chosen, row.reference), strict=True))
    highest = max(log_p)
    shares = [exp(alpha * (each - highest)) for each in log_p]
    q = [share / fsum(shares) for share in shares]
    mean = fsum(share * rewards[tokens] for share, tokens in zip(q, chosen, strict=True))
    weights = [share * (rewards[tokens] - mean) for share, tokens in zip(q, chosen, strict=True)]
    of_outputs = [rewards[tokens] for tokens in outputs]
    return _result(row, outputs, of_outputs, chosen, weights if len(set(rewards.values())) > 1 else [])


def _result(
    row: SampledPair,
    outputs: Sequence[Tokens],
    rewards: Sequence[float],
    chosen: Sequence[Tokens],
    weights: Sequence[float],
) -> RowResult:
    """Equal candidates become one, and those of weight 0 are left out: they have no gradient."""
    total: Counter[Any] = Counter()
    for tokens, weight in zip(chosen, weights, strict=False):
        total[tokens] += weight  # type: ignore[assignment]
    candidates = [Candidate(tokens, len(tokens) < row.limit, weight) for tokens, weight in total.items() if weight]
    return RowResult(candidates, fsum(rewards) / len(rewards), sum(map(len, outputs)) / len(outputs))


# Rewards ------------------------------------------------------------------------------------------------------


def reward_of(name: str, tokenizer: Tokenizer) -> Reward:
    """The reward by a metric: GLEU of the pieces, the other metrics of the texts.

    An error rate e becomes 1 − e, at least 0. An output with a token that is never written has the reward 0.
    """
    impossible = set(never_written(tokenizer))
    score = _gleu_of_pieces if name == "gleu" else partial(_score_of_texts, name, tokenizer)

    def reward(outputs: Sequence[Tokens], reference: Tokens) -> list[float]:
        each = dict.fromkeys(outputs, 0.0)
        possible = [tokens for tokens in each if impossible.isdisjoint(tokens)]
        each.update(zip(possible, score(possible, reference), strict=True))
        return [each[tokens] for tokens in outputs]

    return reward


def _gleu_of_pieces(outputs: Sequence[Tokens], reference: Tokens) -> list[float]:
    """An unknown word matches nothing."""
    readable = [[None if id_ == UNK else id_ for id_ in tokens] for tokens in outputs]
    return [gleu_of_items(tokens, reference) for tokens in readable]


def _score_of_texts(name: str, tokenizer: Tokenizer, outputs: Sequence[Tokens], reference: Tokens) -> list[float]:
    if not outputs:
        return []
    metric, right = METRICS[name], tokenizer.decode(reference)
    texts = [_text(tokenizer, tokens) for tokens in outputs]
    scores = [metric.total([row]) / 100 for row in metric.statistics(texts, [(right,)] * len(texts))]
    return scores if metric.higher_is_better else [max(1 - score, 0.0) for score in scores]


def _text(tokenizer: Tokenizer, tokens: Tokens) -> str:
    """The text of an output, with <unk> for an unknown word."""
    if UNK not in tokens:
        return tokenizer.decode(tokens)
    return " ".join(CONTROLS[UNK] if id_ == UNK else tokenizer.decode([id_]) for id_ in tokens)


# In the forward: the candidates' log-probabilities ------------------------------------------------------------


def arrays(candidates: Sequence[Candidate], device: torch.device) -> dict[str, Tensor]:
    """The candidates of all rows (K, L), as a decoder reads and scores them."""
    read, scored = [[BOS, *each.scored[:-1]] for each in candidates], [each.scored for each in candidates]
    weights = torch.zeros(len(candidates), max(map(len, scored), default=1), device=device)
    for row, each in zip(weights, candidates, strict=True):
        row[: len(each.scored)] = each.weight
    empty = torch.zeros(0, 1, dtype=torch.long, device=device)
    return {
        "candidate_inputs": padded(read, device) if candidates else empty,
        "candidate_targets": padded(scored, device) if candidates else empty,
        "candidate_weights": weights,
    }


def candidate_loss(model: EncoderDecoder, batch: Batch, recompute: bool) -> Tensor:
    """−Σ w · log P over the candidates of a batch, without dropout."""
    inputs, targets, weights = (batch.get(f"candidate_{name}") for name in ("inputs", "targets", "weights"))
    total = weights.new_zeros(())
    if not len(inputs):
        return total
    row_K = _rows_of(batch.get("candidates"))
    lengths = [(length,) for length in (weights != 0).sum(1).tolist()]
    read: Callable[..., Tensor] = _recomputed if recompute else _states
    with evaluating(model):
        memory = model.encode(batch.source)
        for part in batches_by_length(lengths, _PART):
            of, longest = torch.tensor(part, device=inputs.device), lengths[part[0]][0]
            x = read(model, memory, row_K[of], inputs[of, :longest])
            own = Batch(targets=targets[of, :longest], weights=weights[of, :longest])
            total = total + model.score_words(x, own, 0.0).sum
    return total


def _rows_of(numbers: Tensor) -> Tensor:
    """The row of each candidate (K,), for the number of candidates of each row (S,)."""
    return torch.arange(len(numbers), device=numbers.device).repeat_interleave(numbers)


def _states(model: EncoderDecoder, memory: Memory, rows: Tensor, inputs: Tensor) -> Tensor:
    return model.decode(inputs, memory.select(rows))


def _recomputed(model: EncoderDecoder, memory: Memory, rows: Tensor, inputs: Tensor) -> Tensor:
    """The same; the activations are not kept, but computed again in the backward pass, again without dropout."""
    return checkpoint(
        _states,
        model,
        memory,
        rows,
        inputs,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), evaluating(model)),
    )


def log_likelihoods(model: Any, rows: Sequence[SampledPair], sets: Sequence[Sequence[Tokens]]) -> list[list[float]]:
    """log P of each candidate of each row, by the same pass as the loss."""
    device = next(model.parameters()).device
    pairs = ((row, tokens) for row, own in zip(rows, sets, strict=True) for tokens in own)
    every = [Candidate(tokens, len(tokens) < row.limit, 1.0) for row, tokens in pairs]
    if not every:
        return []
    fields, lengths = arrays(every, device), [(len(each.scored),) for each in every]
    inputs, targets, real = (fields[f"candidate_{name}"] for name in ("inputs", "targets", "weights"))
    row_K = _rows_of(torch.tensor([len(own) for own in sets], device=device))
    memory, found = model.encode(padded([row.source for row in rows], device)), torch.zeros(len(every)).double()
    for part in batches_by_length(lengths, _PART):
        of, longest = torch.tensor(part, device=device), lengths[part[0]][0]
        x, words = _states(model, memory, row_K[of], inputs[of, :longest]), targets[of, :longest]
        chunks = zip(x.flatten(0, 1).split(CHUNK), words.flatten().split(CHUNK), strict=True)
        log_p = torch.cat([model.log_probs(xs).gather(1, ws[:, None])[:, 0] for xs, ws in chunks])  # (c, V) at a time
        found[part] = (log_p.double().view(words.shape) * real[of, :longest]).sum(1).cpu()
    sums = iter(found.tolist())
    return [[next(sums) for _ in own] for own in sets]
