"""Exports a run for other programs: to CTranslate2, to plain safetensors, or to programs of torch.export.

>>> sixfold.foreign.export.export("runs/mine", "ctranslate2", "mine-ct2", quantization="int8")

The exported model is compared with the original before its directory appears.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from sixfold.api.load import OpenedRun, open_run
from sixfold.disk.atomic import new_directory, sweep_beside
from sixfold.disk.reading import read_json
from sixfold.foreign.agreement import Agreement
from sixfold.foreign.directory import ABOUT, FORMAT, ExportFormat, write
from sixfold.foreign.recognise import Inexpressible, recognise
from sixfold.runs.run import Run
from sixfold.spec.registry import import_file


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    directory: Path
    to: ExportFormat
    agreement: Agreement | None  # None if nothing was compared
    not_carried: tuple[str, ...] = ()  # settings of the run that the exported program lacks, a sentence for each

    def json(self) -> dict[str, Any]:
        compared = None if self.agreement is None else self.agreement.json()
        return {
            "directory": str(self.directory),
            "to": self.to,
            "compared": compared,
            "not_carried": list(self.not_carried),
        }


def export(
    run: str | Path,
    to: ExportFormat,
    out: str | Path,
    *,
    quantization: str | None = None,
    overwrite: bool = False,
    lines: int = 100,
    texts: Iterable[str] | None = None,
    imports: Sequence[str | Path] = (),
) -> Exported:
    """Write a run to the new directory `out`. With `overwrite` an earlier export there is replaced, but nothing else.

    Both models decode `lines` texts: those given, or the run's own. Without quantization they must agree. `imports` are
    Python files that register modifications of your own.
    """
    if to not in get_args(ExportFormat):
        raise ValueError(f"there is no format {to!r} to export to; there are {', '.join(get_args(ExportFormat))}")
    if quantization is not None and to != "ctranslate2":
        raise ValueError(f"quantization works with --to ctranslate2 only; the weights of {to} stay as they are")
    place = Path(out)
    sweep_beside(place)
    _need_room(place, overwrite)
    for file in imports:
        import_file(file)
    opened = open_run(run, "cpu")
    with new_directory(place) as folder:
        agreement, missing = write(opened, Run(run), to, folder, quantization, lines, texts)
        return Exported(place, to, agreement, missing)


def _need_room(place: Path, overwrite: bool) -> None:
    """Raise a ValueError unless `place` is new, an empty directory, or an earlier export that may be replaced."""
    if not place.exists() and not place.is_symlink():
        return
    if place.exists() and place.samefile(os.curdir):
        raise ValueError(f"{place} is the current directory, which can't be replaced; give another --out")
    if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
        return
    if not _is_export(place):
        raise ValueError(f"{place} exists already and is not an export; give another --out")
    if not overwrite:
        raise ValueError(f"{place} already holds an export; give --overwrite to replace it")


def _is_export(place: Path) -> bool:
    try:
        about = read_json(place / ABOUT)
    except (OSError, ValueError):
        return False
    return isinstance(about, dict) and about.get("format") == FORMAT


def refusal(opened: OpenedRun, to: ExportFormat) -> str | None:
    """The reason why a model can't be exported in this format; None if none is known without trying."""
    if to == "safetensors":
        return None
    if not opened.model.writes_text:
        return "a model of kind encoder_only writes no text"
    if to == "torch":
        return None
    try:
        recognise(opened.model)
    except Inexpressible as error:
        return str(error)
    return None
