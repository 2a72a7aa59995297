"""What happens in a training pass: where dropout acts, and that recomputing recomputes."""

import pytest
import torch

from sixfold import Batch
from tests.support.small import random_ids, seeded, small_model


def batch():
    ids = random_ids(2, 5, seeded(1))
    return Batch(source=ids, inputs=ids, targets=ids)


@pytest.mark.parametrize("norm", [(), ("post_norm",)], ids=["pre-norm", "post-norm"])
def test_dropout_acts_on_the_embeddings_and_on_each_sub_layers_output(monkeypatch, norm):
    """As in 2017: once on each embedding, twice in an encoder layer, three times in a decoder layer."""
    seen = []
    model = small_model(modifications=norm, dropout=0.5).train()
    outputs = {}
    for name, module in model.named_modules():
        if name.endswith((".attention", ".cross", ".feed_forward")):
            module.register_forward_hook(lambda m, x, y, name=name: outputs.__setitem__(id(y), name))
    monkeypatch.setattr(
        "sixfold.core.dropout.Dropout.forward", lambda self, x: seen.append(outputs.get(id(x), "")) or x
    )
    model(batch())
    layers = [
        f"{stack}.layers.{i}.{part}"
        for stack, parts in (
            ("encoder", ("attention", "feed_forward")),
            ("decoder", ("attention", "cross", "feed_forward")),
        )
        for i in range(2)
        for part in parts
    ]
    assert seen == ["", *layers[:4], "", *layers[4:]]


def test_dropout_has_the_rate_of_the_sizes():
    model = small_model(dropout=0.3)
    assert {m.p for m in model.modules() if type(m).__name__ == "Dropout"} == {0.3}


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputing_runs_each_layer_once_more_in_the_backward_pass(recompute):
    model, runs = small_model(), []
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            layer.register_forward_pre_hook(lambda *_: runs.append(1))
    total = model(batch(), recompute=recompute).sum
    assert len(runs) == 4
    total.backward()
    assert len(runs) == (8 if recompute else 4)


def test_a_second_derivative_is_refused_rather_than_wrong():
    model = small_model("decoder_only", ("shaw",))
    ids = random_ids(1, 4, seeded(2))
    with pytest.raises(RuntimeError, match="once, not twice"):
        torch.autograd.grad(model(Batch(inputs=ids, targets=ids)).sum, [model.tables[0].weight], create_graph=True)
