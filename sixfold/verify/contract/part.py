"""`check_part`: checks the contract for a user's modification."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

import sixfold
from sixfold.core.names import unknown
from sixfold.core.place import Sizes
from sixfold.models.build import MODELS
from sixfold.spec.assemble import assemble
from sixfold.spec.registry import Chosen, all_modifications, choose, find
from sixfold.verify.contract import building, looking, reading, running, searching, training
from sixfold.verify.contract.check import Broken, Check
from sixfold.verify.contract.subject import SMALL, Subject, random_ids, seeded, states_of

_MODULES = (building, reading, running, searching, looking, training)
CHECKS: tuple[Check, ...] = tuple(each for m in _MODULES for each in vars(m).values() if isinstance(each, Check))
Status = Literal["pass", "fail", "does not apply"]
BUILT, REFUSED = "built", "refused"  # the check before all others: can the model be built and run?
_BUILD = "a part is built with (spec, place), and called as docs/writing-a-modification.md says for its slot"
_OF_OTHERS = tuple(str(Path(module.__file__ or "").parent) for module in (sixfold, torch))


@dataclass(frozen=True)
class CheckResult:
    """The result of one check in models of one kind."""

    check: str
    kind: str
    result: Status
    note: str = ""  # what was seen, or why there was nothing to check
    promise: str = ""  # what must hold
    advice: str = ""  # what to do where it does not


@dataclass(frozen=True)
class PartReport:
    """The findings of `check_part`; its text has those that failed."""

    part: str
    findings: tuple[CheckResult, ...]

    @property
    def failures(self) -> list[CheckResult]:
        return [each for each in self.findings if each.result == "fail"]

    def by_check(self) -> list[tuple[CheckResult, str]]:
        """The first finding of each check and result, and the kinds of models in which it is the same."""
        found: dict[tuple[str, str], list[CheckResult]] = {}
        for each in self.findings:
            found.setdefault((each.check, each.result), []).append(each)
        return [(several[0], ", ".join(each.kind for each in several)) for several in found.values()]

    def __str__(self) -> str:
        checked = sum(each.result != "does not apply" for each in self.findings)
        if not self.failures:
            return f"{self.part}: all {checked} checks hold"
        lines = [f"{self.part}: {len(self.failures)} of {checked} checks do not hold"]
        for each, kinds in self.by_check():
            if each.result == "fail":
                lines += ["", f"{each.check} ({kinds}): {each.note}"]
                lines += [f"    What must hold: {each.promise}"] if each.promise else []
                lines += [f"    What to do: {each.advice}."] if each.advice else []
        return "\n".join(lines)


def check_part(
    modification: str | Chosen | Callable[..., Any] | Sequence[Any],
    *,
    kinds: Sequence[str] = (),
    sizes: Sizes = SMALL,
    without: Sequence[str] = (),
    quick: bool = True,
    raises: bool = True,
) -> PartReport:
    """Check that a modification keeps the contract of every model. Call it in a test of your own parts.

    >>> def test_my_attention():
    ...     sixfold.check_part("my_attention")

    `modification` is the name of a registered one ("my_attention", "my_attention:window=3"), its function, or a list of
    several that are used together. Small models of each kind are built with it and checked: causality, padding, the
    cache, beams, batches that rows join and leave, taps, gates, positions, dropout, fresh weights, gradients, save and
    load. With `quick=False` it must also learn to copy. A kind that `assemble` refuses is left out, unless `kinds`
    names it. `sizes` are those of the small models; `without` names checks to leave out.

    If checks fail, a ValueError names them and says what to do; with `raises=False` the report is only returned.
    """
    _need_known("check", without, [each.name for each in CHECKS])
    _need_known("model", kinds, MODELS)
    wishes = _entries(modification)
    chosen = [each for each in CHECKS if each.name not in without and not (quick and each.slow)]
    with torch.enable_grad(), torch.random.fork_rng([]), _one_thread(), warnings.catch_warnings():
        torch.manual_seed(0)
        warnings.filterwarnings("ignore", message=".*without a declared distribution")  # `declared_weights` finds them
        findings = [each for kind in kinds or MODELS for each in _in_models(Subject(kind, wishes, sizes), chosen)]
    if kinds or not any(each.result == "pass" for each in findings):
        findings = [replace(each, result="fail") if each.check == REFUSED else each for each in findings]
    report = PartReport(" + ".join(map(str, wishes)), tuple(findings))
    if raises and report.failures:
        raise ValueError(str(report))
    return report


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors are so small that threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _need_known(what: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(unknown(what, name, known))


def _entries(modification: Any) -> tuple[Any, ...]:
    """One or several modifications; a function is replaced by its name."""
    several = modification if isinstance(modification, list | tuple) else [modification]
    return tuple(choose(_named(each)) for each in several)


def _named(modification: Any) -> Any:
    if not callable(modification):
        return modification
    name = getattr(modification, "__name__", repr(modification))
    if name not in all_modifications() or find(name).change is not modification:
        raise ValueError(f"{name} is not registered: put @sixfold.modification() above the function from Spec to Spec")
    return name


def _in_models(subject: Subject, checks: Sequence[Check]) -> Iterator[CheckResult]:
    """The findings of these checks in models of one kind; a single one if the model can't be built or run."""
    try:
        assemble(subject.sizes, subject.modifications, subject.type)
    except ValueError as refusal:
        yield CheckResult(REFUSED, subject.kind, "does not apply", _said(refusal))
        return
    except Exception as error:
        yield CheckResult(BUILT, subject.kind, "fail", f"on the meta device: {_said(error)}", advice=_BUILD)
        return
    try:
        states_of(subject.model, random_ids(2, 4, seeded(1)))
    except Exception as error:
        yield CheckResult(BUILT, subject.kind, "fail", _said(error), advice=_BUILD)
        return
    yield CheckResult(BUILT, subject.kind, "pass")
    yield from (result_of(each, subject) for each in checks if each.concerns(subject.type))


def result_of(check: Check, subject: Subject) -> CheckResult:
    """Check all forms, up to the first that fails."""
    notes = []
    for form in check.forms():
        try:
            notes.append(check(subject, **form))
        except Exception as error:
            where = ", ".join(f"{axis}={value}" for axis, value in form.items())
            note = _said(error) + (f", with {where}" if where else "")
            return CheckResult(check.name, subject.kind, "fail", note, check.promise, check.advice)
    nothing = all(notes)
    result: Status = "does not apply" if nothing else "pass"
    return CheckResult(check.name, subject.kind, result, str(notes[0]) if nothing else "", check.promise, check.advice)


def _said(error: Exception) -> str:
    """An error in one line, with the line of the user's file that raised it."""
    text = (str(error).strip() or type(error).__name__).partition("\n")[0]
    if isinstance(error, Broken):
        return text
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_OF_OTHERS)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{kind}{text}{where}"
