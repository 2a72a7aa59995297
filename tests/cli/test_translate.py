"""`sixfold translate` and `sixfold generate`, as a person or a script uses them."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sixfold as package
from sixfold.cli import decoding_verbs, main
from sixfold.decoding import workers
from sixfold.decoding.translator import Translator
from tests.support import runs
from tests.support.standard_input import Stdin


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return runs.translating(tmp_path_factory.mktemp("runs") / "mine")


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return runs.writing(tmp_path_factory.mktemp("runs") / "lm")


@pytest.fixture
def sixfold(monkeypatch, capsysbinary, tmp_path):
    """→ exit code, standard output and standard error; both are bytes, or text where it is plain."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments, stdin=b"", terminal=False):
        monkeypatch.setattr(sys, "argv", ["sixfold", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", Stdin(stdin, terminal))
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsysbinary.readouterr()
        return left.value.code or 0, out.decode(), err.decode()

    return command


def texts(run, *lines, **keys):
    return [found.text for found in package.load(run, device="cpu").translate(lines, **keys)]


def test_lines_in_lines_out(sixfold, run):
    lines = ["a b c", "", "i h g f", "   ", "c"]
    expected = "".join(f"{text}\n" for text in texts(run, *lines))
    code, out, err = sixfold("translate", run, stdin="\n".join(lines).encode())
    assert (code, out) == (0, expected)
    assert err.startswith("5 lines in ")
    Path("in.txt").write_text("\n".join(lines) + "\n")
    assert sixfold("translate", run, "in.txt", "--window", "2")[1] == expected
    with gzip.open("in.txt.gz", "wb") as file:
        file.write(b"\xef\xbb\xbf" + Path("in.txt").read_bytes())  # a byte order mark is no text
    code, out, _ = sixfold("translate", run, "in.txt.gz", "--out", "out.txt")
    assert (code, out, Path("out.txt").read_text()) == (0, "", expected)
    assert sixfold("translate", run, stdin=b"")[1] == ""


def test_options_win_over_the_run_and_have_short_names(sixfold, run):
    short = sixfold("translate", run, "--max_length", "3", stdin=b"a b c\n")[1]
    assert short == sixfold("translate", run, "--decoding.max_length", "3", stdin=b"a b c\n")[1]
    assert short == f"{texts(run, 'a b c', max_length=3)[0]}\n"
    assert short != sixfold("translate", run, stdin=b"a b c\n")[1]


def test_n_best_is_number_score_and_text(sixfold, run):
    code, out, _ = sixfold("translate", run, "--beam_size", "3", "--n_best", "2", stdin=b"a b\n\nc\n")
    (first, _, second) = package.load(run, device="cpu").translate(["a b", "", "c"], beam_size=3, n_best=2)
    expected = [f"1\t{each.score:.4f}\t{each.text}" for each in first.n_best]
    expected += ["2\t0.0000\t", *(f"3\t{each.score:.4f}\t{each.text}" for each in second.n_best)]
    assert (code, out.splitlines()) == (0, expected)


def test_jsonl_says_all_there_is(sixfold, run):
    code, out, _ = sixfold("translate", run, "--format", "jsonl", "--beam_size", "2", "--n_best", "2", stdin=b"a b\n\n")
    assert code == 0
    full, empty = map(json.loads, out.splitlines())
    (found,) = package.load(run, device="cpu").translate(["a b"], beam_size=2, n_best=2, alignment=True)
    assert (full["source"], full["text"], full["ended"]) == ("a b", found.text, found.ended)
    assert full["score"] == pytest.approx(found.score, abs=1e-6)
    assert full["log_prob"] == pytest.approx(sum(found.log_probs), abs=1e-5)
    assert full["tokens"] == found.text.split()
    assert [*full["confidence"], full["end_confidence"]] == pytest.approx(found.confidence, abs=1e-6)
    assert full["source_tokens"] == ["a", "b"]
    assert full["alignment"] == [[i, at] for i, at in enumerate(found.alignment.tokens)]
    assert full["word_alignment"] == [list(pair) for pair in found.alignment.words]
    assert [each["text"] for each in full["n_best"]] == [each.text for each in found.n_best]
    assert (empty["source"], empty["text"], empty["tokens"], empty["note"]) == ("", "", [], "")


def test_a_line_ends_at_its_end_only(sixfold, run):
    code, out, err = sixfold("translate", run, stdin="a\u2028b\x85c\x0bd\x1ce\r\nb\r\n".encode())
    assert (code, out.count("\n"), len(err.splitlines())) == (0, 2, 1)


def test_what_is_not_utf8_is_named_and_all_before_it_is_done(sixfold, run):
    expected = "".join(f"{text}\n" for text in texts(run, "a", "", "b c"))
    code, out, err = sixfold("translate", run, stdin=b"a\n\nb c\nd\xffe\nf\n")
    assert (code, out) == (2, expected)
    assert "standard input, line 4: byte 0xff at column 2 is not UTF-8" in err
    Path("in.txt").write_bytes(b"a\n\nb c\nd\xffe\nf\n")
    code, _, err = sixfold("translate", run, "in.txt", "--out", "out.txt")
    assert (code, Path("out.txt").read_text()) == (2, expected)
    assert "in.txt, line 4" in err
    assert "broken off: 3 lines" in err


def test_a_line_of_100_000_characters_is_truncated_or_refused(sixfold, run):
    long = ("a" + " b" * 50_000).encode()
    code, out, err = sixfold("translate", run, stdin=b"a\n" + long + b"\nc\n")
    assert (code, out.count("\n")) == (0, 3)
    assert "line 2: the source has 50,001 tokens and was truncated to 1,024" in err
    code, out, err = sixfold("translate", run, "--too_long", "refuse", stdin=b"a\n" + long + b"\nc\n")
    assert (code, out.splitlines()) == (2, texts(run, "a"))
    assert "line 2: the source has 50,001 tokens" in err


def test_text_is_never_markup_nor_does_it_drive_a_terminal(sixfold, run, monkeypatch):
    said = "[bold]<b>&amp;\x1b[31m\u200d\xa0x\u202e"
    monkeypatch.setattr("sixfold.decoding.session.DecodingSession.text", lambda *_: said)
    assert sixfold("translate", run, stdin=b"a\n")[1] == f"{said}\n"
    monkeypatch.setattr("sixfold.cli.lines.Output.__init__", on_terminal)
    assert sixfold("translate", run, stdin=b"a\n")[1] == "[bold]<b>&amp;\\x1b[31m\u200d\xa0x\\u202e\n"


def on_terminal(output, path=None):
    output.terminal, output._own, output._stream = True, None, sys.stdout.buffer


def test_an_end_of_line_in_an_output_does_not_make_two_lines(sixfold, run, monkeypatch):
    monkeypatch.setattr("sixfold.decoding.session.DecodingSession.text", lambda *_: "one\ntwo\u2028")
    assert sixfold("translate", run, stdin=b"a\n")[1] == "one two\u2028\n"
    out = sixfold("translate", run, "--format", "jsonl", stdin=b"a\n")[1]
    assert len(out.splitlines()) == 1
    assert json.loads(out)["text"] == "one\ntwo\u2028"


def test_terms_and_prefixes_line_by_line(sixfold, run):
    Path("terms.txt").write_text("F\n\nG I\tF\n")
    Path("begin.txt").write_text("\nH A\n\n")
    code, out, err = sixfold(
        *("translate", run, "--terms", "terms.txt", "--prefixes", "begin.txt", "--term", "D", "--beam_size", "4"),
        stdin=b"a\nb\nc\n",
    )
    assert code == 0, err
    one, two, three = out.splitlines()
    assert all("D" in line.split() for line in (one, two, three))
    assert "F" in one.split()
    assert two.startswith("H A")
    assert "G I" in three
    assert "F" in three.split()
    for lines, words in ((b"a\nb\nc\nd\n", "has only 3 lines of terms"), (b"a\n", "has more lines than the input")):
        code, out, err = sixfold("translate", run, "--terms", "terms.txt", stdin=lines)
        assert (code, out.count("\n")) == (2, min(lines.count(b"\n"), 3))
        assert f"terms.txt {words}" in err


def test_an_ensemble(sixfold, run, tmp_path):
    other = runs.translating(tmp_path / "other", seed=5)
    expected = [t.text for t in package.load([run, other], device="cpu").translate(["a b c"])]
    assert sixfold("translate", run, "--with", other, stdin=b"a b c\n")[1].splitlines() == expected


def test_a_prompt_on_a_terminal(sixfold, run, monkeypatch):
    lines = iter(["a b", "", "a " * 2000])

    def asked(prompt):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", asked)
    code, out, err = sixfold("translate", run, terminal=True)
    first, long = texts(run, "a b", "a " * 2000)
    assert (code, out.splitlines()) == (0, [first, "", long])
    assert "Ctrl-D" in err
    assert "truncated to 1,024" in err


@pytest.mark.parametrize("options", [(), ("--trace",), ("--n_best", "2", "--beam_size", "2")])
def test_records_of_lines_on_a_terminal(sixfold, run, monkeypatch, options):
    monkeypatch.setattr("sixfold.cli.translate.ask_for_lines", lambda what, answer: answer("a b c"))
    code, out, _ = sixfold("translate", run, "--format", "jsonl", *options, terminal=True)
    assert (code, out) == (0, sixfold("translate", run, "--format", "jsonl", *options, stdin=b"a b c\n")[1])
    assert ("trace" in json.loads(out)) == ("--trace" in options)


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("translate", ["--out", "out.txt"]),
        ("translate", ["--terms", "lines.txt"]),
        ("translate", ["--prefixes", "lines.txt"]),
        ("translate", ["--workers", "2"]),
        ("generate", ["--workers", "2"]),
        ("generate", ["--workers", "2", "--format", "jsonl"]),
    ],
)
def test_options_for_files_are_not_ignored_on_a_terminal(sixfold, run, lm, verb, options):
    Path("lines.txt").write_text("A\n")
    code, out, err = sixfold(verb, run if verb == "translate" else lm, *options, terminal=True)
    what = f"sixfold: {options[0]} can't be given with lines typed one by one; give FILE, or - for standard input\n"
    assert (code, out, err) == (2, "", what)
    assert not Path("out.txt").exists()


def test_the_text_of_a_terminal_goes_to_a_file(sixfold, lm):
    assert sixfold("generate", lm, "--out", "out.txt", terminal=True)[:2] == (0, "")
    assert Path("out.txt").read_text() == sixfold("generate", lm, "--prompt", "")[1]


def test_the_help_prints_the_length_formula(sixfold):
    code, out, _ = sixfold("translate", "--help")
    assert code == 0
    assert "log p / ((5+L)/6)^VALUE" in " ".join(out.split())
    assert "  --beam_size " in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate", "nowhere"], "there is no directory nowhere"),
        (["translate", "."], "is not a model directory"),
        (["translate", "RUN", "nothing.txt"], "there is no file 'nothing.txt'"),
        (["translate", "RUN", "here.txt", "--out", "here.txt"], "--out here.txt is also the input"),
        (["translate", "RUN", "--beam_size", "none"], "decoding.beam_size"),
        (["translate", "RUN", "--n_best", "3"], "n_best 3 needs a beam_size at least as large, got 1"),
        (["translate", "RUN", "--device", "abacus"], "there is no device 'abacus'"),
        (["translate", "LM"], "is a model of kind decoder_only: use `sixfold generate`"),
        (["generate", "RUN"], "is a model of kind encoder_decoder: use `sixfold translate`"),
        (["generate", "LM", "here.txt", "--prompt", "x"], "--prompt or FILE, not both"),
        (["translate", "RUN", "--terms", "none.txt", "here.txt"], "there is no file 'none.txt'"),
        (["generate", "LM", "--prompt", "x", "--workers", "2"], "--workers can't be given with --prompt"),
    ],
)
def test_a_mistake_gets_one_sentence(sixfold, run, lm, arguments, words):
    Path("here.txt").write_text("a\n")
    code, out, err = sixfold(*({"RUN": run, "LM": lm}.get(each, each) for each in arguments))
    assert (code, out) == (2, "")
    assert words in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("sixfold: ")
    assert Path("here.txt").read_text() == "a\n"


def test_an_output_does_not_replace_a_part_of_a_run(sixfold, run):
    Path("here.txt").write_text("a\n")
    before = (run / "model.json").read_bytes()
    code, _, err = sixfold("translate", run, "here.txt", "--out", run / "model.json")
    assert code == 2
    assert "model.json would replace a part of the run" in err
    assert (run / "model.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--term", ""], "terms must not be empty, got ['']"),
        (["--term", "D", "--term", " "], "terms must not be empty, got ['D', ' ']"),
        (["--term", "dog"], "the term 'dog' has words that are not in the vocabulary"),
        (["--term", "D", "--forbidden_words", "[D]"], "the term 'D' can't be written: it is against"),
        (["--term", "D E F", "--max_length", "2"], "the terms 'D E F' need 3 tokens, but at most 2"),
        (["--forbidden_words", "['']"], "forbidden words must not be empty, got ['']"),
        (["--term", "D", "--forbidden_words", "['']"], "forbidden words must not be empty, got ['']"),
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_what_is_wrong_for_all_lines_is_not_blamed_on_the_first(sixfold, run, options, words, number):
    Path("out.txt").write_text("keep me\n")
    Path("in.txt").write_bytes(b"\xff\n")  # whoever reads this says so
    code, out, err = sixfold("translate", run, "in.txt", "--out", "out.txt", "--workers", number, *options)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(f"sixfold: {words}")
    assert Path("out.txt").read_text() == "keep me\n"
    code, out, err = sixfold("translate", run, *options, terminal=True)
    assert (code, out, err.startswith(f"sixfold: {words}")) == (2, "", True)  # before the first is asked for


@pytest.mark.parametrize("window", [3, 1024])
def test_a_line_for_which_no_word_is_left_is_named_and_all_lines_before_it_are_written(sixfold, run, window):
    """Each of the nine letters once, and after six of nine lines a term that comes too late."""
    options = ["--no_repeat_ngram_size", "1", "--min_length", "9", "--max_length", "9", "--window", window]
    lines = ["a b c", "i h", "", "d", "e f g h", "b", "c", "a", "f e"]
    Path("in.txt").write_text("".join(f"{line}\n" for line in lines))
    Path("terms.txt").write_text("\n" * 6 + "A B\n" + "\n" * 2)
    code, _, err = sixfold("translate", run, "in.txt", "--terms", "terms.txt", "--out", "out.txt", *options)
    assert code == 2
    assert err.splitlines()[-1].startswith("sixfold: line 7: no output of at most 9 tokens was found that keeps to")
    expected = texts(run, *lines[:6], no_repeat_ngram_size=1, min_length=9, max_length=9)
    assert Path("out.txt").read_text() == "".join(f"{text}\n" for text in expected)


def test_generate_streams_what_it_writes(sixfold, lm):
    writer = package.load(lm, device="cpu")
    found = writer.generate(["the cat"])[0].text
    code, out, _ = sixfold("generate", lm, "--prompt", "the cat")
    assert (code, out.rstrip("\n")) == (0, f"the cat{found}".rstrip("\n"))
    assert sixfold("generate", lm, "--prompt", "the cat")[1] == out
    assert sixfold("generate", lm, "--prompt", "the cat", "--seed", "2")[1] != out
    greedy = writer.generate(["the cat"], sample=False)[0].text
    assert sixfold("generate", lm, "--prompt", "the cat", "--sample", "false")[1].startswith(f"the cat{greedy}")
    assert sixfold("generate", lm, terminal=True)[1].rstrip("\n") == writer.generate([""])[0].text.rstrip("\n")
    code, _, err = sixfold("generate", lm, "--prompt", "the cat", "--max_length", "40", "--min_length", "30")
    assert "the model was trained on 16" in err


def test_generate_of_many_prompts(sixfold, lm):
    found = package.load(lm, device="cpu").generate(["the", "", "how"], n_best=2)
    code, out, _ = sixfold("generate", lm, "--n_best", "2", "--format", "jsonl", stdin=b"the\n\nhow\n")
    records = [json.loads(line) for line in out.splitlines()]
    assert (code, [record["prompt"] for record in records]) == (0, ["the", "", "how"])
    assert [[each["text"] for each in record["n_best"]] for record in records] == [
        [each.text for each in one.n_best] for one in found
    ]
    code, out, _ = sixfold("generate", lm, "--n_best", "2", stdin=b"the\n\nhow\n")
    whole = [
        f"{prompt}{each.text}" for prompt, one in zip(("the", "", "how"), found, strict=True) for each in one.n_best
    ]
    assert [each.strip("\n") for each in out.split("----\n")] == [each.strip("\n") for each in whole]


def test_prompts_are_shared_among_processes(sixfold, lm, monkeypatch):
    alone = sixfold("generate", lm, "--n_best", "2", stdin=b"the\n\nhow\n")
    started, start = [], workers._Worker.__init__
    monkeypatch.setattr(workers._Worker, "__init__", lambda self, *said: started.append(said) or start(self, *said))
    shared = sixfold("generate", lm, "--n_best", "2", "--workers", "1", stdin=b"the\n\nhow\n")
    assert shared[:2] == alone[:2]
    assert "the model was trained on" not in shared[2]
    long = sixfold("generate", lm, "--workers", "1", "--max_length", "40", "--min_length", "30", stdin=b"the cat\n")
    assert "line 1: prompt and output have" in long[2]  # notes come back, too
    assert len(started) == 2


def command(*arguments):
    return [sys.executable, "-m", "sixfold", *map(str, arguments)]


def test_each_line_is_answered_before_the_next_and_ctrl_c_leaves_what_is_done(run):
    process = subprocess.Popen(
        command("translate", run, "--device", "cpu"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for line, expected in zip(("a b", "c"), texts(run, "a b", "c"), strict=True):
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == f"{expected}\n"
    time.sleep(0.2)  # what was just written is counted by now, and the next line waited for
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert re.match("interrupted: [12] lines? in ", err.decode())
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_program_is_answered_while_earlier_lines_are_on_their_way(run, workers):
    """The input is never closed, half a line holds up nobody, and nothing is waited for but the next answer."""
    long = ["--min_length", "30", "--max_length", "30"]
    lines = [" ".join("abcdefghi"[: number % 9 + 1]) for number in range(60)]
    expected = [f"{text}\n" for text in texts(run, *lines, min_length=30, max_length=30)]
    process = subprocess.Popen(
        command("translate", run, "--device", "cpu", "--workers", workers, *long),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def say(text):
        process.stdin.write(text.encode())
        process.stdin.flush()

    with process:
        say("".join(f"{line}\n" for line in lines[:50]))
        answers = [process.stdout.readline().decode()]
        say("\n".join(lines[50:]))  # the last has no end yet
        answers += [process.stdout.readline().decode() for _ in range(58)]
        say("\n")
        answers.append(process.stdout.readline().decode())
        process.stdin.close()
        rest, told = process.stdout.read(), process.stderr.read().decode()
    assert answers == expected
    assert (process.returncode, rest) == (0, b"")
    assert told.startswith("60 lines in ")


def test_a_reader_that_has_enough_ends_it_quietly(run, tmp_path):
    (tmp_path / "in.txt").write_text("a b\n" * 5000)
    read, write = os.pipe()
    process = subprocess.Popen(
        command("translate", run, tmp_path / "in.txt", "--device", "cpu"), stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert os.read(read, 10)
    os.close(read)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


def test_nothing_is_written_where_something_to_read_is_missing(sixfold, run, tmp_path):
    (tmp_path / "out.txt").write_text("keep me\n")
    (tmp_path / "in.txt").write_text("a\n")
    for arguments in (["nowhere.txt"], ["in.txt", "--terms", "nowhere.txt"]):
        code, _, err = sixfold("translate", run, *arguments, "--out", "out.txt")
        assert (code, "there is no file 'nowhere.txt'" in err) == (2, True)
    assert (tmp_path / "out.txt").read_text() == "keep me\n"


def test_a_pipe_is_as_good_as_a_file_and_a_dash_is_standard_input(sixfold, run, tmp_path):
    reading, writing = os.pipe()
    os.write(writing, b"a b\n")
    os.close(writing)
    expected = sixfold("translate", run, stdin=b"a b\n")[1]
    assert sixfold("translate", run, f"/dev/fd/{reading}")[:2] == (0, expected)
    assert sixfold("translate", run, "-", stdin=b"a b\n")[:2] == (0, expected)


def test_a_trace_lists_the_candidates_of_every_step(sixfold, run, lm):
    for verb, where, read in (("translate", run, "source"), ("generate", lm, "prompt")):
        how = [verb, where, "--format", "jsonl", "--beam_size", "2"]
        _, plain, _ = sixfold(*how, stdin=b"a b\n")
        code, out, _ = sixfold(*how, "--trace", stdin=b"a b\n")
        (line,) = map(json.loads, out.splitlines())
        trace = line.pop("trace")
        assert (code, line) == (0, json.loads(plain)), read
        assert len(trace) >= len(line["tokens"])
        first = trace[0][0]
        assert list(first) == ["parent", "token", "log_prob", "total", "fate", "index"]
        assert (first["parent"], first["fate"], first["index"]) == (0, "kept", 0)
        assert {each["fate"] for step in trace for each in step} <= {"kept", "ended", "stopped", "cut"}
        code, out, err = sixfold(verb, where, "--trace", stdin=b"a b\n")
        assert (code, out) == (2, "")
        assert "--trace needs --format jsonl" in err


def test_jsonl_always_has_the_list_that_was_asked_for(sixfold, run):
    _, out, _ = sixfold("translate", run, "--format", "jsonl", "--beam_size", 3, "--n_best", 2, stdin=b"a\n\n")
    assert [len(json.loads(line)["n_best"]) for line in out.splitlines()] == [2, 1]


def test_a_mistake_in_an_option_is_not_blamed_on_the_file(sixfold, run):
    code, _, err = sixfold("translate", run, "--n_best", 3, stdin=b"a\n")
    assert code == 2
    assert "n_best 3 needs a beam_size" in err
    assert "config.yaml" not in err


def test_coverage_needs_cross_attention(sixfold, lm):
    code, _, err = sixfold("generate", lm, "--prompt", "a", "--beam_size", 2, "--coverage_penalty", 0.2)
    assert (code, "coverage_penalty needs cross-attention" in err) == (2, True)


def test_a_large_file_is_shared_without_being_asked(sixfold, run, monkeypatch, tmp_path):
    """A process for so many bytes, but no more than there are threads; never for what comes line by line."""
    asked = []
    monkeypatch.setattr(Translator, "stream", lambda self, lines, workers, **rest: asked.append(workers) or iter(()))
    monkeypatch.setattr(decoding_verbs, "_WORTH_A_WORKER", 10)
    monkeypatch.setattr(decoding_verbs, "usual_threads", lambda: 3)
    for size in (1, 19, 20, 1000):
        (tmp_path / "in.txt").write_bytes(b"x" * size)
        sixfold("translate", run, tmp_path / "in.txt")
    sixfold("translate", run, tmp_path / "in.txt", "--workers", 0)
    sixfold("translate", run, stdin=b"x" * 100)
    assert asked == [0, 0, 2, 3, 0, 0]
