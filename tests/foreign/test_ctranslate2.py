"""CTranslate2's engine computes what the model computes, for whatever can be expressed there."""

import math

import numpy as np
import pytest
import torch

from sixfold.config.schema import Decoding
from sixfold.decoding.session import never_written
from sixfold.foreign import ctranslate2 as to_ctranslate2
from sixfold.foreign.agreement import compare
from sixfold.foreign.ctranslate2 import ROWS, CTranslate2Model, limits, specification, write
from sixfold.foreign.decoding_settings import ctranslate2_options
from sixfold.foreign.length_limits import LengthLimits
from sixfold.scoring.likelihood import token_log_probs
from tests.support.small import refusal, seeded
from tests.support.small_runs import CHARACTERS, SYMBOLS, TEXTS, opened

KINDS = ("encoder_decoder", "decoder_only")
EXPRESSED = [
    (),
    ("learned_positions:length=40",),
    ("no_positions",),
    ("rotary",),
    ("rotary:base=500",),
    ("t5_bias",),
    ("t5_bias:buckets=8,max_distance=6",),
    ("shaw",),
    ("shaw:distance=2",),
    ("post_norm",),
    ("rms_norm",),
    ("rms_norm", "post_norm"),
    ("gelu",),
    ("gelu:form=tanh",),
    ("swish",),
    ("sigmoid",),
    ("glu",),
    ("geglu",),
    ("geglu:form=tanh",),
    ("reglu",),
    ("swiglu",),
    ("tied_inputs",),
    ("tied_decoder",),
    ("factorized_embedding:inner=4",),
    ("factorized_shared_embedding:inner=4",),
    ("block_sharing",),
    ("rezero_layer_norm",),
    ("rezero_rms_norm",),
    ("cross_heads:heads=2,d_head=4",),
    ("rotary", "swiglu", "rms_norm", "block_sharing"),
    ("shaw", "geglu", "post_norm"),
    ("t5_bias", "rezero_rms_norm", "reglu", "tied_decoder"),
]
CASES = [
    pytest.param(kind, wishes, id=f"{kind} {' '.join(wishes)}")
    for kind in KINDS
    for wishes in EXPRESSED
    if refusal(kind, *wishes) is None
]


def exported(made, folder, **keys):
    write(made.model, made.tokenizers, folder, **keys)
    return CTranslate2Model(folder, made.model.reads_source, made.tokenizers, never_written(made.tokenizers.target))


def rows(lengths, words, seed):
    return [torch.randint(5, words, (length,), generator=seeded(seed)).tolist() for length in lengths]


def difference(made, engine, lengths=(3, 9, 1, 17), written=(4, 0, 7, 14)):
    """The largest, of the log-probability of a token of random texts, without a cache."""
    sources, targets = rows(lengths, len(made.tokenizers.source), 1), rows(written, len(made.tokenizers.target), 2)
    if made.model.kind == "decoder_only":
        whole = token_log_probs(made.model, None, [a + b for a, b in zip(sources, targets, strict=True)])
        ours = [row[len(a) :] for a, row in zip(sources, whole, strict=True)]
    else:
        ours = token_log_probs(made.model, sources, targets)
    theirs = engine.log_probs(sources, targets)
    assert list(map(len, ours)) == list(map(len, theirs)) == [n + 1 for n in written]
    return max(np.abs(np.subtract(a, b)).max() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("kind", "wishes"), CASES)
def test_log_probabilities_and_greedy_texts_are_the_models_own(kind, wishes, tmp_path):
    made = opened(kind, wishes, d_head=6)  # and not d_model / heads
    engine = exported(made, tmp_path)
    assert difference(made, engine) < 1e-4
    agreement = compare(made.model, made.tokenizers, TEXTS, 12, engine)  # with its cache
    assert (agreement.same, agreement.texts) == (len(TEXTS), len(TEXTS))
    assert agreement.log_prob < 1e-4


@pytest.mark.parametrize("wishes", [(), ("rotary",), ("no_positions",), ("t5_bias",), ("shaw",)])
def test_long_texts_beyond_all_distances(wishes, tmp_path):
    made = opened(wishes=wishes)
    assert difference(made, exported(made, tmp_path), (200, 3), (150, 5)) < 1e-4


def test_other_sizes_and_vocabularies(tmp_path):
    made = opened(source=CHARACTERS, target=SYMBOLS, encoder_layers=1, decoder_layers=3, heads=4)
    engine = exported(made, tmp_path)
    assert difference(made, engine) < 1e-4
    agreement = compare(made.model, made.tokenizers, ["abc", "hé", "i\tb"], 12, engine)
    assert agreement.same == 3


def test_unknown_symbols_are_read_as_unknown(tmp_path):
    made = opened(source=SYMBOLS, target=CHARACTERS)
    assert compare(made.model, made.tokenizers, ["a ? b", "?"], 12, exported(made, tmp_path)).same == 2


def test_a_head_width_that_is_not_said_would_be_wrong(tmp_path):
    made = opened(d_head=6)
    spec = specification(made.model, made.tokenizers)
    for stack in (spec.encoder, spec.decoder):
        for layer in stack.layer:
            assert layer.self_attention.head_dim == 6
            del layer.self_attention.head_dim
    spec.validate()
    spec.save(str(tmp_path))
    engine = CTranslate2Model(tmp_path, True, made.tokenizers, never_written(made.tokenizers.target))
    assert difference(made, engine) > 1e-4


def test_sinusoids_end_and_the_engine_says_so(tmp_path):
    made = opened()
    for name in ("short", "long"):
        (tmp_path / name).mkdir()
    engine = exported(made, tmp_path / "short", rows=20)
    assert difference(made, engine, (19,), (19,)) < 1e-4  # with EOS, and with BOS
    with pytest.raises(Exception, match="20"):
        engine.greedy(rows((20,), 21, 1), 5)
    engine = exported(made, tmp_path / "long")
    with pytest.raises(Exception, match="4096"):
        engine.greedy(rows((4096,), 21, 1), 5)
    assert limits(made.model) == {"encoder": 4096, "decoder": 4096}
    room = LengthLimits.of(limits(made.model), 9)
    assert ctranslate2_options(Decoding(), True, (), room)["max_input_length"] == 1025


def test_the_table_of_sinusoids_is_that_of_2017():
    made = opened()
    table = specification(made.model, made.tokenizers).encoder.position_encodings.encodings
    assert table.shape == (ROWS, 16) == (4096, 16)
    for t, i in ((0, 0), (1, 0), (7, 3), (4095, 0), (4095, 7)):
        angle = t / 10000 ** (2 * i / 16)
        assert table[t, 2 * i : 2 * i + 2] == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-3)


def test_learned_positions_bound_what_is_read():
    made = opened(wishes=("learned_positions:length=40",))
    assert limits(made.model) == {"encoder": 40, "decoder": 40}
    room = LengthLimits.of(limits(made.model), 256)
    said = ctranslate2_options(Decoding(), True, (), room)
    assert (said["max_input_length"], room.written) == (40, 39)  # with EOS, and without BOS
    assert limits(opened(wishes=("rotary",)).model) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_eight_bits_take_less_room_and_are_nearly_the_same(kind, tmp_path):
    made = opened(kind, d_model=64, d_ff=128)
    with torch.no_grad():  # or logits would be far larger than those of a trained model, and so would what 8 bits lose
        made.model.roles["output"].weight *= 0.25
    for name in ("float32", "int8"):
        (tmp_path / name).mkdir()
    whole, engine = exported(made, tmp_path / "float32"), exported(made, tmp_path / "int8", quantization="int8")
    sizes = {name: (tmp_path / name / "model.bin").stat().st_size for name in ("float32", "int8")}
    waves = 4096 * 64 * 4  # the table of sinusoids, once for both stacks, stays as it is
    assert sizes["int8"] - waves < 0.4 * (sizes["float32"] - waves)
    assert 1e-4 < difference(made, engine) < 0.5
    assert difference(made, whole) < 1e-4


def test_an_unknown_quantization_is_named(tmp_path):
    made = opened()
    with pytest.raises(ValueError, match=r"'int7'.*int8"):
        write(made.model, made.tokenizers, tmp_path, quantization="int7")


def test_without_the_package_it_is_said_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(to_ctranslate2.importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"pip install -c constraints.txt -e '.\[export\]'"):
        to_ctranslate2.engine()
