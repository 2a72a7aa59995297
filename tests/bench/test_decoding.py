"""The decoding section: everybody writes the same, tokens are counted, and who can't take part is named."""

import pytest
import torch

from sixfold.bench import decoding
from sixfold.bench import peer_models as peers
from sixfold.bench.decoding import measure, notes, tables
from sixfold.bench.decoding_contenders import ALONE, BATCH, Contenders, Search
from sixfold.bench.options import BenchOptions
from sixfold.bench.subject import opened, thinned
from sixfold.config.schema import Decoding
from sixfold.core.ids import EOS
from sixfold.decoding.session import CONTROLS_NEVER_WRITTEN
from sixfold.decoding.translator import Translator
from tests.support.runs import translating
from tests.support.subjects import recipe
from tests.support.trained_runs import directory as trained

LINES = ["a b c", "i h g f e d c b a", "a", "c c", "b a d", "f e d c b", "g"]


def quietly(_):
    pass


def everybody(subject, search, folder, precisions=("float32",)):
    """What each writes, by name; and who is left out."""
    with Contenders(subject, precisions, 1, folder) as cast:
        found = cast.writers(search, ["ctranslate2", "transformers", "x-transformers"])
        return {each.name: each.write(LINES, each.choices[-1]) for each in found}, cast.left_out


@torch.no_grad()
def tame(model):
    """What is never said is also most unlikely: nobody but us is told of it. (Coordinate 0 is for nothing else.)"""
    model.decoder.final.bias[0] += 20
    table = model.roles["output"].weight
    table[:, 0] = 0
    table[list(CONTROLS_NEVER_WRITTEN), 0] = -5
    table[EOS, 0] = 0.1  # and texts end soon: at the limit each has a way of its own


def assert_same(mine, theirs, limit):
    """All that ended; at its limit a beam of ours asks which text would best end there, and others do not."""
    ended = [(a, b) for a, b in zip(mine, theirs, strict=True) if max(a.tokens, b.tokens) < limit]
    assert len(ended) >= 4
    assert len({a.text for a, _ in ended}) > 2
    assert [a for a, _ in ended] == [b for _, b in ended]


@pytest.mark.parametrize("way", [BATCH, ALONE])
@pytest.mark.parametrize("beam", [1, 4])
def test_ctranslate2_writes_what_we_write(tmp_path, beam, way):
    """The model was trained, so that its texts end, and have no <unk>, which the other leaves out."""
    with opened(str(trained(tmp_path / "run")), {}) as subject:
        written, _ = everybody(subject, Search(beam, way, 20), tmp_path)
        alone = [line.tokens for line in _translator(subject, beam, 20).translate(LINES)]
    assert_same(written["sixfold float32"], written["ctranslate2 float32"], 20)
    assert [each.tokens for each in written["sixfold float32"]] == [len(ids) + (len(ids) < 20) for ids in alone]


def test_a_model_of_several_tables_is_none_for_transformers(tmp_path):
    with opened(str(translating(tmp_path / "run")), {}) as subject:
        _, left_out = everybody(subject, Search(1, BATCH, 9), tmp_path)
    assert "several tables" in left_out["transformers"] or "not installed" in left_out["transformers"]


def _translator(subject, beam, limit):
    keys = {"max_length": limit, "max_ratio": 1e6, "length_penalty": "none", "beam_size": beam}
    return Translator(subject.model, subject.tokenizers, Decoding(**keys))


@pytest.mark.parametrize("beam", [1, 4])
def test_transformers_writes_what_we_write(tmp_path, beam):
    pytest.importorskip("transformers")
    with recipe(model__decoder_layers="2") as subject:
        tame(subject.model)
        with torch.no_grad():
            for parameter in subject.model.decoder.parameters():  # or it would say one word for ever
                parameter *= 3
        lines, _ = subject.held_out(8)
        with Contenders(subject, ["float32"], 1, tmp_path) as cast:
            mine, theirs = cast.writers(Search(beam, BATCH, 20), ["transformers"])
            assert_same(mine.write(lines, 0), theirs.write(lines, 64), 20)


def test_workers_write_the_same_and_share_the_lines(tmp_path):
    with (
        opened(str(translating(tmp_path / "run")), {}) as subject,
        Contenders(subject, ["float32"], 2, tmp_path) as cast,
    ):
        alone, shared = cast.writers(Search(1, BATCH, 9), [])
        assert shared.name == "sixfold float32, 2 workers"
        assert shared.write(LINES, 512) == shared.write(LINES, 512) == alone.write(LINES, 99)
        assert len(cast.writers(Search(1, ALONE, 9), [])) == 1  # one line can't be shared


def test_who_is_not_installed_is_named(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(peers, "_library", missing)
    with opened(str(translating(tmp_path / "run")), {}) as subject:
        written, left_out = everybody(subject, Search(1, BATCH, 9), tmp_path)
    assert list(written) == ["sixfold float32"]
    assert "pip install -c constraints.txt -e '.[export]'" in left_out["ctranslate2"]
    assert "pip install -c constraints.txt -e '.[bench]'" in left_out["transformers"]


def test_what_ctranslate2_can_not_express_is_named(tmp_path):
    with recipe(("synthesizer_random",)) as subject:
        written, left_out = everybody(subject, Search(1, BATCH, 9), tmp_path)
    assert "ctranslate2 float32" not in written
    assert "synthesizer_random" in left_out["ctranslate2"]


def test_the_step_and_its_reason():
    wishes = BenchOptions(precisions=["float32"])
    with recipe() as subject:
        assert decoding.steps(subject, wishes)["float32"]["step"] == "FusedStep"
    with recipe(("universal",)) as subject:
        found = decoding.steps(subject, wishes)["float32"]
        assert found["step"] == "ModelStep"
        assert "does not support" in found["why"]


def test_the_section_says_all_of_it():
    wishes = BenchOptions(beams=[1, 2], sentences=5, rounds=2, peers=["ctranslate2"])
    with recipe() as subject:
        found = measure(subject, wishes, 60.0, quietly)
    assert [(case["search"], case["way"]) for case in found["cases"]] == [
        (search, way) for way in (BATCH, ALONE) for search in ("greedy", "beam 2")
    ]
    for case in found["cases"]:
        names = ["sixfold float32", "sixfold int8", "ctranslate2 float32", "ctranslate2 int8"]
        assert list(case["contenders"]) == names
        for name, each in case["contenders"].items():
            assert each["against"] == f"sixfold {each['precision']}"
            assert each["tokens"] > 0
            assert 0 <= each["same_lines"] <= 1
            if name.startswith("sixfold"):
                assert each["ratio"]["median"] == 1
        assert case["contenders"]["sixfold float32"]["same_lines"] == 1
    ((head, rows),) = tables(found)
    assert {len(head)} == {len(row) for row in rows}
    assert any("FusedStep" in note for note in notes(found))


def test_tokens_of_a_case_are_those_that_were_written():
    wishes = BenchOptions(beams=[1], ways=["batch"], precisions=["float32"], sentences=8, rounds=1)
    with recipe() as subject:
        found = measure(subject, wishes, 0.1, quietly)
        lines, _ = subject.held_out(8)
        translated = _translator(subject, 1, found["limit"]).translate(lines)
    expected = sum(len(each.tokens) + (len(each.tokens) < found["limit"]) for each in translated)
    assert found["cases"][0]["contenders"]["sixfold float32"]["tokens"] == expected


def test_fewer_lines_are_taken_at_equal_distances():
    assert thinned("abcdef", 3) == ["a", "c", "e"]
    assert thinned("ab", 3) == ["a", "b"]
