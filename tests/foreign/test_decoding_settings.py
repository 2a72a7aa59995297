"""An export decodes with the run's settings, names those that it can't have, and compares where they matter."""

import json
import re
import subprocess
import sys

import pytest
import torch

import sixfold as package
from sixfold import EOS
from sixfold.api.load import open_run
from sixfold.config.schema import Decoding
from sixfold.decoding.alignment import looks
from sixfold.foreign import ctranslate2 as to_ctranslate2
from sixfold.foreign import programs
from sixfold.foreign.as_used import choose_lines
from sixfold.foreign.decoding_settings import ctranslate2_options, not_carried
from sixfold.foreign.export import export
from sixfold.foreign.length_limits import LengthLimits
from tests.support.small_runs import TEXTS, opened
from tests.support.trained_runs import directory, lines

LINES = lines(40)
SAME = [  # settings, and how many of 40 lines may differ because CTranslate2 ends its beam search otherwise
    ({}, 0),
    ({"max_ratio": 0.1, "max_length": 20}, 0),
    ({"max_source": 3}, 0),
    ({"no_repeat_ngram_size": 2, "min_length": 12}, 0),
    ({"beam_size": 4}, 2),
    ({"beam_size": 4, "max_ratio": 0.1}, 1),
    ({"beam_size": 4, "length_penalty": "none"}, 2),
    ({"beam_size": 3, "max_length": 5, "length_penalty": 1.5}, 2),
]


def by_the_run(run, **changes):
    loaded = package.load(run, device="cpu")
    found = (loaded.translate if loaded.model.kind == "encoder_decoder" else loaded.generate)(LINES, **changes)
    return [[each.text for each in one.n_best] for one in found]


@pytest.mark.parametrize(("settings", "others"), SAME, ids=str)
def test_the_program_of_ctranslate2_writes_what_the_run_writes(settings, others, tmp_path):
    run = directory(tmp_path / "run", **settings)
    export(run, "ctranslate2", tmp_path / "out", lines=0)
    found = programs.run_program("ctranslate2", True, tmp_path / "out", LINES)
    right = by_the_run(run)
    assert sum(a != b for a, b in zip(found, right, strict=True)) <= others
    if settings:  # it would be another text without them
        plain = directory(tmp_path / "plain")
        assert sum(a != b for a, b in zip(by_the_run(plain), right, strict=True)) > 10


def test_the_n_best_are_those_of_the_run(tmp_path):
    run = directory(tmp_path / "run", beam_size=4, n_best=3, max_ratio=1)
    export(run, "ctranslate2", tmp_path / "out", lines=0)
    found = programs.run_program("ctranslate2", True, tmp_path / "out", LINES)
    right = by_the_run(run)
    assert {len(texts) for texts in found} == {3}
    assert sum(a == b for a, b in zip(found, right, strict=True)) >= 35


def test_coverage_is_that_of_the_run(tmp_path):
    run = directory(tmp_path / "run", beam_size=4, max_ratio=1, coverage_penalty=2)
    export(run, "ctranslate2", tmp_path / "out", lines=0)
    right, same = by_the_run(run), {}
    for weight in (2, 0):
        changes = {"coverage_penalty": weight}
        found = programs.run_program("ctranslate2", True, tmp_path / "out", LINES, **changes)
        same[weight] = sum(a == b for a, b in zip(found, right, strict=True))
    assert same[2] >= 30
    assert same[0] <= same[2] - 5, same


def test_coverage_is_of_the_attention_that_the_run_looks_at(tmp_path):
    model, tokenizers, *_ = made = opened(decoder_layers=3, heads=4)
    to_ctranslate2.write(model, tokenizers, tmp_path)
    source, target = to_ctranslate2.vocabularies(tokenizers)
    read, written = tokenizers.source.encode(TEXTS[1]), tokenizers.target.encode("a b c d")
    said = {"return_attention": True, "beam_size": 1, "max_decoding_length": 4, "suppress_sequences": [[target[EOS]]]}
    engine = to_ctranslate2.engine().Translator(str(tmp_path))
    (found,) = engine.translate_batch(
        [[source[id_] for id_ in read]], [[target[id_] for id_ in written]], **said
    )  # a prefix: both look while they write the same
    (look,) = looks([made.model], [([*read, EOS], written)])
    ours = look[: len(found.attention[0]), : len(read)]
    torch.testing.assert_close(torch.tensor(found.attention[0]), ours, rtol=0, atol=1e-5)


def test_the_programs_of_torch_write_what_the_run_writes(tmp_path):
    run = directory(tmp_path / "run", max_length=20)
    export(run, "torch", tmp_path / "out", lines=0)
    space = {"__name__": "program"}
    exec(programs.program("torch", "encoder_decoder"), space)
    translator = space["Translator"](tmp_path / "out")
    usual = translator.decoding
    for settings in (
        {"max_ratio": 0.1},
        {"beam_size": 4, "n_best": 2, "max_ratio": 0.5},
        {"beam_size": 3, "length_penalty": "average", "max_ratio": 0.1, "min_length": 4},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 1.5, "min_length": 5, "max_ratio": 0.1},
    ):
        translator.decoding = {**usual, **settings}
        assert translator.translate(LINES[:10]) == by_the_run(run, **settings)[:10], settings


@pytest.mark.parametrize("to", ["ctranslate2", "torch"])
def test_a_language_model_draws_unless_it_is_told_to_search(to, tmp_path):
    run = directory(tmp_path / "run", "decoder_only", max_length=12, temperature=1.5, no_repeat_ngram_size=3)
    found = export(run, to, tmp_path / "out", lines=20, texts=LINES)
    assert found.agreement.as_used.drawn
    assert found.agreement.as_used.same == 20
    assert any(sentence.startswith("seed: ") for sentence in found.not_carried)
    draws = [programs.run_program(to, False, tmp_path / "out", ["a b"] * 20) for _ in range(2)]
    assert len({texts[0] for texts in draws[0]}) > 5
    assert draws[0] == draws[1]  # the seed is the run's
    search = {"sampling_topk": 1} if to == "ctranslate2" else {"sample": False}
    assert programs.run_program(to, False, tmp_path / "out", LINES, **search) == by_the_run(run, sample=False)


def test_the_program_in_the_readme_runs_by_itself_and_skips_empty_lines(tmp_path):
    run = directory(tmp_path / "run", beam_size=4, max_ratio=0.1)
    export(run, "ctranslate2", tmp_path / "out", lines=0)
    (program,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), re.DOTALL)
    assert program == programs.program("ctranslate2", "encoder_decoder")
    asked = f"{LINES[0]}\n\n{LINES[1]}\n"
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    right = package.load(run, device="cpu").translate([LINES[0], "", LINES[1]])
    assert done.stdout.splitlines() == [each.text for each in right]


def test_what_is_too_long_is_refused_where_the_run_refuses_it(tmp_path):
    run = directory(tmp_path / "run", max_source=3, too_long="refuse")
    found = export(run, "ctranslate2", tmp_path / "out", lines=len(LINES), texts=LINES)
    short = [line for line in LINES if len(line.split()) <= 3]
    assert found.agreement.texts == found.agreement.as_used.same == len(short) < len(LINES)
    with pytest.raises(ValueError, match="a source has 4 tokens, but at most 3 are allowed"):
        programs.run_program("ctranslate2", True, tmp_path / "out", ["a b c d"])


def test_lines_are_chosen_where_settings_matter(tmp_path):
    run = open_run(directory(tmp_path / "run", beam_size=4, max_ratio=0.5), "cpu")
    pool = list(dict.fromkeys(lines(300)))
    chosen = choose_lines(run, pool, 20)
    assert [line.text for line in chosen] == [text for text in pool if text in {line.text for line in chosen}]
    assert sum(line.cut for line in chosen) >= 5
    assert sum(line.searched for line in chosen) >= 5
    longest = sorted(map(len, pool), reverse=True)[:5]
    assert sorted((len(line.text) for line in chosen), reverse=True)[:5] == longest


def test_a_program_without_the_settings_is_found_out(tmp_path, monkeypatch):
    """The check of the export runs the README's program, and not an engine of its own."""
    run = directory(tmp_path / "run", beam_size=4, max_ratio=0.5)
    right = export(run, "ctranslate2", tmp_path / "right", lines=20, texts=LINES).agreement
    assert right.as_used.same >= 19
    monkeypatch.setattr(programs, "_FIT_SOURCE", "\n    def fit(self, row):\n        return row, 256\n")
    wrong = export(run, "ctranslate2", tmp_path / "wrong", lines=20, texts=LINES).agreement
    assert wrong.same == 20  # by greedy search alone nothing is to be seen
    assert wrong.as_used.cut > wrong.as_used.cut_same


def test_what_is_not_carried_is_named(sixfold, tmp_path):
    settings = {"beam_size": 4, "beam_groups": 2, "forbidden_words": "[a, c]"}
    run = directory(tmp_path / "run", **settings)
    code, out, _ = sixfold("export", run, "--to", "ctranslate2", "--out", tmp_path / "out", "--lines", 5)
    assert code == 0
    sentences = [
        "beam_groups 2, diversity 0.5: the search has one plain beam",
        "forbidden_words a, c: outputs may contain them",
    ]
    readme = (tmp_path / "out" / "README.md").read_text()
    for sentence in sentences:
        assert f"not carried over: {sentence}\n" in out
        assert f"- {sentence}\n" in readme
    assert "beam_size 4" in readme
    assert json.loads((tmp_path / "out" / "export.json").read_text())["not_carried"] == sentences
    assert "identical to the run's text" in out


def test_a_precision_is_named_where_it_is_not_that_of_the_weights():
    decoding = Decoding(precision="int8")
    (sentence,) = not_carried("ctranslate2", decoding, spells=True)
    assert sentence == "precision int8: the weights are float32; export with --quantization int8 for that"
    assert not_carried("ctranslate2", decoding, spells=True, quantization="int8") == []


def test_each_setting_is_carried_or_named():
    """A setting that changes neither options nor what the program reads nor the sentences would be lost."""
    by_the_program = {"max_length", "max_ratio", "max_source", "too_long", "length_penalty", "n_best", "diversity"}
    others = {"beam_size": 1, "batch_tokens": 99, "precision": "auto", "beam_groups": 2, "sample": True, "top_k": 7}
    others |= {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "seed": 5, "no_repeat_ngram_size": 2, "min_length": 3}
    others |= {"repetition_penalty": 1.5, "coverage_penalty": 0.2, "forbidden_words": ["a"], "replace_unknown": True}
    others |= {"dictionary": "words.tsv"}
    assert by_the_program | set(others) == set(Decoding.model_fields)
    text = programs.program("ctranslate2", "encoder_decoder")
    for name in by_the_program - {"max_length", "max_source", "diversity"}:  # those are in `room`; a group's is named
        assert f'["{name}"]' in text
    drawing = {"temperature", "top_k", "top_p", "min_p", "seed"}
    for name, value in others.items():
        usual = {"sample": True} if name in drawing else {} if name == "sample" else {"beam_size": 4}
        usual = {"replace_unknown": True} if name == "dictionary" else usual
        before, after = Decoding(**usual), Decoding(**{**usual, name: value})
        carried = [
            (
                ctranslate2_options(each, True, ["x"], LengthLimits(9, 9)),
                not_carried("ctranslate2", each, spells=False),
                "seed" if name == "seed" and '["seed"]' in text and each is after else "",
            )
            for each in (before, after)
        ]
        assert carried[0] != carried[1], name
