"""There is one way from a line to its output: each line has one job, one set of rules, and demands are checked once."""

import re
from collections import Counter

import pytest

import sixfold as package
from sixfold.cli import main
from sixfold.decoding import front, session
from sixfold.decoding.generator import GenerationSession
from sixfold.decoding.job import Hypothesis, Job, Sentence
from sixfold.decoding.records import Line, Translation
from sixfold.decoding.search.beam import _Beams, _Group
from sixfold.decoding.translator import TranslationSession
from tests.support import runs
from tests.support.generators import small_writer
from tests.support.standard_input import Stdin
from tests.support.translators import LINES, small_translator

WRITTEN = [line for line in LINES if line.strip()]


@pytest.fixture
def calls(monkeypatch):
    """How often rules were made, demands checked, and a job made of each text."""
    found = Counter()

    def count(module, name, what):
        function = getattr(module, name)

        def counted(*args, **options):
            found[what(args)] += 1
            return function(*args, **options)

        monkeypatch.setattr(module, name, counted)

    count(session, "make_rules", lambda args: "rules")
    count(session, "check_demands", lambda args: "demands")
    count(front, "check_demands", lambda args: "demands")
    for kind in (TranslationSession, GenerationSession):
        count(kind, "job", lambda args: ("job", args[1].text))
    return found


def once(lines):
    """Each line has a job; each that is not empty has rules, and the demands on all have theirs."""
    return Counter({"demands": 1, "rules": 1 + sum(bool(line.strip()) for line in lines)}) + Counter(
        ("job", line) for line in lines
    )


@pytest.mark.parametrize(
    "keys", [{}, {"terms": [["A"]] * len(LINES), "beam_size": 4}, {"prefixes": ["B"] * len(LINES)}]
)
def test_translations(calls, keys):
    small_translator(max_length=12).translate(LINES, **keys)
    assert calls == once(LINES)


def test_lines_that_come_one_by_one_and_a_term_of_all(calls):
    lines = (line for each in LINES for line in (each, None))
    found = list(small_translator(max_length=12).stream(lines, wait=lambda: None, window=2, terms=["C"], beam_size=4))
    assert all(("C" in each.text) == bool(line.strip()) for each, line in zip(found, LINES, strict=True))
    assert calls == once(LINES)


def test_continuations_at_once_and_piece_by_piece(calls):
    prompts = ["the", "how now"]
    small_writer().generate(prompts)
    assert calls == once(prompts)
    calls.clear()
    assert "".join(small_writer().stream("the cat"))
    assert calls == once(["the cat"])


def test_the_command_line(calls, monkeypatch, tmp_path):
    run = runs.translating(tmp_path / "run")
    (tmp_path / "in.txt").write_text("a b\n\nc\n")
    term = ["--term", "D", "--beam_size", "4"]
    file = [str(tmp_path / "in.txt"), "--out", str(tmp_path / "out.txt")]
    for arguments, terminal, stdin in ((file, False, b""), ([], False, b"a b\n\nc\n"), ([], True, b"a b\n\nc\n")):
        calls.clear()
        monkeypatch.setattr("sys.argv", ["sixfold", "translate", str(run), *arguments, *term, "--device", "cpu"])
        monkeypatch.setattr("sys.stdin", Stdin(stdin, terminal))
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
        assert calls == once(["a b", "", "c"])
    translated = [
        each.text
        for each in package.load(run, device="cpu").translate(["a b", "", "c"], terms=[["D"]] * 3, beam_size=4)
    ]
    assert (tmp_path / "out.txt").read_text().split("\n") == [*translated, ""]


@pytest.mark.parametrize("make", [small_translator, small_writer])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Line("a \ud800"), r"half a character \(U\+D800\)"),
        (Line("a", "\ud800"), r"half a character \(U\+D800\)"),
        (Line("a", terms=("A", "\udc00")), r"half a character \(U\+DC00\)"),
        (Line(7), "expected a text, got int"),
        (Line("a", terms=(None,)), "expected a text, got NoneType"),
    ],
)
def test_what_is_no_text_is_the_mistake_of_its_line(make, wrong, message):
    first, error, last = make().session().jobs([Line("a b"), wrong, Line("c")])
    assert isinstance(error, ValueError)
    assert re.search(message, str(error))
    assert isinstance(first, Job)
    assert isinstance(last, Job)


def reached_from(thing):
    """An object, and all that it holds."""
    yield thing
    if isinstance(thing, dict | list | tuple):
        inside = thing.values() if isinstance(thing, dict) else thing
    else:
        inside = getattr(thing, "__dict__", {}).values()
    for each in inside:
        yield from reached_from(each)


@pytest.mark.parametrize(
    ("keys", "search"), [({}, {Sentence}), ({"beam_size": 4, "n_best": 2, "beam_groups": 2}, {_Beams, _Group})]
)
def test_a_sentence_passes_through_five_kinds_of_objects(keys, search):
    """A beam is a sentence, too, with groups of hypotheses."""
    session = small_translator().session(**keys)
    line, engine = Line("a b"), session.engine()
    (job,) = session.jobs([line])
    sentence = engine.submit(job)
    while not sentence.done:
        running = sentence.open[0]
        engine.step()
    (translation,) = session.finish([sentence])
    kinds = [type(each) for each in (line, job, sentence, running, sentence.found[0], translation)]
    assert [*dict.fromkeys(kinds)] == [Line, Job, type(sentence), Hypothesis, Translation]
    assert isinstance(sentence, Sentence)
    held = {type(each) for each in reached_from(sentence) if type(each).__module__.startswith("sixfold.")}
    assert held == {Line, Job, Hypothesis, *search}
