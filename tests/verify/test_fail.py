"""Each equality is broken on purpose, and just that line fails."""

import json
import math
import sys

import pytest
import safetensors.torch
import torch

from sixfold import transformer
from sixfold.core.ids import EOS, PAD
from sixfold.core.state import Cache
from sixfold.decoding import owned_models, step
from sixfold.decoding.cpu import kernels
from sixfold.decoding.step import ModelStep
from sixfold.disk.atomic import save_tensors
from sixfold.foreign import ctranslate2 as to_ctranslate2
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from sixfold.training import checkpoint
from sixfold.training.processes import Processes
from sixfold.training.trainer import Trainer
from sixfold.verify import decoding, files, gradients, training
from tests.support.verified import ALONE, failing, results

QUICK = [key for key in ALONE if key not in ("micro-batches", "resume", "export")]


def test_a_bit_of_a_weight(run):
    path = run / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4] ^= 1  # the file ends with a number, and this is its lowest bit
    path.write_bytes(data)
    found = results(run, QUICK)
    assert {key for key, each in found.items() if each.result == "fail"} == {"weights"}
    assert 0 < found["weights"].difference < 1e-6
    assert "differs from step-" in found["weights"].note


def test_weights_that_cannot_be_read(run):
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    found = results(run)
    assert {key for key, each in found.items() if each.result == "fail"} == {"weights"}
    assert {key for key, each in found.items() if each.result == "pass"} == {"checkpoints", "tokenizers"}


def test_an_optimiser_state_that_was_tampered_with(run):
    path = run / "training" / "step-12" / "optimizer.safetensors"
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file({name: 2 * tensor for name, tensor in tensors.items()}, path)
    assert failing(run) == {"checkpoints"}


def test_another_tokenizer(run):
    mine = Tokenizers.load(run)
    letters = mine.target.pieces(range(5, len(mine.target)))
    turned = train_tokenizer("symbols", [" ".join(letters[::-1]) + f" {letters[-1]}" * 3])
    assert len(turned) == len(mine.target)
    Tokenizers(mine.source, turned).save(run)
    found = results(run)
    assert {key for key, each in found.items() if each.result == "fail"} == {"tokenizers"}
    assert "other tokenizers" in found["resume"].note
    Tokenizers(mine.source, train_tokenizer("symbols", ["a"])).save(run)
    assert failing(run) == {"tokenizers"}
    (run / "target.tokenizer.json").write_text("{}")
    assert failing(run) == {"tokenizers"}


def test_a_store_that_forgets(run, monkeypatch):
    write_kv = kernels.write_kv

    def forgetful(x, first, *rest):
        values = x.copy()
        values[:, first + 1] *= 0.98
        write_kv(values, first, *rest)

    monkeypatch.setattr(kernels, "write_kv", forgetful)
    assert failing(run, QUICK) == {"cache"}


def test_a_cache_that_forgets(run, monkeypatch):
    share = Cache.share
    monkeypatch.setattr(owned_models, "make_step", lambda model, *_, **__: ModelStep(model))

    def forgetful(cache, key, new, **rest):
        (k, v), seen = share(cache, key, new, **rest)
        return (k, 0.98 * v), seen

    monkeypatch.setattr(Cache, "share", forgetful)
    found = results(run, QUICK)
    assert {key for key, each in found.items() if each.result == "fail"} == {"contract", "cache"}
    assert found["contract"].note.startswith("token_by_token: row 0 of 3 differs from what it is without a cache")


def test_a_part_that_reads_other_rows(run, monkeypatch):
    forward = transformer.FeedForward.forward
    monkeypatch.setattr(transformer.FeedForward, "forward", lambda part, x, call: forward(part, x - x.mean(0), call))
    found = results(run, ["contract"])["contract"]
    assert (found.result, found.left) == ("fail", "16 checks of causality, padding, batches and caches")
    assert "alone_and_in_a_batch: a row of 5 tokens" in found.note
    assert 1 < found.difference < 16, "no state depends on a later token, for example"


def test_padding_that_is_read(run, monkeypatch):
    """Without a cache a sentence is read in other company than with one: that line notices it, too."""

    def leaking(rows, device, side="right"):
        ids = padded(rows, device, side)
        return torch.where(ids == PAD, EOS, ids) if side == "right" else ids

    padded = step.padded
    monkeypatch.setattr(step, "padded", leaking)
    monkeypatch.setattr(owned_models, "make_step", lambda model, *_, **__: ModelStep(model))
    assert failing(run, ["batch", "cache", "attention", "micro-batches", "resume", "loss"]) == {"batch", "cache"}


def test_explicit_attention_that_is_wrong(run, monkeypatch):
    explicitly = transformer.attend_explicitly

    def wrong(*arguments):
        heads, weights = explicitly(*arguments)
        return 1.01 * heads, weights

    monkeypatch.setattr(transformer, "attend_explicitly", wrong)
    assert failing(run, QUICK) == {"attention"}


def test_micro_batches_that_are_means_of_their_own(run, monkeypatch):
    backward = Trainer.backward

    def each_by_itself(trainer, batches, counts):
        alone = [backward(trainer, [b], {"words": len(batches) * b.counts["words"]}) for b in batches]
        return {"words": sum(each["words"] for each in alone)}

    monkeypatch.setattr(Trainer, "backward", each_by_itself)
    assert failing(run) == {"micro-batches"}


class Lonely(Processes):
    """One of two that never hears of the other."""

    def wrap(self, model, parallel):
        return model

    def sum(self, *numbers):
        return [2 * number for number in numbers]


def test_processes_that_do_not_meet(run, monkeypatch):
    def apart(subject, folder):
        save_tensors(gradients.gradients(subject.run, folder, Lonely(0, 2)), folder / gradients.FOUND)

    monkeypatch.setattr(training, "_run_two", apart)
    assert failing(run, ["micro-batches", "processes"]) == {"processes"}


def test_processes_that_cannot_start(run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    found = results(run, ["processes"])["processes"]
    assert (found.result, found.note) == ("fail", "two processes could not work together; they gave no reason")


def test_an_export_that_is_wrong(run, monkeypatch):
    pytest.importorskip("ctranslate2")
    array = to_ctranslate2._array
    monkeypatch.setattr(to_ctranslate2, "_array", lambda tensor: array(1.05 * tensor))
    found = results(run)
    assert {key for key, each in found.items() if each.result == "fail"} == {"export"}
    assert "does not agree with the original" in found["export"].note


def test_a_momentum_that_is_lost(run, monkeypatch):
    load = checkpoint.load_optimizers

    def forgetful(model, optimizers, tensors):
        load(model, optimizers, {name: t * 0 if name.endswith("exp_avg") else t for name, t in tensors.items()})

    monkeypatch.setattr(checkpoint, "load_optimizers", forgetful)
    found = results(run)
    assert {key for key, each in found.items() if each.result == "fail"} == {"resume"}
    assert found["resume"].note == "model, optimizer differ"


@pytest.mark.parametrize(("field", "key"), [("loss", "loss"), ("symbol_error_rate", "score")])
def test_a_log_that_was_changed(run, field, key):
    path = run / "log.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if record["kind"] == "valid":
            record[field] *= 0.8
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert failing(run, QUICK) == {key}


def test_whatever_breaks_off_is_a_failure_of_that_line(run, monkeypatch):
    monkeypatch.setattr(decoding, "outputs_of", lambda *_: 1 / 0)
    found = results(run, ["weights", "attention"])
    assert {key: each.result for key, each in found.items()} == {"weights": "pass", "attention": "fail"}
    assert found["attention"].note == "ZeroDivisionError: division by zero"


def test_a_byte_of_the_prepared_text(run):
    path = max((run / "data").glob("*.ids"), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert failing(run) == {"text"}


def test_other_numbers_are_infinitely_far():
    one, nan = torch.ones(2), torch.tensor([1.0, math.nan])
    assert files.furthest({"a": one}, {"a": one + 0.5}) == 0.5
    for left, right in (({"a": one}, {}), ({"a": one}, {"a": torch.ones(3)}), ({"a": nan}, {"a": nan})):
        assert files.furthest(left, right) == math.inf
    assert files.furthest({"a": one}, {"a": nan}) == math.inf
    assert files.furthest({"a": one}, {"a": one.double()}) == math.inf
