"""What a token carries besides its id reaches the parts by name; and one vector for a whole text is a part's choice."""

from dataclasses import replace

import pytest
import torch

from sixfold import Batch, Spec, build, modification
from sixfold.core.init import Normal, parameter
from sixfold.core.pooling import MeanPool
from sixfold.spec import registry
from sixfold.transformer import TokenInput
from tests.support.small import assert_close, random_ids, seeded, small_model, small_sizes

SEGMENTS = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])


class SegmentInput(TokenInput):
    """Adds a vector for each token's segment, where there are segments."""

    def __init__(self, spec, place):
        super().__init__(spec, place)
        self.segment = parameter((2, spec.sizes.d_model), Normal(1.0))

    def forward(self, ids, table, call):
        x, call = super().forward(ids, table, call)
        features = call.features or {}
        return (x + self.segment[features["segments"]] if "segments" in features else x), call


class FirstToken(MeanPool):
    def forward(self, x, real):
        return x[:, 0]


@pytest.fixture(autouse=True)
def _parts(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))

    @modification()
    def with_segments(spec: Spec) -> Spec:
        """Tokens have segments."""
        return replace(spec, input=SegmentInput)

    @modification()
    def first_token(spec: Spec) -> Spec:
        """The first token stands for the text."""
        return replace(spec, pool=FirstToken)


def words(batch_seed=1):
    return random_ids(2, 4, seeded(batch_seed))


def segmented(kind):
    """A model, and what it reads: with the segments as given."""
    model = small_model(kind, ["with_segments"])
    fields = {"source": words(1), "inputs": words(2), "targets": words(3)}
    if kind == "decoder_only":
        del fields["source"]
    if kind == "encoder_only":
        del fields["inputs"]
    return model, fields


@pytest.mark.parametrize(
    ("kind", "side"),
    [
        ("encoder_only", "source"),
        ("decoder_only", "inputs"),
        ("encoder_decoder", "source"),
        ("encoder_decoder", "inputs"),
    ],
)
def test_a_feature_reaches_the_input_of_its_own_side(kind, side):
    """Segments change the loss, their vectors have a gradient on this side alone, and vectors of 0 change nothing."""
    model, fields = segmented(kind)
    given = {f"{side}_segments": SEGMENTS}
    plain, with_feature = model(Batch(**fields)).sum, model(Batch(**fields, **given)).sum
    assert (plain - with_feature).abs() > 1e-3
    swapped = model(Batch(**fields, **{f"{side}_segments": 1 - SEGMENTS})).sum
    assert (swapped - with_feature).abs() > 1e-3
    model.zero_grad()
    model(Batch(**fields, **given)).sum.backward()
    reached = {name for name, p in model.named_parameters() if name.endswith("segment") and p.grad is not None}
    assert len(reached) == 1
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("segment"):
                p.zero_()
    assert_close(model(Batch(**fields, **given)).sum, model(Batch(**fields)).sum)


def test_a_field_of_another_name_is_no_feature():
    model, fields = segmented("encoder_only")
    batch = Batch(**fields, segments=SEGMENTS, sources=SEGMENTS)
    assert (batch.features("source"), batch.get("segments") is SEGMENTS) == ({}, True)
    assert_close(model(batch).sum, model(Batch(**fields)).sum)


def test_features_move_with_their_batch():
    batch = Batch(source=words(), source_segments=SEGMENTS, counts={"words": 8}).to(torch.device("meta"))
    assert {name: tensor.device.type for name, tensor in batch.fields.items()} == {
        "source": "meta",
        "source_segments": "meta",
    }
    assert batch.counts == {"words": 8}


@pytest.mark.parametrize("recompute", [False, True])
def test_features_are_there_under_recomputation(recompute):
    model, fields = segmented("encoder_only")
    model.train()
    model(Batch(**fields, source_segments=SEGMENTS), recompute=recompute).sum.backward()
    assert model.input.segment.grad.abs().sum() > 0


def test_the_first_token_may_stand_for_a_text():
    sizes, ids = small_sizes(classes=3), words()
    mean, first = (build(sizes, wishes, "encoder_only", seed=0).double().eval() for wishes in ([], ["first_token"]))
    assert mean.state_dict().keys() == first.state_dict().keys()
    assert all(torch.equal(tensor, first.state_dict()[name]) for name, tensor in mean.state_dict().items())
    assert_close(first.classify(ids), first.classifier(mean.encode(ids)[:, 0]).log_softmax(-1))
    assert_close(mean.classify(ids), mean.classifier(mean.encode(ids).mean(1)).log_softmax(-1))
    assert (mean.classify(ids) - first.classify(ids)).abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["encoder_only", "decoder_only", "encoder_decoder"])
def test_a_pool_that_nothing_reads_is_refused(kind):
    with pytest.raises(ValueError) as error:
        small_model(kind, ["first_token"])
    assert "'first_token'" in str(error.value)
    assert "'pool'" in str(error.value)
