"""The report of the text's doctor, as lines and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from sixfold.doctor.cleaning import Cleaned
from sixfold.doctor.items import Item
from sixfold.doctor.suspicions import KINDS
from sixfold.doctor.text_doctor import FileFacts, SplitCheck, TextCheck
from sixfold.terminal import printable
from sixfold.text.sources import Split

_SHOWN = 100  # characters of a text in an example
_SAID = {kind.name: kind.said for kind in KINDS}


def lines(check: TextCheck, cleaned: Mapping[Split, Cleaned]) -> Iterator[str]:
    """The report as text: only what there is to say."""
    noun = _noun(check)
    for name, split in check.splits.items():
        yield f"{name}: {_count(split.rows, noun)}"
        yield from _found(split, noun)
    strange = [f"{name}: {said}" for name, facts in check.files.items() if (said := _file(name, facts))]
    yield from strange
    yield from check.remarks
    if not strange and not check.remarks and not any(split.counts for split in check.splits.values()):
        yield "nothing suspicious"
    yield from _tokens(check)
    for name, written in cleaned.items():
        yield from _written(name, written, noun)


def as_json(check: TextCheck, cleaned: Mapping[Split, Cleaned]) -> dict[str, Any]:
    """The report as a tree."""
    return {
        "form": check.form.name,
        "parts": {
            name: {
                "rows": split.rows,
                "found": {
                    kind: {"rows": count, "examples": [_example(item) for item in split.examples.get(kind, [])]}
                    for kind, count in split.counts.items()
                },
            }
            for name, split in check.splits.items()
        },
        "files": {name: facts._asdict() for name, facts in check.files.items()},
        "remarks": check.remarks,
        "tokens": {"per": list(check.units), "by": [measured._asdict() for measured in check.tokens]},
        "cleaned": {name: written._asdict() for name, written in cleaned.items()},
    }


def _found(split: SplitCheck, noun: str) -> Iterator[str]:
    for kind, count in split.counts.items():
        yield f"  {_count(count, noun)} {_SAID[kind]}"
        for item in split.examples.get(kind, []):
            yield from _shown(item)


def _shown(item: Item) -> Iterator[str]:
    """An example: one line for each place."""
    texts = [_short(text) for text in item.texts]
    if len(item.places) == 1:
        yield f"    {item.places[0]}  {' → '.join(texts)}{f'  [{item.label}]' if item.label else ''}"
        return
    width = max(len(str(place)) for place in item.places)
    yield from (f"    {place!s:<{width}}  {text}".rstrip() for place, text in zip(item.places, texts, strict=True))


def _short(text: str) -> str:
    return printable(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…").replace("\n", "\\n")


def _example(item: Item) -> dict[str, Any]:
    label = {"label": item.label} if item.label else {}
    return {"places": [str(place) for place in item.places], "texts": [text[:_SHOWN] for text in item.texts], **label}


def _file(name: str, facts: FileFacts) -> str:
    """What is unusual about a file's bytes."""
    said = []
    if facts.mark:
        said.append("it begins with a byte order mark, which is ignored")
    if facts.windows:
        said.append(f"{facts.windows:,} of {_count(facts.lines, 'line')} end in \\r\\n, which is read as \\n")
    if facts.broken:
        said.append(
            f"{_count(facts.broken, 'line')} {'is' if facts.broken == 1 else 'are'} not UTF-8, and training refuses "
            f"the file; if it is Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 {shlex.quote(name)} > NEW"
        )
    return "; ".join(said)


def _tokens(check: TextCheck) -> Iterator[str]:
    if not check.tokens:
        return
    sides = ("source", "target") if check.form.has_pairs else ("text",)
    yield f"tokens: {', '.join(f'per {unit} of the {side}' for unit, side in zip(check.units, sides, strict=True))}"
    shown = [(f"{each.kind}, {each.vocabulary:,} ids", each.tokens) for each in check.tokens]
    width = max(len(name) for name, _ in shown)
    for name, tokens in shown:
        yield f"  {name:<{width}}  {'  '.join(f'{number:5.2f}' for number in tokens)}"


def _written(name: str, written: Cleaned, noun: str) -> Iterator[str]:
    total = sum(written.dropped.values())
    yield f"written: {name}, {_count(written.kept, noun)}{f'; dropped {total:,}:' if total else ''}"
    yield from (f"  {count:,} {_SAID[kind]}" for kind, count in written.dropped.items())


def _noun(check: TextCheck) -> str:
    return "pair" if check.form.has_pairs else "text" if check.form.has_labels else "line"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
