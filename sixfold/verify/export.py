"""The equality exported = original: CTranslate2 with the model's weights writes the same texts."""

from __future__ import annotations

from importlib.util import find_spec

from sixfold.api.load import OpenedRun
from sixfold.core.names import to_install
from sixfold.foreign.agreement import CLOSE
from sixfold.foreign.export import export, refusal
from sixfold.verify.equality import Measured, equality
from sixfold.verify.subject import NotApplicable, VerifiedRun


@equality(
    "export",
    "exported = original",
    left="the model's outputs, greedily",
    right="CTranslate2's outputs with its weights",
    tolerance=CLOSE,
)
def exported(subject: VerifiedRun) -> Measured:
    """Compare texts and log-probabilities. Where texts differ, the gap of foreign/agreement.py counts."""
    texts = [sample.text for sample in subject.samples]
    if reason := refusal(OpenedRun(subject.model, subject.tokenizers, subject.config, subject.task), "ctranslate2"):
        raise NotApplicable(reason)
    if find_spec("ctranslate2") is None:
        raise NotApplicable(f"ctranslate2 is not installed ({to_install('export')})")
    path = subject.scratch / "exported"
    found = export(subject.directory, "ctranslate2", path, lines=len(texts), texts=texts).agreement
    assert found is not None, "there are texts to compare"
    different = found.texts - found.same
    notes = [f"{different} of {found.texts} texts differ, in ties"] if different else []
    if found.as_used is not None and found.as_used.same < found.texts:
        notes.append(f"with the run's settings {found.texts - found.as_used.same} of {found.texts} texts differ")
    return Measured(max(found.gap, found.log_prob), "; ".join(notes))
