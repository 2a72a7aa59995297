"""A classifier that was never trained, and its texts."""

import pytest
import torch

from sixfold.config.schema import Decoding
from sixfold.decoding.classifier import Classifier
from sixfold.models.build import MODELS
from sixfold.spec.assemble import assemble
from sixfold.text.vocabulary import train_tokenizer
from tests.support.small import MODIFICATIONS, moved_model, seeded, small_sizes

LETTERS = train_tokenizer("symbols", ["a b c d e f g h i"], None)
LABELS = ("neg", "neutral", "pos")
TEXTS = ["a b c", "", "i h g f e d c b a", "a", "   ", "c c", "b a d", "f e d c b", "g", "a b c"]


def _classifies(wish):
    try:
        assemble(small_sizes(classes=3), (wish,), MODELS["encoder_only"])
    except ValueError:
        return False
    return True


CLASSIFYING = [wish for wish in MODIFICATIONS if _classifies(wish)]  # modifications of a model with classes


def small_classifier(wishes=(), labels=LABELS, dtype=torch.float64, seed=2, **keys):
    """A model that is sure of something: fresh weights find all classes equally likely."""
    sizes = {"vocab": len(LETTERS), "classes": len(labels)}
    model = moved_model("encoder_only", modifications=wishes, seed=seed, dtype=dtype, **sizes)
    with torch.no_grad():
        noise = torch.randn(model.classifier.weight.shape, generator=seeded(2), dtype=torch.float64)
        model.classifier.weight += noise.to(dtype)
    return Classifier(model, LETTERS, labels, Decoding(**keys))


def assert_same(left, right, within=1e-9):
    for one, other in zip(left, right, strict=True):
        assert (one.label, one.note, one.tokens) == (other.label, other.note, other.tokens)
        assert one.probabilities == pytest.approx(other.probabilities, abs=within)
        assert one.probability == pytest.approx(other.probability, abs=within)
