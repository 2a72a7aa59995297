"""Many runs in one process, on text that was prepared once: each is as if it had been alone."""

import pytest
import torch

from sixfold.runs.run import Run
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import prepare, train
from tests.support import labelled, tiny


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


@pytest.mark.parametrize("strict", [False, True])
def test_torch_is_left_as_it_was(tmp_path, strict):
    folder = tiny.corpus(tmp_path)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(strict, warn_only=strict)
    try:
        torch.manual_seed(5)
        state, threads = torch.get_rng_state(), torch.get_num_threads()
        trained(tiny.short(folder, training__deterministic=not strict), folder / "run")
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.are_deterministic_algorithms_enabled() == strict
        assert torch.is_deterministic_algorithms_warn_only_enabled() == strict
        assert torch.get_num_threads() == threads
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
    assert "and is 50; prepare it anew" in str(error.value)
    assert not (folder / "run").exists()


def test_text_that_was_prepared_for_another_task_is_refused(tmp_path):
    """A table of two columns can be pairs, or texts with labels: the section `data` is the same."""
    folder = labelled.tables(tmp_path)
    prepared = prepare(labelled.config(folder), folder / "prepared")
    pairs = labelled.config(folder, task="translation", training__metric="loss")
    with pytest.raises(ValueError, match="was prepared as texts with labels, not as pairs; prepare it anew"):
        trained(pairs, folder / "run", prepared=prepared)
    assert not (folder / "run").exists()


def test_text_that_was_prepared_with_another_tokenizer_is_no_way_to_go_on_from_a_run(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, seed in ((first, 0), (second, 1)):
        folder.mkdir()
        tiny.corpus(folder, seed=seed)
    (second / "train.r").write_text((second / "train.r").read_text().replace("a", "z"))  # as many symbols, one another
    words = {"data__vocabulary": {"source": 261, "target": 13}}  # said, so that there is nothing to inherit
    trained(tiny.short(first, **words), first / "run")
    prepared = prepare(tiny.short(second, **words), second / "prepared")
    with pytest.raises(ValueError, match="prepared was prepared with other tokenizers"):
        trained(tiny.short(second, **words), second / "run", prepared=prepared, start_from=first / "run")
    assert not (second / "run").exists()
