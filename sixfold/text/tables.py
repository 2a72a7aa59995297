"""Reads texts with labels, one in each row of a table: .tsv, .csv or .jsonl, each also .gz.

.tsv     tabs between the columns; a quotation mark is text
.csv     RFC 4180: commas between the columns (or semicolons, if the first line has those and no comma); a field in
         quotation marks may hold commas, line ends, and quotation marks, which are written twice
.jsonl   an object on each line

`data.source` gives the column of the text and `data.target` that of its label: the name of a column or field, or the
number of a column from 1. Without them, usual names are searched in the first line; in a table of two columns without
such names, the text is the first and the label the second.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from sixfold.config.schema import EMBEDDED, Data, Files
from sixfold.core.names import unknown
from sixfold.core.quote import quoted
from sixfold.text.file_kinds import file_ending
from sixfold.text.lines import LONGEST_LINE, Opener, open_stored
from sixfold.text.sources import Source, Split, corpus_items, need_field, parse_record, read_lines, text_field

# Usual names of columns, in lower case, the likeliest first.
TEXT_NAMES = (
    *("text", "sentence", "review", "comment", "message", "content", "body", "document", "utterance", "query"),
    *("question", "tweet", "post", "article", "description", "headline", "title", "input", "source"),
)
LABEL_NAMES = (
    *("label", "class", "category", "sentiment", "topic", "intent", "emotion", "language", "lang", "genre"),
    *("tag", "rating", "stars", "score", "polarity", "labels", "output", "target"),
)
_LONGEST_LABEL = 1000  # characters

# Python's csv module refuses fields of more than 131,072 characters. The limit is global, so it is only ever raised.
csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))


class Row(NamedTuple):
    """One row of a table."""

    text: str
    label: str  # without white space around it; empty only where the text is
    line: int  # the number of the line where the row begins


class Columns(NamedTuple):
    """Which cells of a row hold the text and the label, as an index from 0."""

    text: int
    label: int
    header: bool  # the first row has the names of the columns


def table_sources(data: Data, split: Split) -> list[Source[Row]]:
    """The texts and labels of one split. Empty if the configuration has no such split."""
    return [_table_source(data, item, f"data.{split}") for item in corpus_items(data, split, also=(".csv",))]


def _table_source(data: Data, item: Files, key: str) -> Source[Row]:
    name = item.path
    if name is None or name.startswith(EMBEDDED) or file_ending(name) not in (".tsv", ".csv", ".jsonl"):
        given = name or f"{{source: {item.source}, target: {item.target}}}"
        raise ValueError(f"{key} is {given}, but texts and their labels are read from a .tsv, a .csv or a .jsonl")
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"{key}: there is no file {name!r}")
    read = read_records if file_ending(name) == ".jsonl" else read_table
    return Source(name, item.weight, lambda opener: read(path, data.source, data.target, opener), (path,))


def read_table(
    path: Path, source: str | None = None, target: str | None = None, opener: Opener = open_stored
) -> Iterator[Row]:
    """The rows of a .tsv or a .csv. An empty line is a row without a text."""
    columns, width, rows = None, 0, 0
    for number, cells in _cells(path, opener):
        if _is_blank(cells):
            yield Row("", "", number)
            continue
        if columns is None:
            width, columns = len(cells), find_columns(cells, source, target, f"{path}, line {number}")
            if columns.header:
                continue
        if len(cells) != width:
            raise ValueError(
                f"{path}, line {number}: this row has {_count(len(cells))}, but the first has {width} "
                f"({_RAGGED[file_ending(path.name)]})"
            )
        rows += 1
        yield _row(cells[columns.text], cells[columns.label], path, number)
    if not rows:
        raise ValueError(
            f"{path} has no row" if columns is None else f"{path} has no row after the names of its columns"
        )


def read_records(
    path: Path, source: str | None = None, target: str | None = None, opener: Opener = open_stored
) -> Iterator[Row]:
    """The rows of a .jsonl. A label may be a text, a number, true or false; null is an empty label."""
    fields: tuple[str, str] | None = None
    for number, line in enumerate(read_lines(path, opener), 1):
        if not line.strip():
            yield Row("", "", number)
            continue
        where = f"{path}, line {number}"
        record = parse_record(line, where, source or TEXT_NAMES[0])
        fields = fields or find_fields(record, source, target, where)
        text_name, label_name = fields
        text = "" if need_field(record, text_name, where) is None else text_field(record, text_name, where)
        yield _row(text, _label_field(record, label_name, where), path, number)


def described_columns(path: Path, source: str | None, target: str | None) -> str:
    """A description of the columns of text and label; empty if both were given by name."""
    if file_ending(path.name) == ".jsonl":
        if source is not None and target is not None:
            return ""
        for number, line in enumerate(read_lines(path), 1):
            if line.strip():
                where = f"{path}, line {number}"
                found = find_fields(parse_record(line, where, TEXT_NAMES[0]), source, target, where)
                return "the text is in field {!r}, the label in {!r}".format(*found)
        return ""
    for number, cells in _cells(path):
        if not _is_blank(cells):
            return _described(cells, source, target, f"{path}, line {number}")
    return ""


def _described(cells: Sequence[str], source: str | None, target: str | None, where: str) -> str:
    columns = find_columns(cells, source, target, where)
    if not columns.header:
        chosen = f"the text is in column {columns.text + 1}, the label in column {columns.label + 1}"
        return "" if source is not None and target is not None else f"{chosen}, and line 1 is the first row"
    if not any(each is None or each.isdecimal() for each in (source, target)):
        return ""
    text, label = (cells[index].strip() for index in columns[:2])
    return f"the text is in column {text!r}, the label in {label!r}"


# Where text and label are --------------------------------------------------------------------------------------------


def find_columns(cells: Sequence[str], source: str | None, target: str | None, where: str) -> Columns:
    """Find the columns of text and label by the first row of a table."""
    names = [cell.strip() for cell in cells]
    if len(names) < 2:
        raise ValueError(
            f"{where}: there is one column, but text and label need two: a .tsv has tabs between them, a .csv commas"
        )
    given = [None if column is None else _given_column(column, names, where) for column in (source, target)]
    text, label = _worked_out(names, *given)
    if len(names) == 2 and text is None and label is None:
        text, label = 0, 1
    if text is None or label is None:
        raise _unclear("column", names, where)
    if text == label:
        raise ValueError(f"{where}: data.source and data.target both name column {text + 1}; the label needs its own")
    return Columns(text, label, _is_header(names, text, label, source, target))


def _is_header(names: Sequence[str], text: int, label: int, source: str | None, target: str | None) -> bool:
    """Whether the first row is a header: a column was given by name, or its cells are usual names."""
    if any(column is not None and not column.isdecimal() for column in (source, target)):
        return True
    usual_text, usual_label = names[text].lower() in TEXT_NAMES, names[label].lower() in LABEL_NAMES
    return (usual_text and usual_label) or (usual_text and source is None) or (usual_label and target is None)


def find_fields(record: dict[str, Any], source: str | None, target: str | None, where: str) -> tuple[str, str]:
    """Find the fields of text and label by the first record."""
    names = [*record]
    for name in (source, target):
        if name is not None:
            need_field(record, name, where)
    if source is not None and source == target:
        raise ValueError(f"{where}: data.source and data.target both name field {source!r}; the label needs its own")
    text, label = _worked_out(names, *(None if name is None else names.index(name) for name in (source, target)))
    if text is None or label is None:
        raise _unclear("field", names, where)
    return names[text], names[label]


def _given_column(column: str, names: Sequence[str], where: str) -> int:
    """The index of a column that was given by number from 1 or by name."""
    if not column.isdecimal():
        if column not in names:
            raise ValueError(f"{where}: {unknown('column named', column, names)} (see data.source, data.target)")
        if names.count(column) > 1:
            raise ValueError(f"{where}: {names.count(column)} columns are named {column!r}; rename one of them")
        return names.index(column)
    if not 1 <= int(column) <= len(names):
        raise ValueError(f"{where}: there is no column {column}; there are {len(names)}, counted from 1")
    return int(column) - 1


def _worked_out(names: Sequence[str], text: int | None, label: int | None) -> tuple[int | None, int | None]:
    """Find a column that is not given by its usual name; of two columns, it is the other one."""
    text = _usual(names, TEXT_NAMES, label) if text is None else text
    label = _usual(names, LABEL_NAMES, text) if label is None else label
    if len(names) == 2:
        text = 1 - label if text is None and label is not None else text
        label = 1 - text if label is None and text is not None else label
    return text, label


def _usual(names: Sequence[str], usual: Sequence[str], taken: int | None) -> int | None:
    free = [name.lower() if index != taken else None for index, name in enumerate(names)]
    return next((free.index(name) for name in usual if name in free), None)


def _unclear(what: str, names: Sequence[str], where: str) -> ValueError:
    there = ", ".join(quoted(name) for name in names)
    return ValueError(
        f"{where}: give the {what} of the text (data.source) and that of the label (data.target); there are {there}"
    )


# Rows ----------------------------------------------------------------------------------------------------------------

_RAGGED = {
    ".tsv": "a text can't contain tabs",
    ".csv": "put a text that contains a comma or a line end in quotation marks",
}


def _row(text: str, label: str, path: Path, number: int) -> Row:
    label = label.strip()
    if not label and text.strip():
        raise ValueError(f"{path}, line {number}: the label is empty; give one, or leave the row out")
    if len(label) > _LONGEST_LABEL or any(mark in label for mark in "\t\r\n"):
        raise ValueError(
            f"{path}, line {number}: a label is one line of at most {_LONGEST_LABEL:,} characters, without tabs, got "
            f"{quoted(label)}; is this the text? (data.target names the label)"
        )
    return Row(text, label, number)


def _label_field(record: dict[str, Any], field: str, where: str) -> str:
    value = need_field(record, field, where)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        raise ValueError(f"{where}: field {field!r} must hold one label, got {quoted(value)}")
    return text_field(record, field, where)


def _is_blank(cells: Sequence[str]) -> bool:
    return len(cells) < 2 and not "".join(cells).strip()


def _count(columns: int) -> str:
    return f"{columns} column{'' if columns == 1 else 's'}"


def _cells(path: Path, opener: Opener = open_stored) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, and the number of the line where it begins."""
    if file_ending(path.name) == ".csv":
        return _csv_cells(path, opener)
    lines = enumerate(read_lines(path, opener), 1)
    return ((number, line.removesuffix("\n").split("\t")) for number, line in lines)


def _csv_cells(path: Path, opener: Opener) -> Iterator[tuple[int, list[str]]]:
    lines = read_lines(path, opener)
    first = next(lines)
    delimiter = _delimiter(first)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{path}, line {start}: {_explained(str(error), delimiter, reader.line_num)}") from None
        if cells is None:
            return
        yield start, cells


def _delimiter(first_line: str) -> str:
    """A semicolon, as many spreadsheets write, if only semicolons divide the first line; otherwise a comma."""
    line = first_line.replace("\r", " ")  # which the reader of all lines refuses, with their number
    commas, semicolons = (len(next(csv.reader([line], delimiter=mark), [])) for mark in ",;")
    return ";" if commas < 2 <= semicolons else ","


def _explained(error: str, delimiter: str, line: int) -> str:
    """An error of Python's csv module, in plain words."""
    if "unexpected end" in error or "field limit" in error:
        return 'a quotation mark (") opens in this row and is never closed'
    if "expected after" in error:
        return (
            f"a quoted field must end with a quotation mark followed by {delimiter!r} or the end of the line, but "
            f'line {line} has more characters after it; inside a field, write a quotation mark twice ("")'
        )
    if "new-line character" in error:
        return (
            "there is a carriage return (\\r) in a field; put the field in quotation marks, or if it is meant to end "
            "the line, tr '\\r' '\\n' < FILE > NEW"
        )
    return error
