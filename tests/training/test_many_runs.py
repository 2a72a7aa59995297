"""Many runs in one process, on text that was prepared once: each is as if it had been alone."""

import os

import pytest
import torch

from sixfold.config.files import read_config
from sixfold.runs.run import Run
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import prepare, train
from sixfold.training.trainer import Trainer
from tests.support import labelled, plain_text, tiny
from tests.support.begun_runs import ONE_STEP, first_weights


def trained(config, out, **options):
    return train(config, out, display=Quiet(), **options)


def spoil(folder):
    """Whoever reads the text from now on will fail."""
    for file in (*folder.glob("train.*"), *folder.glob("valid.*")):
        file.write_bytes(b"\xff\n")


SEEDS = (1, 2)


def a_run(folder, task, seed):
    if task == "classification":
        return labelled.config(folder, training__seed=seed, training__steps=12)
    return tiny.config(folder, training__seed=seed)


@pytest.mark.parametrize("task", ["translation", "classification"])
def test_runs_on_prepared_text_are_those_that_prepared_their_own(tmp_path, task):
    folder = tiny.corpus(tmp_path) if task == "translation" else labelled.tables(tmp_path)
    for seed in SEEDS:
        trained(a_run(folder, task, seed), folder / f"own-{seed}")
    prepared = prepare(a_run(folder, task, SEEDS[0]), folder / "prepared")
    spoil(folder)
    for seed in SEEDS:
        trained(a_run(folder, task, seed), folder / f"given-{seed}", prepared=prepared)
        given, own = Run(folder / f"given-{seed}"), Run(folder / f"own-{seed}")
        assert tiny.bytes_of(given) == tiny.bytes_of(own)
        assert tiny.log_without_times(given) == tiny.log_without_times(own)
    assert tiny.bytes_of(Run(folder / "given-1")) != tiny.bytes_of(Run(folder / "given-2"))


@pytest.mark.parametrize("task", ["translation", "masked_words"])
def test_two_arms_with_one_seed_see_the_same_batches_and_share_their_first_weights(tmp_path, monkeypatch, task):
    """Whatever of the model differs: a modification, the depth, dropout. With another seed, nothing is shared."""
    folder = tiny.corpus(tmp_path) if task == "translation" else plain_text.texts(tmp_path)
    own = {} if task == "translation" else plain_text.settings(folder, task=task)
    arms = {
        "plain": {},
        "other": {"model__modifications": ["rotary", "swiglu"], "model__layers": 2, "model__dropout": 0.3},
        "seed": {"training__seed": 2},
    }
    seen, backward = {}, Trainer.backward

    def noted(trainer, batches, counts):
        seen.setdefault(trainer.store.run.directory.name, []).extend(batches)
        return backward(trainer, batches, counts)

    monkeypatch.setattr(Trainer, "backward", noted)
    for name, settings in arms.items():
        trained(tiny.short(folder, training__keep=9, **own, **settings), folder / name)
    fields = {name: [batch.fields for batch in batches] for name, batches in seen.items()}
    assert len(fields["plain"]) == 4
    for mine, theirs in zip(fields["plain"], fields["other"], strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[field]) for field, tensor in mine.items())
    assert not torch.equal(fields["plain"][0]["source"], fields["seed"][0]["source"])
    plain, other, seed = (first_weights(Run(folder / name)) for name in arms)
    common = [name for name, tensor in plain.items() if name in other and other[name].shape == tensor.shape]
    assert len(common) > len(plain) / 2
    assert all(torch.equal(plain[name], other[name]) for name in common)
    assert not torch.equal(plain["tables.0.weight"], seed["tables.0.weight"])


def test_a_run_on_prepared_text_is_whole_without_it(tmp_path):
    """What it shares with the folder stays when the folder goes."""
    folder = tiny.corpus(tmp_path)
    prepared = prepare(tiny.config(folder), folder / "prepared")
    trained(tiny.short(folder), folder / "run", prepared=prepared)
    for file in (folder / "prepared").iterdir():
        file.unlink()
    again = trained(tiny.short(folder), folder / "other")
    assert again.step == 4
    names = {path.name for path in (folder / "run" / "data").iterdir()}
    assert names == {path.name for path in (folder / "other" / "data").iterdir()}


def test_text_is_prepared_again_in_its_folder(tmp_path):
    folder = tiny.corpus(tmp_path)
    for size in (30, 20):
        prepared = prepare(tiny.config(folder, data__max_length=size), folder / "prepared")
        assert prepared.report.limit == size


@pytest.mark.parametrize("there", ["a run", "a text", "a text beside prepared text", "a file", "the corpus"])
def test_nothing_but_prepared_text_is_replaced(tmp_path, there):
    """`prepare` replaces its folder as a whole."""
    folder = tiny.corpus(tmp_path)
    place = {"a file": folder / "train.w", "the corpus": folder}.get(there, folder / "place")
    if there == "a run":
        trained(tiny.short(folder), place)
    if there == "a text beside prepared text":
        prepare(tiny.config(folder), place)
    if there.startswith("a text"):
        place.mkdir(exist_ok=True)
        (place / "mine.txt").write_text("mine")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"is not prepared text, but .*; give a new or empty folder"):
        prepare(tiny.config(folder), place)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("strict", [False, True])
def test_torch_is_left_as_it_was(tmp_path, monkeypatch, strict):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    folder = tiny.corpus(tmp_path)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(strict, warn_only=strict)
    try:
        torch.manual_seed(5)
        state, threads, variables = torch.get_rng_state(), torch.get_num_threads(), dict(os.environ)
        trained(tiny.short(folder, training__deterministic=not strict), folder / "run")
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.are_deterministic_algorithms_enabled() == strict
        assert torch.is_deterministic_algorithms_warn_only_enabled() == strict
        assert torch.get_num_threads() == threads
        assert dict(os.environ) == variables
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def test_where_the_global_generator_stands_is_no_matter(tmp_path):
    folder, found = tiny.corpus(tmp_path), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        trained(tiny.short(folder), folder / str(seed))
        found.append(tiny.bytes_of(Run(folder / str(seed))))
    assert found[0] == found[1]


def test_the_outcome_has_the_scores(tmp_path):
    folder = labelled.tables(tmp_path)
    outcome = trained(labelled.config(folder), folder / "run")
    lines = [record for record in Run(folder / "run").records() if record["kind"] == "valid"]
    best = [line for line in lines if line["best"]][-1]
    assert (outcome.run, outcome.step, outcome.finished, outcome.signal) == (folder / "run", 30, True, None)
    assert (outcome.best, outcome.best_step) == (best["accuracy"], best["step"])
    assert outcome.best == max(line["accuracy"] for line in lines)
    assert outcome.scores == {key: lines[-1][key] for key in outcome.scores}
    assert set(outcome.scores) == {"loss", "perplexity", "accuracy", "macro_f1"}


def test_text_that_was_prepared_for_other_data_is_refused(tmp_path):
    folder = tiny.corpus(tmp_path)
    prepared = prepare(tiny.config(folder), folder / "prepared")
    with pytest.raises(ValueError) as error:
        trained(tiny.config(folder, data__max_length=50), folder / "run", prepared=prepared)
    assert "was prepared for another text: data.max_length was" in str(error.value)
    assert "and is 50; prepare it again" in str(error.value)
    assert not (folder / "run").exists()


def test_text_that_was_prepared_for_another_task_is_refused(tmp_path):
    """A table of two columns can be pairs, or texts with labels: the section `data` is the same."""
    folder = labelled.tables(tmp_path)
    prepared = prepare(labelled.config(folder), folder / "prepared")
    pairs = labelled.config(folder, task="translation", training__metric="loss")
    with pytest.raises(ValueError, match="was prepared as texts with labels, not as pairs; prepare it again"):
        trained(pairs, folder / "run", prepared=prepared)
    assert not (folder / "run").exists()


def test_runs_on_prepared_text_may_begin_with_a_run(tmp_path):
    """On its own text, prepared without a size of the vocabulary, and on another, prepared with its tokenizers."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, seed in ((first, 0), (second, 1)):
        folder.mkdir()
        tiny.corpus(folder, seed=seed)
    config, run = tiny.short(first, data__max_length=30), first / "run"
    text = prepare(config, first / "prepared")
    trained(config, run)
    given = read_config(None, {"data.train": str(second / "train"), **ONE_STEP})
    other = prepare(given, second / "prepared", start_from=run)
    assert [each.fingerprint for each in other.tokenizers] == [each.fingerprint for each in text.tokenizers]
    own = trained(given, second / "own", start_from=run)
    for folder in (first, second):
        spoil(folder)
    on_it = trained(given, second / "given", start_from=run, prepared=other)
    assert tiny.bytes_of(Run(on_it.run)) == tiny.bytes_of(Run(own.run))
    assert trained(tiny.short(first), first / "again", start_from=run, prepared=text).finished


def test_text_that_was_prepared_with_another_tokenizer_is_no_way_to_go_on_from_a_run(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, seed in ((first, 0), (second, 1)):
        folder.mkdir()
        tiny.corpus(folder, seed=seed)
    (second / "train.r").write_text((second / "train.r").read_text().replace("a", "z"))  # as many symbols, one another
    words = {"data__vocabulary": {"source": 261, "target": 13}}  # said, so that there is nothing to inherit
    trained(tiny.short(first, **words), first / "run")
    prepared = prepare(tiny.short(second, **words), second / "prepared")
    with pytest.raises(ValueError, match=r"prepared was prepared with other tokenizers .* start_from=RUN"):
        trained(tiny.short(second, **words), second / "run", prepared=prepared, start_from=first / "run")
    assert not (second / "run").exists()
