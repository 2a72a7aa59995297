"""Makes a parallel corpus from LibreOffice's help, of which Debian has one package per language.

A page of help is the same file in every language, and its paragraphs carry the same ids:

    help/en-US/text/swriter/guide/spellcheck.html    <p id="par_id3149836">Place the cursor …</p>
    help/de/text/swriter/guide/spellcheck.html       <p id="par_id3149836">Setzen Sie den Cursor …</p>

so that paragraphs are aligned by id. Each page goes completely to training, validation or test. The text is
LibreOffice's, under the Mozilla Public License 2.0: sixfold contains the program that makes the corpus, not the corpus.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

from sixfold.disk.atomic import new_directory
from sixfold.disk.reading import read_json
from sixfold.text.debian_package import Deb

LANGUAGES = (
    *("ca", "cs", "da", "de", "dz", "el", "en-gb", "en-us", "es", "et", "eu", "fi", "fr", "gl", "hi", "hu", "id"),
    *("it", "ja", "km", "ko", "nl", "om", "pl", "pt", "pt-br", "ru", "sk", "sl", "sv", "tr", "vi", "zh-cn", "zh-tw"),
)
SPACELESS = {"dz", "ja", "km", "zh-cn", "zh-tw"}  # languages without spaces: two characters count as a word
SHORTEST, LONGEST = 3, 50  # words of a text
SPLITS = ("train", "valid", "test")
PAGE = re.compile(r"(?:\./)?usr/(?:share|lib)/libreoffice/help/[A-Za-z-]+/(text(?:/[\w-][\w.-]*)+\.html)")
VOID = {"img", "input", "link", "meta", "wbr"}  # elements without an end tag; <br> is a space
MADE_BY = "sixfold prepare libreoffice"
INVISIBLE = str.maketrans(
    "", "", "\u00ad\u200b\u2060\ufeff"
)  # soft hyphen, zero-width space, joiner and byte order mark
LICENCE = (
    "The text is part of LibreOffice's help, (c) LibreOffice contributors, under the Mozilla Public License 2.0 "
    "(https://www.mozilla.org/MPL/2.0/); /usr/share/doc/PACKAGE/copyright in each package has the details."
)


class ParagraphPair(NamedTuple):
    source: str
    target: str


@dataclass(frozen=True)
class Summary:
    """The packages of a corpus, and its counts."""

    source: str
    target: str
    packages: dict[str, str]  # name -> version
    pages: int
    aligned: int
    dropped: dict[str, int]
    pairs: dict[str, int]
    licence: str = LICENCE

    def lines(self) -> Iterator[str]:
        yield "from " + " and ".join(f"{name} {version}" for name, version in self.packages.items())
        yield f"{self.pages:,} pages in both languages, {self.aligned:,} paragraphs with the same id"
        yield "dropped: " + ", ".join(f"{amount:,} {why}" for why, amount in self.dropped.items())
        yield "pairs: " + ", ".join(f"{amount:,} {split}" for split, amount in self.pairs.items())
        yield self.licence

    def json(self) -> dict[str, Any]:
        return {"made_by": MADE_BY, **asdict(self)}


def prepare(
    source: str,
    target: str,
    out: Path,
    source_deb: Path | None = None,
    target_deb: Path | None = None,
    progress: Callable[[str], None] | None = None,
    *,
    overwrite: bool = False,
) -> Summary:
    """Write OUT/train.SOURCE, OUT/train.TARGET, … and OUT/README.json; packages not given are fetched by apt-get."""
    tell = progress or (lambda _: None)
    names = _package(source), _package(target)
    if names[0] == names[1]:
        raise ValueError(f"source and target are the same language, {source!r} and {target!r}")
    _check_output(out, overwrite)
    with tempfile.TemporaryDirectory(prefix="sixfold-") as folder:
        given = dict(zip(names, (source_deb, target_deb), strict=True))
        missing = [name for name, path in given.items() if path is None]
        if missing:
            tell(f"fetching {' and '.join(missing)}")
        fetched = _fetch(missing, Path(folder))
        debs = [_open(name, path or fetched[name]) for name, path in given.items()]
        pages = []
        for deb in debs:
            tell(f"reading {deb.name} {deb.version}")
            pages.append(_read_pages(deb))
    corpus = _Corpus(source, target)
    for name in sorted(pages[0].keys() & pages[1].keys()):
        corpus.add(name, pages[0][name], pages[1][name])
    splits = corpus.splits()
    summary = corpus.summary({deb.name: deb.version for deb in debs}, splits)
    if not splits["train"]:
        raise ValueError(f"{names[0]} and {names[1]} have no paragraphs in common; are they of the same version?")
    _write(out, summary, splits)
    return summary


# ------------------------------------------------------------------------------------------------ packages


def _package(language: str) -> str:
    code = {"en": "en-us"}.get(language.lower(), language.lower().replace("_", "-"))
    if code not in LANGUAGES:
        raise ValueError(
            f"LibreOffice's help does not come in {language!r}; Debian has {', '.join(LANGUAGES)} (en is en-us)"
        )
    return f"libreoffice-help-{code}"


def _fetch(names: list[str], folder: Path) -> dict[str, Path]:
    """Download packages by apt-get, which needs no root and installs nothing."""
    if not names:
        return {}
    instead = "; or get the packages from https://packages.debian.org and give --source-deb FILE --target-deb FILE"
    if shutil.which("apt-get") is None:
        raise ValueError(f"there is no apt-get here to fetch {' and '.join(names)}: run this on Debian{instead}")
    done = subprocess.run(
        ["apt-get", "download", *names],
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    found = {name: next(folder.glob(f"{name}_*.deb"), None) for name in names}
    if done.returncode != 0 or None in found.values():
        errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        why = " ".join(errors) or f"it ended with {done.returncode}"
        raise ValueError(
            f"apt-get could not fetch {' and '.join(names)} ({why}): try `apt-get update` as root first{instead}"
        )
    return {name: path for name, path in found.items() if path is not None}


def _open(name: str, path: Path) -> Deb:
    deb = Deb(path)
    if deb.name != name:
        raise ValueError(f"{path} is the package {deb.name!r}, not {name!r}")
    return deb


# ------------------------------------------------------------------------------------------------ pages


def _read_pages(deb: Deb) -> dict[str, dict[str, list[str]]]:
    """The paragraphs of every page, by the page's name without its language."""
    pages = {}
    for name, text in deb.files(lambda name: PAGE.fullmatch(name) is not None):
        match = PAGE.fullmatch(name)
        assert match is not None
        pages[match[1]] = paragraphs(text)
    if not pages:
        raise ValueError(f"{deb.path} ({deb.name} {deb.version}) has no help pages at the usual paths")
    return pages


def paragraphs(page: str) -> dict[str, list[str]]:
    """Id → texts of a page; several, if the page includes other pages with the same ids."""
    parser = _Paragraphs()
    parser.feed(page)
    parser.close()
    return parser.found


@dataclass
class _Element:
    """An element that is open, and its text so far."""

    tag: str
    attributes: dict[str, str | None]
    texts: list[str] = field(default_factory=list)
    choice: int | None = None  # index of the text that is one of several variants

    def vary(self, text: str, default: bool) -> None:
        """Keep one of several variants (for Writer and Calc, macOS and others): the default, otherwise the first."""
        if self.choice is None:
            self.choice = len(self.texts)
            self.texts.append(text)
        elif default:
            self.texts[self.choice] = text


class _Paragraphs(HTMLParser):
    """Collects the texts of the elements whose ids begin with par_id or hd_id."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: dict[str, list[str]] = {}
        self._open: list[_Element] = []  # the paragraph, and the open elements in it

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br":
            self.handle_data(" ")
        elif tag not in VOID:
            attributes = dict(attrs)
            if self._open or (attributes.get("id") or "").startswith(("par_id", "hd_id")):
                self._open.append(_Element(tag, attributes))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)  # in HTML <p/> is <p>: browsers ignore the slash

    def handle_endtag(self, tag: str) -> None:
        if not any(element.tag == tag for element in self._open):
            return
        while self._open:
            closed = self._open.pop()
            self._keep(closed)
            if closed.tag == tag:
                break

    def _keep(self, closed: _Element) -> None:
        text, name = "".join(closed.texts), closed.attributes.get("id") or ""
        if not self._open:
            self.found.setdefault(name, []).append(tidy(text))
        elif "hidden" in closed.attributes:
            self._open[-1].vary(text, default=name.startswith("default"))
        else:
            self._open[-1].texts.append(text)

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].texts.append(data)


def tidy(text: str) -> str:
    """The text as one line, with single spaces and without invisible characters."""
    visible = unicodedata.normalize("NFC", text).translate(INVISIBLE)
    return " ".join(visible.split())


# ------------------------------------------------------------------------------------------------ pairs


def align(source: dict[str, list[str]], target: dict[str, list[str]]) -> Iterator[ParagraphPair]:
    """Pairs of texts with the same id, in order. An id whose numbers of texts differ is left out."""
    for key, texts in source.items():
        if len(texts) == len(target.get(key, ())):
            yield from map(ParagraphPair, texts, target[key])


class _Corpus:
    """Collects pairs, page by page."""

    def __init__(self, source: str, target: str):
        self.languages = source, target
        self.pages = 0
        self.aligned = 0
        self.dropped: Counter[str] = Counter()
        self._pairs: dict[str, dict[ParagraphPair, None]] = {split: {} for split in SPLITS}

    def add(self, name: str, source: dict[str, list[str]], target: dict[str, list[str]]) -> None:
        self.pages += 1
        kept = self._pairs[split_of(name)]
        for pair in align(source, target):
            self.aligned += 1
            why = self._refuse(pair) or ("twice" if pair in kept else "")
            if why:
                self.dropped[why] += 1
            else:
                kept[pair] = None

    def _refuse(self, pair: ParagraphPair) -> str:
        lengths = [words(text, language) for text, language in zip(pair, self.languages, strict=True)]
        if min(lengths) < SHORTEST:
            return f"under {SHORTEST} words"
        if max(lengths) > LONGEST:
            return f"over {LONGEST} words"
        return "not translated" if pair.source == pair.target else ""

    def splits(self) -> dict[str, list[ParagraphPair]]:
        """The pairs of each split, without sources that occur in an earlier split."""
        seen: set[str] = set()
        splits: dict[str, list[ParagraphPair]] = {}
        for split, pairs in self._pairs.items():
            splits[split] = [pair for pair in pairs if pair.source not in seen]
            self.dropped["in an earlier split"] += len(pairs) - len(splits[split])
            seen |= {pair.source for pair in pairs}
        return splits

    def summary(self, packages: dict[str, str], splits: dict[str, list[ParagraphPair]]) -> Summary:
        pairs = {split: len(found) for split, found in splits.items()}
        return Summary(*self.languages, packages, self.pages, self.aligned, dict(self.dropped), pairs)


def split_of(page: str) -> str:
    """The split of a page, by a hash of its name: about 4 % are for validation and 4 % for the test."""
    hundredth = int.from_bytes(hashlib.sha256(page.encode()).digest()[:8], "big") % 100
    return "test" if hundredth < 4 else "valid" if hundredth < 8 else "train"


def words(text: str, language: str) -> int:
    if _package(language).removeprefix("libreoffice-help-") in SPACELESS:
        return len(text.replace(" ", "")) // 2
    return len(text.split())


# ------------------------------------------------------------------------------------------------ output


def _check_output(out: Path, overwrite: bool) -> None:
    """Raise a ValueError unless `out` is free, or a corpus of this command: `--overwrite --out ~` must not delete ~."""
    if not os.path.lexists(out):
        return
    if not overwrite:
        raise ValueError(f"{out} exists already; give another --out, or --overwrite")
    try:
        ours = read_json(out / "README.json").get("made_by") == MADE_BY
    except (OSError, ValueError, AttributeError):
        ours = False
    if not ours and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} was not made by this command, so it is not replaced; give another --out")


def _write(out: Path, summary: Summary, splits: dict[str, list[ParagraphPair]]) -> None:
    with new_directory(out) as folder:
        for split, pairs in splits.items():
            _write_lines(folder / f"{split}.{summary.source}", (pair.source for pair in pairs))
            _write_lines(folder / f"{split}.{summary.target}", (pair.target for pair in pairs))
        about = json.dumps(summary.json(), indent=2, ensure_ascii=False)
        (folder / "README.json").write_text(f"{about}\n", encoding="utf-8", newline="\n")


def _write_lines(path: Path, texts: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{text}\n" for text in texts)
