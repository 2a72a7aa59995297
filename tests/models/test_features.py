"""What a token carries besides its id reaches the parts by name; and one vector for a whole text is a part's choice."""

from dataclasses import replace

import pytest
import torch

from sixfold import Batch, Cache, Spec, build, modification
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


def loss_of(model, fields, **features):
    """−Σ log p of the targets, by `encode` and `decode`; features are those of the sides."""
    source, inputs = ({"segments": features[side]} if side in features else None for side in ("source", "inputs"))
    if model.kind == "encoder_only":
        x = model.encode(fields["source"], features=source)
    elif model.kind == "decoder_only":
        x = model.decode(fields["inputs"], features=inputs)
    else:
        x = model.decode(fields["inputs"], model.encode(fields["source"], features=source), features=inputs)
    return -model.log_probs(x).gather(-1, fields["targets"][..., None]).sum()


@pytest.mark.parametrize(
    ("kind", "sides"),
    [
        ("encoder_only", ["source"]),
        ("decoder_only", ["inputs"]),
        ("encoder_decoder", ["source"]),
        ("encoder_decoder", ["inputs", "source"]),
    ],
)
def test_a_trained_model_is_asked_with_the_same_features(kind, sides):
    model, fields = segmented(kind)
    model.eval()
    batch = Batch(**fields, **{f"{side}_segments": SEGMENTS for side in sides})
    assert_close(loss_of(model, fields, **dict.fromkeys(sides, SEGMENTS)), model(batch).plain)
    assert (loss_of(model, fields) - model(batch).plain).abs() > 1e-3


def test_features_of_a_cached_step_are_those_of_its_tokens():
    model, fields = segmented("decoder_only")
    ids, cache = fields["inputs"], Cache(rows=2)
    whole = model.eval().decode(ids, features={"segments": SEGMENTS})
    steps = [
        model.decode(ids[:, i : i + 1], cache=cache, features={"segments": SEGMENTS[:, i : i + 1]}) for i in range(4)
    ]
    assert_close(torch.cat(steps, 1), whole)


def test_a_text_is_classified_with_its_features():
    model = build(small_sizes(classes=3), ["with_segments"], "encoder_only", seed=0).double().eval()
    ids, targets = words(), torch.tensor([0, 2])
    log_p = model.classify(ids, features={"segments": SEGMENTS})
    batch = Batch(source=ids, targets=targets, source_segments=SEGMENTS)
    assert_close(-log_p[[0, 1], targets].sum(), model(batch).plain)
    assert (log_p - model.classify(ids)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("segments", "words"), [(SEGMENTS[:, :3], r"shape \(2, 4\), got shape \(2, 3\)"), ([0, 1], "got list")]
)
def test_a_feature_without_a_value_for_each_id_is_refused(segments, words):
    model, fields = segmented("encoder_only")
    with pytest.raises(ValueError, match=rf"the feature 'segments' of the target ids .* {words}"):
        model.encode(fields["source"], features={"segments": segments})


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
