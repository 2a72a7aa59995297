"""The trace of a search: the candidates that each step compared, and whether they were kept.

Each step compares candidates: a token after a hypothesis. Some are kept and are the hypotheses of the next step, some
end, and the others are cut. Here is a beam of 2: on the left the parent of each candidate, on the right its fate, and
for those kept the index by which the next step names them as parents:

    step 0                      step 1                         step 2
    0 ──▶ the   kept as 0       0 ──▶ the cat   kept as 0      0 ──▶ the cat EOS   ended
    0 ──▶ a     kept as 1       1 ──▶ a cat     kept as 1      1 ──▶ a cat sat     kept as 0
    0 ──▶ one   cut             0 ──▶ the EOS   cut            …

A job asks for it (`Job(trace=True)`), and its ticket holds it (`ticket.trace`). The trace does not change the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sixfold.core.ids import EOS
from sixfold.core.tap import Tap

Fate = Literal["kept", "ended", "stopped", "cut"]


@dataclass(frozen=True, slots=True)
class TracedCandidate:
    """A token after a hypothesis, compared with others in one step."""

    parent: int  # index of the hypothesis that it continues: `index` of a candidate that the step before kept
    token: int
    log_prob: float  # the model's own log-probability of the token
    total: float  # rank of the hypothesis with this token: the sum of its log-probabilities, after rules
    fate: Fate  # "kept", "ended" by EOS, "stopped": ended because the limit allowed only EOS, or "cut"
    index: int | None = None  # if kept: the index of the hypothesis in the next step


@dataclass
class TraceStep:
    """One step of a sentence."""

    candidates: list[TracedCandidate]  # in the order in which the method compared them
    tap: Tap | None = None  # tensors collected by the session's tap; row i is that of the candidates with parent i

    @property
    def kept(self) -> list[TracedCandidate]:
        return [each for each in self.candidates if each.fate == "kept"]

    @property
    def ended(self) -> list[TracedCandidate]:
        """Those that ended a hypothesis, by EOS or at the limit."""
        return [each for each in self.candidates if each.fate in ("ended", "stopped")]

    @property
    def cut(self) -> list[TracedCandidate]:
        return [each for each in self.candidates if each.fate == "cut"]


@dataclass
class Trace:
    """All steps of one sentence."""

    steps: list[TraceStep] = field(default_factory=list)

    def path(self, tokens: Sequence[int]) -> list[TracedCandidate]:
        """The candidates that became an output, one for each of its tokens and one for EOS.

        If several hypotheses ended with these tokens, as groups of a beam and samples may, it is the one of best total.
        """
        paths = (self._before(len(tokens), last) for last in self._last(len(tokens)))
        same = [path for path in paths if tuple(each.token for each in path) == (*tokens, EOS)]
        if not same:
            raise ValueError(f"no hypothesis of this search ended with the tokens {[*tokens]}")
        return max(same, key=lambda path: path[-1].total)

    def _last(self, step: int) -> list[TracedCandidate]:
        return self.steps[step].ended if step < len(self.steps) else []

    def _before(self, step: int, candidate: TracedCandidate) -> list[TracedCandidate]:
        """The candidates from the first step to this one."""
        path = [candidate]
        for earlier in reversed(self.steps[:step]):
            path.append(next(each for each in earlier.kept if each.index == path[-1].parent))
        return path[::-1]
