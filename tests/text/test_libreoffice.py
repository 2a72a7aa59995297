"""A corpus from LibreOffice's help, on packages made here: what aligns, what is dropped, what is refused."""

import io
import json
import lzma
import shutil
import subprocess
import sys
import tarfile

import pytest

from sixfold import cli
from sixfold.text import debian_package as deb_module
from sixfold.text import libreoffice
from sixfold.text.debian_package import Deb
from sixfold.text.libreoffice import align, paragraphs, prepare, split_of, tidy, words

FOLDER = {"en-us": "en-US", "de": "de"}


def ar(*members):
    """An `ar` archive, as its manual page draws it."""
    archive = b"!<arch>\n"
    for name, content in members:
        archive += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        archive += b"\n" * (len(content) % 2)
    return archive


def tar(files, odd=()):
    """A tar of texts, then of members that are made by hand."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for member in odd:
            archive.addfile(member)
    return buffer.getvalue()


def page(**texts):
    body = "".join(f'<p id="{key}" class="paragraph">{text}</p>' for key, text in texts.items())
    return f"<!DOCTYPE html><html><body>{body}</body></html>"


def make_deb(path, language, pages, odd=(), name=None):
    control = f"Package: {name or f'libreoffice-help-{language}'}\nVersion: 4:7.0-1\nDescription: help\n more\n"
    files = {f"./usr/share/libreoffice/help/{FOLDER[language]}/{key}": text for key, text in pages.items()}
    control_tar, data = lzma.compress(tar({"./control": control})), lzma.compress(tar(files, odd))
    path.write_bytes(ar(("debian-binary", b"2.0\n"), ("control.tar.xz", control_tar), ("data.tar.xz", data)))
    return path


def name_for(part, number=0):
    """The name of a page that belongs to a part."""
    names = (f"text/page{i}.html" for i in range(10_000))
    return [next(n for n in names if split_of(n) == part) for _ in range(number + 1)][-1]


@pytest.fixture
def made(tmp_path):
    """Make a corpus of {page: [(English, German), …]}."""

    def make(pages, odd=(), **options):
        sides = []
        for side, language in enumerate(("en-us", "de")):
            texts = {n: page(**{f"par_id{i}": p[side] for i, p in enumerate(ps)}) for n, ps in pages.items()}
            sides.append(make_deb(tmp_path / f"{language}.deb", language, texts, odd))
        return prepare("en", "de", tmp_path / "out", *sides, **options)

    return make


def lines(folder, part):
    sides = [(folder / f"{part}.{s}").read_text(encoding="utf-8").split("\n")[:-1] for s in ("en", "de")]
    return list(zip(*sides, strict=True))


def test_paragraphs_align_by_id_within_a_page(tmp_path):
    name = name_for("train")
    english = page(par_id1="the first of them", par_id2="only in English here", hd_id3="a heading with words")
    german = page(hd_id3="eine Überschrift mit Wörtern", par_id1="das erste von ihnen", par_id9="nur auf Deutsch da")
    one = make_deb(
        tmp_path / "a.deb", "en-us", {name: english, "text/other.html": page(par_id9="not in German at all")}
    )
    two = make_deb(tmp_path / "b.deb", "de", {name: german})
    summary = prepare("en", "de", tmp_path / "out", one, two)
    assert lines(tmp_path / "out", "train") == [
        ("the first of them", "das erste von ihnen"),
        ("a heading with words", "eine Überschrift mit Wörtern"),
    ]
    assert (summary.pages, summary.aligned, summary.pairs["train"]) == (1, 2, 2)
    about = json.loads((tmp_path / "out" / "README.json").read_text(encoding="utf-8"))
    assert about["packages"] == {"libreoffice-help-en-us": "4:7.0-1", "libreoffice-help-de": "4:7.0-1"}
    assert about["pairs"] == {"train": 2, "valid": 0, "test": 0}
    assert "Mozilla Public License" in about["licence"]


def test_what_is_dropped_and_why(made, tmp_path):
    fifty = " ".join(["w"] * 50)
    summary = made(
        {
            name_for("train"): [
                ("two words", "drei kurze Wörter"),
                ("three short words", "zwei Wörter"),
                (fifty + " w", "drei kurze Wörter"),
                (fifty, "das geht noch"),
                ("left in English", "left in English"),
                ("said more than once", "mehrmals so gesagt"),
                ("said more than once", "mehrmals so gesagt"),
                ("said more than once", "mehrmals anders gesagt"),
            ]
        }
    )
    assert summary.dropped == {
        "under 3 words": 2,
        "over 50 words": 1,
        "not translated": 1,
        "twice": 1,
        "in an earlier split": 0,
    }
    assert [target for _, target in lines(tmp_path / "out", "train")] == [
        "das geht noch",
        "mehrmals so gesagt",
        "mehrmals anders gesagt",
    ]


def test_pages_go_whole_to_one_part_and_no_source_is_in_two(made, tmp_path):
    both, late = (
        ("a sentence in all parts", "ein Satz in allen Teilen"),
        ("shared by the last two", "in den letzten zwei"),
    )
    pairs = {part: (f"only in {part} here", f"nur hier in {part}") for part in ("train", "valid", "test")}
    summary = made(
        {
            name_for("test"): [both, late, pairs["test"]],
            name_for("valid"): [("a sentence in all parts", "mit anderen Worten gesagt"), late, pairs["valid"]],
            name_for("train"): [both, pairs["train"]],
        }
    )
    assert lines(tmp_path / "out", "train") == [both, pairs["train"]]
    assert lines(tmp_path / "out", "valid") == [late, pairs["valid"]]
    assert lines(tmp_path / "out", "test") == [pairs["test"]]
    assert summary.dropped["in an earlier split"] == 3


def test_shares_of_the_parts():
    names = [f"text/swriter/{i:08}.html" for i in range(5000)]
    shares = {part: sum(split_of(name) == part for name in names) / 50 for part in ("train", "valid", "test")}
    assert shares == {
        "train": pytest.approx(92, abs=1),
        "valid": pytest.approx(4, abs=1),
        "test": pytest.approx(4, abs=1),
    }


def test_a_page_becomes_plain_text():
    html = (
        '<p id="par_id1">Choose <span class="x">Tools\n - <b>Options</b></span> &amp;&nbsp;press&#x20;<i>OK</i>.</p>'
        '<div id="par_id2">outer <div>inner</div> tail</div> loose text <p id="bas_id3">PRINT</p>'
        '<h2 id="hd_id4">a<br>b</h2><p id="par_id5">one <img alt="no"></p><p id="par_id5">two</p>'
    )
    assert paragraphs(html) == {
        "par_id1": ["Choose Tools - Options & press OK."],
        "par_id2": ["outer inner tail"],
        "hd_id4": ["a b"],
        "par_id5": ["one", "two"],
    }


@pytest.mark.parametrize(
    ("variants", "text"),
    [
        (
            '<span hidden="true" class="MAC">Command</span><span hidden="true" id="default1">Ctrl</span>',
            "Press Ctrl now",
        ),
        ('<span hidden="true" class="WRITER">Up</span><span hidden="true" class="CALC">Down</span>', "Press Up now"),
        ('<span hidden="true" class="WIN">Alt</span>', "Press Alt now"),
    ],
)
def test_of_several_variants_one_is_read(variants, text):
    html = f'<p id="par_id1">Press <span class="switchinline">{variants}</span> now</p>'
    assert paragraphs(html) == {"par_id1": [text]}


def test_texts_of_one_id_align_in_turn_or_not_at_all():
    source = {"a": ["one", "two"], "b": ["three"], "c": ["four"]}
    assert list(align(source, {"a": ["eins", "zwei"], "b": ["drei", "vier"]})) == [("one", "eins"), ("two", "zwei")]


def test_tidy_leaves_one_line():
    assert tidy(" a\u00a0b\u2028c\r\nd\u00ade\ufeff ") == "a b c de"
    assert tidy("u\u0308ber") == "über"


def test_languages_without_spaces_are_counted_by_characters():
    assert words("東京 は 大きい", "ja") == 3
    assert words("東京 は 大きい", "de") == 3
    assert words("東京は大きい町", "zh-cn") == 3


def test_hostile_members_are_neither_read_nor_written(made, tmp_path):
    def odd(name, kind=tarfile.REGTYPE, target="", size=0):
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, target, size
        return member

    inside = "./usr/share/libreoffice/help/de/text/"
    hostile = [
        odd("../../etc/escaped.html"),
        odd(f"{inside}../../../../../../../escaped.html"),
        odd("/escaped.html"),
        odd(f"{inside}link.html", tarfile.SYMTYPE, "/etc/hostname"),
        odd(f"{inside}hard.html", tarfile.LNKTYPE, "/etc/hostname"),
        odd(f"{inside}pipe.html", tarfile.FIFOTYPE),
        odd(f"{inside}device.html", tarfile.CHRTYPE),
    ]
    summary = made({name_for("train"): [("an honest short page", "eine ehrliche kurze Seite")]}, odd=hostile)
    assert (summary.pages, summary.pairs["train"]) == (1, 1)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted(
        ["de.deb", "en-us.deb", "README.json", *(f"{p}.{s}" for p in ("train", "valid", "test") for s in ("en", "de"))]
    )


def test_a_page_that_claims_to_be_huge_is_refused_unread(made):
    huge = tarfile.TarInfo("./usr/share/libreoffice/help/de/text/huge.html")
    huge.size = 1 << 40
    with pytest.raises(ValueError, match=r"huge\.html claims 1,099,511,627,776 bytes"):
        made({name_for("train"): [("an honest short page", "eine ehrliche kurze Seite")]}, odd=[huge])


def test_an_archive_that_unpacks_without_end_is_refused(made, monkeypatch):
    monkeypatch.setattr(deb_module, "LARGEST_ARCHIVE", 100_000)
    text = ("an honest short page", "wort " * 50_000)
    with pytest.raises(ValueError, match="unpacks to more than 100,000 bytes"):
        made({name_for("train"): [text]})


def test_a_package_cut_anywhere_is_refused(tmp_path):
    whole = make_deb(tmp_path / "whole.deb", "de", {"text/a.html": page(par_id1="drei kurze Wörter")})
    assert dict(Deb(whole).files(lambda _: True))
    content = whole.read_bytes()
    cut = tmp_path / "cut.deb"
    for size in range(0, len(content) - 1, 7):
        cut.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"cut\.deb (is|has)"):
            list(Deb(cut).files(lambda _: True))


def test_members_of_odd_length_are_padded(tmp_path):
    control = lzma.compress(tar({"./control": "Package: x\nVersion: 1\n"}))
    data = tar({"./a.html": "text"})
    path = tmp_path / "x.deb"
    path.write_bytes(ar(("debian-binary", b"2.0"), ("_odd", b"x"), ("control.tar.xz", control), ("data.tar", data)))
    assert list(Deb(path).files(lambda _: True)) == [("./a.html", "text")]


def test_a_damaged_package_is_refused(tmp_path):
    whole = make_deb(tmp_path / "whole.deb", "de", {"text/a.html": page(par_id1="drei kurze Wörter")})
    content = bytearray(whole.read_bytes())
    content[-60] ^= 255
    whole.write_bytes(content)
    with pytest.raises(ValueError, match=r"whole\.deb is damaged or cut short"):
        list(Deb(whole).files(lambda _: True))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\3\4 not a package", "is not a Debian package"),
        (ar(("debian-binary", b"2.0\n")), "has no control.tar"),
        (ar(("control.tar.lzh", b"")), "has a compression that sixfold can't read"),
        (ar(("control.tar", tar({"./other": "x"}))), "lacks the name or the version of a package"),
    ],
)
def test_what_is_no_package(tmp_path, content, message):
    path = tmp_path / "x.deb"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Deb(path)


def test_the_wrong_package_is_refused(tmp_path):
    english = make_deb(tmp_path / "en.deb", "en-us", {"text/a.html": page()})
    with pytest.raises(ValueError, match="is the package 'libreoffice-help-en-us', not 'libreoffice-help-de'"):
        prepare("en", "de", tmp_path / "out", english, english)


@pytest.mark.parametrize(("source", "target"), [("en", "xx"), ("../en", "de"), ("en", "de/../..")])
def test_unknown_languages_are_refused_with_the_list(tmp_path, source, target):
    with pytest.raises(ValueError, match=r"does not come in .*; Debian has .*, de, .*, zh-tw"):
        prepare(source, target, tmp_path / "out")


def test_one_language_is_no_pair(tmp_path):
    with pytest.raises(ValueError, match="the same language"):
        prepare("en", "en-US", tmp_path / "out")


def test_only_a_corpus_is_overwritten(made, tmp_path):
    pages = {name_for("train"): [("an honest short page", "eine ehrliche kurze Seite")]}
    made(pages)
    with pytest.raises(ValueError, match="exists already"):
        made(pages)
    made(pages, overwrite=True)
    (tmp_path / "out" / "README.json").unlink()
    with pytest.raises(ValueError, match="was not made by this command"):
        made(pages, overwrite=True)
    assert len(lines(tmp_path / "out", "train")) == 1


def test_on_the_command_line(monkeypatch, capsys, tmp_path):
    name, out = name_for("train"), tmp_path / "out"
    one = make_deb(tmp_path / "a.deb", "en-us", {name: page(par_id1="an honest short page")})
    two = make_deb(tmp_path / "b.deb", "de", {name: page(par_id1="eine ehrliche kurze Seite")})
    command = f"sixfold prepare libreoffice --source en --target de --out {out} --source-deb {one} --target-deb {two}"
    monkeypatch.setattr(sys, "argv", command.split())
    for code, said in ((0, "1 train, 0 valid, 0 test"), (2, "exists already; give another --out, or --overwrite")):
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert (left.value.code or 0) == code
        assert said in capsys.readouterr().err
    assert lines(out, "train") == [("an honest short page", "eine ehrliche kurze Seite")]


def test_without_apt_get_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ValueError, match=r"no apt-get here .* --source-deb FILE --target-deb FILE"):
        prepare("en", "de", tmp_path / "out")


def test_what_apt_get_complains_of_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/apt-get")
    failed = subprocess.CompletedProcess([], 100, "", "W: slow\nE: Unable to locate package libreoffice-help-de\n")
    monkeypatch.setattr(libreoffice.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ValueError, match=r"\(E: Unable to locate package libreoffice-help-de\).*--source-deb"):
        prepare("en", "de", tmp_path / "out")


def test_only_the_missing_package_is_fetched(monkeypatch, tmp_path):
    name = name_for("train")
    english = make_deb(tmp_path / "en.deb", "en-us", {name: page(par_id1="an honest short page")})
    asked = []

    def run(command, cwd, **_):
        asked.append(command)
        make_deb(cwd / "libreoffice-help-de_1_all.deb", "de", {name: page(par_id1="eine ehrliche kurze Seite")})
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/apt-get")
    monkeypatch.setattr(libreoffice.subprocess, "run", run)
    assert prepare("en", "de", tmp_path / "out", source_deb=english).pairs["train"] == 1
    assert asked == [["apt-get", "download", "libreoffice-help-de"]]
