"""What CTranslate2 can't express is refused by name, with the reason; nothing is forgotten."""

from dataclasses import replace

import pytest
import torch

import sixfold
from sixfold import modification
from sixfold.foreign.recognise import Inexpressible, recognise
from sixfold.spec import registry
from tests.support.architectures import WRITERS, parts
from tests.support.covering import covering
from tests.support.small import MODIFICATIONS, small_model

EXPRESSED = {
    *("block_sharing", "factorized_embedding", "factorized_shared_embedding", "geglu", "gelu", "glu"),
    *("learned_positions", "no_positions", "post_norm", "reglu", "rezero_layer_norm", "rezero_rms_norm", "rms_norm"),
    *("rotary", "shaw", "sigmoid", "swiglu", "swish", "t5_bias", "tied_decoder", "tied_inputs", "untied"),
}
REFUSED = {
    "elu": "elu .*relu, gelu, swish and sigmoid",
    "selu": "selu .*relu, gelu, swish and sigmoid",
    "softplus": "softplus .*relu, gelu, swish and sigmoid",
    "liglu": "liglu .*relu, gelu, swish and sigmoid",
    "shaw:per_head=true": "shaw .*heads of a layer share",
    "t5_bias:per_layer=true": "t5_bias .*that of the first",
    "rms_norm:fraction=0.5": "rms_norm .*8 out of 16 channels",
    "cross_heads:heads=4,d_head=4": "cross_heads .*4 heads in cross-attention and 2 in self-attention",
    "rezero": "rezero .*norm before or after",
    "fixup": "fixup ",
    "universal": "universal .*layer after layer",
    "mixture_of_softmaxes": "mixture_of_softmaxes .*one softmax",
    "transparent_attention": "transparent_attention .*last state",
    "adaptive_input": "adaptive_input .*one table",
    "synthesizer_dense": "synthesizer_dense .*queries, keys and values",
    "evolved": "evolved ",
    "weighted": "weighted ",
}


@pytest.mark.parametrize("wish", REFUSED)
def test_it_is_refused_by_name_with_the_reason(wish):
    with pytest.raises(Inexpressible, match=f"^{REFUSED[wish]}"):
        recognise(small_model(modifications=[wish]))


@covering(parts(WRITERS, [(wish,) for wish in MODIFICATIONS]))
def test_every_modification_is_expressed_or_refused_by_its_name(kind, modifications):
    name = modifications[0].partition(":")[0]
    model = small_model(kind, modifications)
    if name in EXPRESSED:
        assert all(len(stack.layers) == 2 for stack in recognise(model).values())
    else:
        with pytest.raises(Inexpressible, match=f"^{name} .*CTranslate2, w"):
            recognise(model)


def test_an_encoder_alone_is_refused():
    with pytest.raises(Inexpressible, match="encoder_only writes no text"):
        recognise(small_model("encoder_only"))


def test_parts_are_known_by_their_type_and_not_by_the_name_of_a_modification(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))

    @modification()
    def gelu_of_my_own(spec: sixfold.Spec) -> sixfold.Spec:
        """A known function under another name."""
        return registry.find("gelu").change(spec)

    @modification()
    def cosine(spec: sixfold.Spec) -> sixfold.Spec:
        """A function that nobody knows."""
        return replace(spec, activation=torch.cos)

    assert recognise(small_model(modifications=["gelu_of_my_own"]))["encoder"].kind.activation == "GELU"
    with pytest.raises(Inexpressible, match=r"^cosine \(cos\) can't be exported"):
        recognise(small_model(modifications=["cosine"]))
