"""The sources of text: embedded examples, parallel files, tables, records, plain text. See `sixfold.text.lines`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from sixfold.config.schema import EMBEDDED, Data, Files
from sixfold.core.names import unknown
from sixfold.disk.hashes import file_hash
from sixfold.text import lines
from sixfold.text.file_kinds import refuse_unread
from sixfold.text.lines import Opener, open_stored

Split = Literal["train", "valid", "test"]
Pair = tuple[str, str]  # source and target
Stretch = tuple[str, bool]  # a piece of a document, and whether the document ends with it

_LONGEST_STRETCH = 1 << 16  # characters that a tokenizer gets at once: some texts are a single line of gigabytes

T = TypeVar("T")


@dataclass(frozen=True)
class Source(Generic[T]):
    """One item of data.train, data.valid or data.test."""

    name: str
    weight: float  # how often each line occurs in an epoch
    reader: Callable[[Opener], Iterator[T]]
    files: tuple[Path, ...] = ()  # empty for an embedded example

    def read(self, opener: Opener = open_stored) -> Iterator[T]:
        """Read the source once. Each file is opened by `opener` and read to its end."""
        return self.reader(opener)

    def hashes(self, hash_of: Callable[[Path], str] = file_hash) -> dict[str, str]:
        """File → SHA-256 of its bytes, by `hash_of`: by default of the file as it is now."""
        if self.files:
            return {str(path): hash_of(path) for path in self.files}
        from sixfold.text import pronounce

        return {self.name: pronounce.fingerprint()}


def pair_sources(data: Data, split: Split) -> list[Source[Pair]]:
    """The pairs of one split. Empty if the configuration has no such split."""
    return [_pair_source(data, item, f"data.{split}") for item in corpus_items(data, split)]


def text_sources(data: Data, split: Split) -> list[Source[Stretch]]:
    """The plain text of one split, for a language model."""
    return [_text_source(data, item, f"data.{split}") for item in corpus_items(data, split)]


def corpus_items(data: Data, split: Split, also: Collection[str] = ()) -> list[Files]:
    """The items of a split as a list of `Files`. `also` are further endings that the caller can read."""
    corpus = getattr(data, split)
    if corpus is None:
        return []
    items = [Files(path=item) if isinstance(item, str) else item for item in _list(corpus)]
    if not items:
        raise ValueError(f"data.{split} is an empty list; leave it out, or name a file")
    for item in items:
        if split != "train" and item.weight != 1:
            raise ValueError(f"data.{split} has weight {item.weight:g}, but only data.train can be weighted")
        two_files = item.source is not None and item.target is not None and item.path is None
        one_path = item.path is not None and item.source is None and item.target is None
        if not two_files and not one_path:
            given = item.model_dump(exclude_none=True, exclude={"weight"})
            raise ValueError(f"data.{split}: give {{path: FILE}} or {{source: FILE, target: FILE}}, got {given}")
        for name in (item.path, item.source, item.target):
            refuse_unread(name or "", f"data.{split}", also)
    return items


def _list(corpus: Any) -> list[Any]:
    return corpus if isinstance(corpus, list) else [corpus]


def _pair_source(data: Data, item: Files, key: str) -> Source[Pair]:
    if item.path is None:
        assert item.source is not None
        assert item.target is not None
        return _parallel([_existing(key, item.source), _existing(key, item.target)], item.weight)
    name = item.path
    if name.startswith(EMBEDDED):
        return _embedded(name, item.weight, key)
    if _is_kind(name, ".tsv"):
        path = _existing(key, name)
        reader = partial(_read_table, path, data.source or "1", data.target or "2")
        return Source(name, item.weight, reader, (path,))
    if _is_kind(name, ".jsonl"):
        path = _existing(key, name)
        records = partial(_read_records, path, [data.source or "source", data.target or "target"])
        return Source(name, item.weight, lambda opener: ((a, b) for a, b in records(opener)), (path,))
    if data.source is None or data.target is None:
        if Path(name).expanduser().is_file():
            raise ValueError(
                f"{key} is {name!r}, one text, but this task needs pairs: give {{source: FILE, target: FILE}}, a .tsv "
                f"or a .jsonl; a language model (`sixfold train lm`) needs one text"
            )
        raise ValueError(
            f"{key} is {name!r}, a prefix of two files: give their suffixes as data.source and data.target "
            f"(en and de for {name}.en and {name}.de), or give a .tsv, a .jsonl, or {{source: FILE, target: FILE}}"
        )
    halves = [_existing(key, f"{name}.{end}", f"{name}.{end}.gz") for end in (data.source, data.target)]
    return _parallel(halves, item.weight)


def _text_source(data: Data, item: Files, key: str) -> Source[Stretch]:
    if item.path is None or item.path.startswith(EMBEDDED):
        pairs = item.path or f"{{source: {item.source}, target: {item.target}}}"
        raise ValueError(f"{key} is {pairs}, which are pairs; a language model needs plain text or a .jsonl")
    path = _existing(key, item.path)
    if _is_kind(item.path, ".jsonl"):
        return Source(item.path, item.weight, partial(_read_documents, path, data.target or "text"), (path,))
    return Source(item.path, item.weight, partial(_read_text, path), (path,))


def _embedded(name: str, weight: float, key: str) -> Source[Pair]:
    split = name.removeprefix(EMBEDDED)
    if split not in ("train", "valid", "test"):
        raise ValueError(f"{key} is {name!r}; there are {', '.join(EMBEDDED + p for p in ('train', 'valid', 'test'))}")
    from sixfold.text import pronounce

    return Source(name, weight, lambda _: pronounce.examples(split))


def _parallel(halves: list[Path], weight: float) -> Source[Pair]:
    source, target = halves
    return Source(f"{source}, {target}", weight, partial(read_parallel, source, target), (source, target))


def _is_kind(name: str, ending: str) -> bool:
    return name.removesuffix(".gz").endswith(ending)


def _existing(key: str, *names: str) -> Path:
    """The first of these files that exists."""
    for name in names:
        path = Path(name).expanduser()
        if path.is_file():
            return path
    raise ValueError(f"{key}: there is no file {' and no '.join(repr(name) for name in names)}")


def read_lines(path: Path, opener: Opener = open_stored) -> Iterator[str]:
    """The lines of a file with their ends; an empty file is an error."""
    return _need_some(lines.read_lines(path, opener), path)


def _need_some(texts: Iterator[str], path: Path) -> Iterator[str]:
    text = None
    for text in texts:
        yield text
    if text is None:
        raise ValueError(f"{path} is empty")


def read_parallel(source: Path, target: Path, opener: Opener = open_stored) -> Iterator[Pair]:
    """Pairs of the lines of two files, without line ends."""
    left, right = read_lines(source, opener), read_lines(target, opener)
    for number, (a, b) in enumerate(zip_longest(left, right)):
        if a is None or b is None:
            longer = number + 1 + sum(1 for _ in (right if a is None else left))
            counts = (number, longer) if a is None else (longer, number)
            raise ValueError(
                f"{source} has {counts[0]:,} lines, but {target} has {counts[1]:,}: "
                f"line n of one must be the translation of line n of the other"
            )
        yield a.removesuffix("\n"), b.removesuffix("\n")


def _read_table(path: Path, source: str, target: str, opener: Opener) -> Iterator[Pair]:
    """Pairs from a .tsv. Columns are numbers from 1; if one is a name, the first line is a header."""
    rows = read_lines(path, opener)
    first = 1
    numbers = [int(column) if column.isdecimal() else None for column in (source, target)]
    if None in numbers:
        header = next(rows).rstrip("\r\n").split("\t")
        numbers = [_column(path, name, number, header) for name, number in zip((source, target), numbers, strict=True)]
        first = 2
    left, right = (number - 1 for number in numbers if number is not None)
    if min(left, right) < 0:
        raise ValueError(f"{path}: columns are counted from 1, got {source} and {target}")
    line = None
    for number, line in enumerate(rows, first):
        cells = line.removesuffix("\n").split("\t")
        if cells == [""]:
            yield "", ""
        elif len(cells) <= max(left, right):
            raise ValueError(
                f"{path}, line {number}: there is no column {max(left, right) + 1}, only {len(cells)} "
                f"(data.source and data.target set the columns)"
            )
        else:
            yield cells[left], cells[right]
    if line is None:
        raise ValueError(f"{path} has only a first line, the names of the columns")


def _column(path: Path, name: str, number: int | None, header: list[str]) -> int:
    if number is not None:
        return number
    if name not in header:
        raise ValueError(f"{path}, line 1: there is no column named {name!r}; there are {', '.join(header)}")
    return header.index(name) + 1


def _read_records(path: Path, fields: list[str], opener: Opener) -> Iterator[list[str]]:
    """The texts in these fields of each record."""
    for number, line in enumerate(read_lines(path, opener), 1):
        if not line.strip():
            yield [""] * len(fields)
            continue
        where = f"{path}, line {number}"
        record = parse_record(line, where, fields[0])
        yield [text_field(record, field, where) for field in fields]


def parse_record(line: str, where: str, example: str) -> dict[str, Any]:
    """The object in a line of a .jsonl; `example` is a field that it may have."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: this is not JSON ({error})") from None
    if not isinstance(record, dict):
        raise ValueError(f'{where}: expected an object such as {{"{example}": "…"}}, got {type(record).__name__}')
    return record


def need_field(record: Mapping[str, Any], field: str, where: str) -> Any:
    """The value of a field of a record; ValueError if there is no such field."""
    if field not in record:
        missing = unknown("field", field, record) if record else f"there is no field {field!r}, nor any other"
        raise ValueError(f"{where}: {missing} (see data.source, data.target)")
    return record[field]


def text_field(record: Mapping[str, Any], field: str, where: str) -> str:
    """The text in a field of a record."""
    text = need_field(record, field, where)
    if not isinstance(text, str):
        raise ValueError(f"{where}: field {field!r} must hold a text, got {type(text).__name__}")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{where}: field {field!r} has half of a surrogate pair, which is not a character")
    return text


def _read_documents(path: Path, field: str, opener: Opener) -> Iterator[Stretch]:
    """Each record is a document."""
    for (text,) in _read_records(path, [field], opener):
        for stretch in _stretches(text):
            yield stretch, False
        yield "", True


def _read_text(path: Path, opener: Opener) -> Iterator[Stretch]:
    """The file is one document; its lines keep their ends, and may be of any length."""
    rest = ""  # of an incomplete line
    for part in _need_some(lines.read_parts(path, opener), path):
        *stretches, rest = _stretches(rest + part)
        if rest.endswith("\n"):
            stretches, rest = [*stretches, rest], ""
        yield from ((stretch, False) for stretch in stretches)
    if rest:
        yield rest, False
    yield "", True


def _stretches(text: str) -> Iterator[str]:
    """A text in stretches of limited length, cut before a space if possible."""
    start = 0
    while len(text) - start > _LONGEST_STRETCH:
        end = start + _LONGEST_STRETCH
        cut = text.rfind(" ", start + 1, end)
        end = end if cut < 0 else cut
        yield text[start:end]
        start = end
    yield text[start:]
