"""What is in order passes, whatever the model, and nothing in the run is touched."""

import json
import math
import os
import shutil
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from sixfold.config.files import write_config
from sixfold.runs.run import Run
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from sixfold.verify import parts
from sixfold.verify.report import EQUALITIES
from sixfold.verify.subject import NotApplicable
from tests.support import runs
from tests.support.plain_text import recipe
from tests.support.small import moved_model
from tests.support.verified import ALL, ALONE, results, trained_run

SMALL = ((12, ("post_norm",)), (50, ("learned_positions:length=6",)))
NOT_INSTALLED = set() if find_spec("ctranslate2") else {"export"}


def everything(folder):
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in [folder, *folder.rglob("*")]
    }


def test_all_that_is_promised_holds_and_the_run_is_not_touched(sixfold, run):
    before = everything(run)
    parts = run.parent / "parts.py"
    parts.write_text("import os, pathlib\npathlib.Path(__file__).with_name(os.environ.get('RANK', 'here')).touch()\n")
    code, out, err = sixfold("verify", run, "--device", "cpu", "--json", "--import", parts)
    found = json.loads(out)
    assert code == 0, out
    assert everything(run) == before
    assert {path.name for path in run.parent.iterdir()} == {"run", "parts.py", "here", "0", "1"}  # all three read it
    assert [each["key"] for each in found["findings"]] == ALL
    assert {each["key"] for each in found["findings"] if each["result"] == "pass"} == set(ALL) - NOT_INSTALLED
    assert {each["key"]: each["difference"] for each in found["findings"]}["resume"] == 0
    assert found["pass"] == len(set(ALL) - NOT_INSTALLED)
    assert len(err.splitlines()) == len(ALL)
    assert err.splitlines()[4].startswith(f"5/{len(ALL)}  cached = uncached: pass, ")


def test_a_run_that_decodes_in_8_bits_is_compared_in_both_precisions(run):
    config = Run(run).read_config()
    decoding = config.decoding.model_copy(update={"precision": "auto"})
    write_config(config.model_copy(update={"decoding": decoding}), run / "config.yaml")
    found = results(run, ["cache", "batch", "int8"])
    assert {each.result for each in found.values()} == {"pass"}
    assert found["cache"].difference < 1e-5, "one side was in 8 bits"


def test_the_settings_of_torch_stay_as_they_were(run, monkeypatch):
    """Those that a resumed training changes, besides its random numbers."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    random = torch.get_rng_state()
    assert results(run, ["resume"])["resume"].result == "pass"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.backends.cudnn.benchmark
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert torch.equal(torch.get_rng_state(), random)


def test_the_table_and_the_exit_code(sixfold, run):
    code, out, _ = sixfold("verify", run, "--only", "weights", "--only", "loss", "--device", "cpu")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["what", "left", "right", "difference", "allowed", "result"]
    assert [line.split("  ")[0] for line in lines[1:3]] == ["saved = loaded", "logged loss = loss now"]
    assert lines[-1] == "2 pass"
    (run / "log.jsonl").write_text("")
    code, out, _ = sixfold("verify", run, "--only", "loss", "--only", "score", "--device", "cpu")
    assert (code, "does not apply, because the log has no validation" in out) == (0, True)
    assert out.splitlines()[-1] == "2 do not apply"
    (run / "model.safetensors").write_bytes(b"")
    code, out, _ = sixfold("verify", run, "--only", "weights", "--device", "cpu")
    assert (code, "model.safetensorsisdamaged" in "".join(out.split())) == (1, True)  # the line may be broken anywhere


@pytest.mark.parametrize(("name", "excused"), [("lm", {"score"}), ("mlm", {"cache", "export", "score"})])
def test_models_with_one_stack(tmp_path, name, excused):
    train(recipe(tmp_path, name, training__steps="4"), tmp_path / "run", display=Quiet())
    found = results(tmp_path / "run")
    assert {key for key, each in found.items() if each.result == "does not apply"} == excused | NOT_INSTALLED
    assert {key for key, each in found.items() if each.result == "pass"} == set(ALONE) - excused - NOT_INSTALLED
    assert found["score"].note == "it was validated by its loss"


def test_the_contract_holds_for_few_words_and_says_if_positions_are_too_few():
    few, short = (SimpleNamespace(model=moved_model(vocab=words, modifications=wishes)) for words, wishes in SMALL)
    assert parts.contract.measure(few).difference == 0
    with pytest.raises(NotApplicable, match="the checks need 12 positions, and the model has 6"):
        parts.contract.measure(short)


@pytest.mark.parametrize(
    "modifications",
    [
        ["switch:experts=4,every=2"],
        ["universal:halting=true"],
        ["funnel:blocks=2", "adaptive_softmax"],
    ],
    ids=lambda several: several[0].partition(":")[0],
)
def test_modifications(tmp_path, modifications):
    run = trained_run(tmp_path, model__modifications=modifications, model__layers=2, training__steps=1)
    found = results(run, ["weights", "cache", "batch", "attention", "micro-batches", "export", "loss"])
    assert {key for key, each in found.items() if each.result != "pass"} == {"export"}
    assert "exported to CTranslate2" in found["export"].note
    dependent = modifications[0].startswith(("switch", "universal"))
    assert ("depends on the batch" in found["micro-batches"].note) == dependent
    assert found["export"].result == "does not apply"
    if modifications[0].startswith("switch"):
        where = "Switch in encoder.layers.1.feed_forward, decoder.layers.1.feed_forward"
        assert found["micro-batches"].note.endswith(where)


def test_without_its_text_what_needs_it_says_so(original, tmp_path):
    copied = shutil.copytree(original.parent, tmp_path / "all")
    run, config = copied / "run", Run(copied / "run").config
    config.write_text(config.read_text().replace(str(original.parent), str(copied)))
    shutil.rmtree(run / "data")
    found = results(run)
    needed = {"text", "micro-batches", "resume", "loss", "score"} | NOT_INSTALLED
    assert {key for key, each in found.items() if each.result == "does not apply"} == needed
    assert {key for key, each in found.items() if each.result == "pass"} == set(ALONE) - needed  # from the files
    for file in copied.glob("*.?"):
        file.unlink()
    found = results(run)
    assert {key for key, each in found.items() if each.result == "pass"} == {
        "weights",
        "checkpoints",
        "tokenizers",
        "contract",
    }
    assert all(each.note for each in found.values() if each.result == "does not apply")
    assert "holds no prepared data" in found["resume"].note


def test_a_model_that_was_never_trained(tmp_path):
    found = results(runs.writing(tmp_path / "lm"))
    assert {key for key, each in found.items() if each.result == "pass"} == {"weights", "tokenizers", "contract"}
    assert all(each.result != "fail" and (each.note or key == "contract") for key, each in found.items())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no directory nowhere"),
        (["."], "neither a run nor a model"),
        (["young"], "has no model yet"),
        (["run", "--only", "cashe"], "there is no equality 'cashe'; did you mean 'cache'?"),
        (["run", "--device", "gpu"], "there is no device 'gpu'"),
    ],
)
def test_a_mistake_gets_one_sentence(sixfold, run, tmp_path, arguments, words):
    (tmp_path / "young").mkdir()
    shutil.copy(run / "config.yaml", tmp_path / "young")
    code, out, err = sixfold("verify", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_run_that_is_being_trained_is_left_alone(sixfold, run):
    with Run(run).locked():
        code, _, err = sixfold("verify", run)
    assert (code, "is being written by process" in err) == (2, True)


def test_every_name_is_in_the_help(sixfold):
    _, out, _ = sixfold("verify", "--help")
    assert all(each.key in out for each in EQUALITIES)
    assert all(math.isfinite(each.tolerance) for each in EQUALITIES)
