"""Recognises files that are not plain lines of UTF-8, by name and first bytes, and says what to do about them."""

from __future__ import annotations

import gzip
import json
import shlex
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path

from sixfold.config.schema import Data

_USUAL_FIELD = "source"  # of a JSON object: the one that holds the text
_FIRST = 1 << 16  # largest number of bytes read of a first line
_UNREAD = {  # name endings of training files that some or all forms of text can't read
    ".csv": "holds comma-separated values, which can't be read here: convert it to a .tsv (columns separated by tabs) "
    "or a .jsonl",
    ".json": "is a JSON document, which can't be read here: convert it to a .jsonl, with one object on each line "
    "(jq -c '.[]' {file} > {stem}.jsonl); if it has one on each line already, give it a name that ends in .jsonl",
}
_NOT_LINES = {  # name endings of files whose lines are not plain texts
    ".csv": "comma-separated values: save the column with the text as a file of its own",
    ".tsv": "columns separated by tabs: extract the text first (cut -f 1 {file} > {stem}.txt)",
    ".json": "a JSON document: extract the texts first (jq -r '.[].source' {file} > {stem}.txt)",
    ".jsonl": "JSON records: extract the texts first (jq -r .{field} {file} > {stem}.txt)",
}
_SIGNATURES = {
    b"\x1f\x8b": "is compressed by gzip: give it a name that ends in .gz",
    b"PK\x03\x04": "is a ZIP archive, or a document such as .docx or .xlsx: save its text as plain UTF-8 text",
    b"%PDF-": "is a PDF: save its text as plain UTF-8 text",
}
_COLUMNS = """
source target src tgt trg text translation input output question answer word pronunciation sentence1 sentence2
english french german spanish italian portuguese dutch polish russian chinese japanese korean turkish arabic
ar bg ca cs da de el en es et fa fi fr he hi hr hu id is it ja ko lt lv nl no pl pt ro ru sk sl sr sv tr uk vi zh
"""  # usual names of columns, in lower case


def refuse_unread(name: str, key: str, also: Collection[str] = ()) -> None:
    """Raise a ValueError if training can't read a file of this kind. `also` are further endings that it can read."""
    ending, path = file_ending(name), Path(name).expanduser()
    if ending in _UNREAD and ending not in also and path.is_file():
        raise ValueError(f"{key}: {name} {_filled(_UNREAD[ending], name)}")


def refuse_records(path: Path) -> None:
    """Raise a ValueError if the name of this file says that its lines are not plain texts."""
    if (ending := file_ending(path.name)) in _NOT_LINES:
        field = _text_field(_first_line(path)) or _USUAL_FIELD
        what = _filled(_NOT_LINES[ending], str(path), field)
        raise ValueError(f"each line of the input must be a text, but {path} holds {what}")


def refuse_bytes(first_line: bytes, name: str) -> None:
    """Raise a ValueError if the first line shows that the file is not UTF-8 text."""
    for signature, what in _SIGNATURES.items():
        if first_line.startswith(signature):
            raise ValueError(f"{name} {what}")
    zeros = len(first_line) >= 4 and 3 * first_line.count(0) > len(first_line)
    if zeros or first_line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{name} is UTF-16, not UTF-8: convert it by iconv -f UTF-16 -t UTF-8 FILE > NEW")


def warnings_of(first_line: str, name: str, *, training: bool = False) -> list[str]:
    """Warnings if the first line of a text is a JSON object, or holds several lines that end in \\r."""
    found = []
    if count := first_line.removesuffix("\n").removesuffix("\r").count("\r"):
        found.append(
            f"warning: {name}, line 1: carriage returns (\\r, {count:,} here) are read as text, because a line ends at "
            f"\\n or \\r\\n; tr '\\r' '\\n' < FILE > NEW makes them line ends"
        )
    if (field := _text_field(first_line.encode())) is not None:
        found.append(
            f"warning: {name}, line 1: a JSON object is read as text, with its braces and the names of its fields; "
            + (
                "give it a name that ends in .jsonl to read its fields"
                if training
                else f"extract the text with jq -r .{field} < FILE > NEW"
            )
        )
    return found


def _text_field(line: bytes) -> str | None:
    """The field of a JSON object that probably holds the text; None if the line is not a JSON object."""
    try:
        record = json.loads(line) if line.startswith(b"{") else None
    except (ValueError, RecursionError):
        return None
    if record is None:
        return None
    texts = [name for name, value in record.items() if isinstance(value, str) and name.isidentifier()]
    return _USUAL_FIELD if _USUAL_FIELD in texts or not texts else texts[0]


def remarks(data: Data, files: Iterable[Path], *, pairs: bool) -> list[str]:
    """Remarks on the first lines of the training, validation and test files."""
    found: list[str] = []
    for path in dict.fromkeys(files):
        line = _first_line(path)
        if line.endswith(b"\r\n") and file_ending(path.name) != ".csv":  # in a .csv they are usual
            found.append(
                f"note: {path} has Windows line ends (\\r\\n); the \\r is part of the line end, not of the text"
            )
        if file_ending(path.name) not in (".csv", ".jsonl"):  # whose readers report such lines themselves
            found += warnings_of(line.decode(errors="replace"), str(path), training=True)
        if pairs and file_ending(path.name) == ".tsv":
            found += _header(path, line, data)
    return found


def _header(path: Path, line: bytes, data: Data) -> list[str]:
    """A remark if the first line of a table, which is read as text, has the names of columns."""
    numbers = data.source or "1", data.target or "2"
    cells = line.decode(errors="replace").rstrip("\r\n").split("\t")
    if not all(number.isdecimal() and 1 <= int(number) <= len(cells) for number in numbers):
        return []
    source, target = (cells[int(number) - 1] for number in numbers)
    if not {source.strip().lower(), target.strip().lower()} <= {*_COLUMNS.split()}:
        return []
    named = f"--data.source {shlex.quote(source)} --data.target {shlex.quote(target)}"
    return [
        f"warning: {path}, line 1: {source!r} and {target!r} look like names of columns, but are read as text; "
        f"if they are names, give {named}"
    ]


def _first_line(path: Path) -> bytes:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            return file.readline(_FIRST).removeprefix(b"\xef\xbb\xbf")
    except (OSError, EOFError, zlib.error):  # reported when the file is read completely
        return b""


def file_ending(name: str) -> str:
    """ ".csv" for both x.csv and X.CSV.gz."""
    return Path(name.lower().removesuffix(".gz")).suffix


def _filled(text: str, name: str, field: str = _USUAL_FIELD) -> str:
    stem = Path(name.removesuffix(".gz")).stem
    return text.format(file=shlex.quote(name), stem=shlex.quote(stem), field=field)
