"""The curves of runs as a picture."""

import json
import sys

import pytest

from sixfold.api.describe import metric_in
from sixfold.api.plot import draw, names, plot, read_curves
from sixfold.cli import main
from sixfold.runs.run import Run

pytest.importorskip("matplotlib")

TRAIN = [{"kind": "train", "step": step, "loss": 4 / step} for step in (1, 2, 4)]
VALID = [{"kind": "valid", "step": s, "best": True, "loss": 5 / s, "perplexity": 2.0, "bleu": 10.0 * s} for s in (2, 4)]


@pytest.fixture
def make_run(tmp_path):
    def make(name, records):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("")
        (tmp_path / name / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return Run(tmp_path / name)

    return make


def lines(axes):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def test_the_loss_of_a_further_term_is_no_metric(make_run):
    """Of a task with several terms; its line has the metric last."""
    several = [{"kind": "valid", "step": step, "loss": 1.0, "size_loss": 1.0, "bleu": 2.0} for step in (2, 4)]
    run = make_run("mine", several)
    assert read_curves("mine", run).metric == "bleu"
    assert metric_in({"kind": "valid", "step": 1, "loss": 1.0, "size_loss": 1.0}) is None


def test_the_lines_are_what_the_log_says(make_run):
    figure = draw([read_curves("mine", make_run("mine", [*TRAIN, *VALID]))])
    loss, bleu = figure.axes
    assert lines(loss) == {
        "training: mine": ([1, 2, 4], [4.0, 2.0, 1.0]),
        "validation: mine": ([2, 4], [2.5, 1.25]),
    }
    assert lines(bleu) == {"validation: mine": ([2, 4], [20.0, 40.0])}
    assert [loss.get_ylabel(), bleu.get_ylabel()] == ["loss", "bleu"]


def test_several_runs_share_a_picture_and_each_metric_has_a_panel(make_run):
    other = [{**VALID[0], "chrf": 50.0}]
    del other[0]["bleu"]
    runs = [make_run("a", VALID), make_run("b", other), make_run("c", TRAIN)]
    loss, bleu, chrf = draw([read_curves(run.directory.name, run) for run in runs]).axes
    assert len(lines(loss)) == 3
    assert list(lines(bleu)) == ["validation: a"]
    assert list(lines(chrf)) == ["validation: b"]


def test_what_is_no_number_is_a_gap(make_run):
    records = [{"kind": "train", "step": s, "loss": v} for s, v in ((1, "NaN"), (2, "Infinity"), (3, None), (4, 0.5))]
    *gaps, last = read_curves("x", make_run("x", records)).train.values
    assert all(gap != gap for gap in gaps)
    assert last == 0.5


@pytest.mark.parametrize(("name", "begins"), [("x.png", b"\x89PNG"), ("x.SVG", b"<?xml")])
def test_the_suffix_says_the_format(make_run, tmp_path, name, begins):
    out = tmp_path / "pictures" / name
    plot([make_run("mine", [*TRAIN, *VALID])], out)
    assert out.read_bytes().startswith(begins)
    assert [path.name for path in out.parent.iterdir()] == [name]


def test_names_are_shown_as_they_are_and_the_same_curves_give_the_same_file(make_run, tmp_path):
    runs = [make_run("_$x_2$ <&>", TRAIN), make_run("b$", VALID)]
    for name in ("one.svg", "two.svg"):
        plot(runs, tmp_path / name)
    text = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert ">training: _$x_2$ &lt;&amp;&gt;</text>" in text
    assert text == (tmp_path / "two.svg").read_text(encoding="utf-8")


def test_equal_names_become_paths(make_run, tmp_path):
    assert names([make_run("a/run", []), make_run("b/run", [])]) == [f"{tmp_path}/a/run", f"{tmp_path}/b/run"]
    assert names([make_run("c/one", []), make_run("c/two", [])]) == ["one", "two"]


def test_other_suffixes_are_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match=r"\.png or \.svg, got 'curves\.pdf'"):
        plot([Run("nowhere")], tmp_path / "curves.pdf")


def test_a_directory_that_is_no_run_and_a_run_without_lines_are_named(make_run, tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a run"):
        plot([Run("nowhere")], tmp_path / "curves.png")
    with pytest.raises(ValueError, match="fresh has nothing to plot yet"):
        plot([make_run("fresh", [{"kind": "stopped", "step": 0}])], tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_without_matplotlib_it_says_what_to_install(make_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install -c constraints.txt -e '.\[plot\]'"):
        plot([make_run("mine", TRAIN)], tmp_path / "curves.png")


def test_the_verb_writes_the_picture(make_run, tmp_path, monkeypatch, capsys):
    run, out = make_run("mine", TRAIN), tmp_path / "curves.svg"
    monkeypatch.setattr(sys, "argv", ["sixfold", "plot", str(run.directory), "--out", str(out)])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert capsys.readouterr() == ("", f"wrote {out}\n")
    assert out.exists()
