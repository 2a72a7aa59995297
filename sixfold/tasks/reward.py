"""The task `reward`: a trained model goes on with its own outputs, so that a metric values them more.

For a source X with the reference Y*, the reward r(Y) of an output Y is a metric of this one text, from 0 to 1. The
gradient of all three methods is a sum over candidates Y, with log P(Y | X) = Σ_t log p(y_t | y_<t, X), EOS included:

    −Σ_Y w(Y) · ∇log P(Y | X)

    expected        maximises E_{Y∼P} r(Y). Y_1 … Y_m are samples, and the baseline of each is the mean reward of the
                    others:  w(Y_s) = (r_s − r̄)/(m − 1)                                           arXiv 1609.08144
    self_critical   the same expectation; the baseline is the reward of the greedy output Ŷ:
                    w(Y_s) = (r_s − r(Ŷ))/m                                                        arXiv 1612.00563
    risk            maximises Σ_{Y∈S} Q(Y) r(Y) / α, Q ∝ P(Y | X)^α, over a set S of different candidates and the
                    reference:  w(Y) = Q(Y) (r(Y) − E_Q r)                                         arXiv 1512.02433

The first is the estimator of 1609.08144 times m/(m − 1), and so unbiased. The likelihood of the reference is added,
times `likelihood` (α of 1609.08144), with dropout and label smoothing. Candidates are drawn and read without dropout.

A candidate that is cut at the length limit has its reward, but no term for EOS. One with a token that is never written,
such as BOS, has the reward 0. The random numbers of a sample follow from the key of its row and its number alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sixfold.core.batch import Batch, Term
from sixfold.core.names import unknown
from sixfold.scoring.names import TEXT_METRICS
from sixfold.tasks._words import word_losses
from sixfold.tasks.task import register
from sixfold.tasks.translation import collate as collate_pairs
from sixfold.tasks.translation import task as translation
from sixfold.text.rows import Rows

if TYPE_CHECKING:
    from sixfold.models.encoder_decoder import EncoderDecoder
    from sixfold.text.tokenizer import Tokenizers

REWARDS = tuple(metric for metric in TEXT_METRICS if metric != "bleu")  # BLEU of one text is usually 0
MEASURES = ("reward", "sample_length", "without_signal")
_MOST_SAMPLES = 1000


@dataclass(frozen=True)
class Options:
    """The reward, and how its gradient is estimated."""

    metric: str = "gleu"
    method: Literal["expected", "risk", "self_critical"] = "expected"
    samples: int = 15  # m, of each row
    likelihood: float = 0.017  # weight of the likelihood of the reference
    alpha: float = 0.005  # risk: how much Q follows P
    candidates: Literal["sampled", "best"] = "sampled"  # risk: sampled, or the best of a beam search
    reference: bool = True  # risk: whether the reference is a candidate, too

    def __post_init__(self) -> None:
        if self.metric not in REWARDS:
            instead = "; for single texts there is sentence_bleu" if self.metric == "bleu" else ""
            raise ValueError(f"{unknown('reward', self.metric, REWARDS)}{instead}")
        fewest = 1 if self.method == "self_critical" else 2
        if not fewest <= self.samples <= _MOST_SAMPLES:
            why = "" if fewest == 1 else ": a candidate is compared with the others"
            raise ValueError(
                f"samples is a number from {fewest} to {_MOST_SAMPLES:,} for the method {self.method}{why}; "
                f"got {self.samples}"
            )
        if not 0 <= self.likelihood <= 100:
            raise ValueError(f"likelihood is a weight from 0 to 100, got {self.likelihood:g}")
        if not 0 < self.alpha <= 10:
            raise ValueError(f"alpha is an exponent above 0, at most 10, got {self.alpha:g}")
        if self.candidates == "best" and self.method != "risk":
            raise ValueError(f"candidates=best is for method=risk: the method {self.method} needs samples")


def collate(rows: Rows, _: Any) -> Batch:
    """Pairs, with the random key of each row."""
    import torch

    batch = collate_pairs(rows, None)
    keys = torch.from_numpy(rows.keys[:, 0].view("int64")) if len(rows.index) else torch.zeros(1, dtype=torch.int64)
    return batch.replaced(keys=keys)


def before(
    model: EncoderDecoder, batch: Batch, key: tuple[int, ...], options: Options, tokenizers: Tokenizers
) -> Batch:
    """Add candidates and their weights. `key` is not used: the rows have their own."""
    from sixfold.tasks._candidates import with_candidates

    return with_candidates(model, batch, options, tokenizers.target)


def losses(
    model: EncoderDecoder, batch: Batch, smoothing: float = 0.0, recompute: bool = False, *, options: Options
) -> dict[str, Term]:
    """The gradient of the objective is in the term `reward`, a sum over rows; the loss of words is only reported."""
    terms = word_losses(model, batch, smoothing, recompute)
    if batch.get("candidates") is None:  # in validation
        return terms
    from sixfold.tasks._candidates import candidate_loss

    words = terms["words"]
    zero = words.shown.new_zeros(())
    objective = options.likelihood * words.sum + candidate_loss(model, batch, recompute)
    measured = {name: Term(zero, batch.get(f"row_{name}").sum()) for name in MEASURES}
    return {
        **terms,
        **measured,
        "words": Term(zero, words.shown),
        "reward": measured["reward"]._replace(sum=objective),
    }


task = register(
    replace(
        translation,
        name="reward",
        about="Improve a trained translation model by a metric of its own outputs.",
        options=Options(),
        collate=collate,
        before=before,
        losses=losses,
        measures=MEASURES,
        maximised="reward",
        trained=True,
        searches=True,
        work=lambda options: 1.0 + 0.65 * options.samples,  # measured with 8: benchmarks/README.md
        metric_of=lambda options: options.metric,
        drift=0.15,
    )
)
