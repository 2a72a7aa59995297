"""Fixup, as Narang et al. (2021) ran it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sixfold.modifications.fixup import added, begin, fixup
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import CrossAttention


@modification("2102.11972", adds=added)
def fixup_study(spec: Spec) -> Spec:
    """`fixup` as Narang et al. (2021) ran it: cross-attention keeps its usual initialisation.

    Parameters: those of `fixup`.
    """
    return replace(fixup(spec), init=partial(begin, but_for=(CrossAttention,)))
