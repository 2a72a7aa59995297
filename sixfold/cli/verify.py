"""The verb `verify`: checks sixfold's promised equalities on a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from sixfold.cli.app import app
from sixfold.cli.lines import ending_well, tell
from sixfold.cli.options import AsJson, Device, Import, RunOrModel, print_json
from sixfold.terminal import console, printable, table
from sixfold.verify.keys import KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sixfold.verify.equality import EqualityResult


@app.command()
def verify(
    run: RunOrModel,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help=f"Check only this; may be given several times: {', '.join(KEYS)}."),
    ] = None,
    device: Device = "auto",
    imports: Import = None,
    as_json: AsJson = False,
) -> None:
    """Check that sixfold's promises hold for a run.

    The promises are equalities, checked on this machine: saved = loaded, cached = uncached, alone = in a batch, resumed
    = uninterrupted, and so on. The run is not changed. The exit code is 1 if an equality does not hold.
    """
    from sixfold.verify.report import choose
    from sixfold.verify.report import verify as look

    with ending_well():
        chosen, found = choose(only or ()), list["EqualityResult"]()
        each = look(run, only=only or (), device=device, imports=imports or ())
        for number, equality in enumerate(chosen, 1):
            tell(f"{number}/{len(chosen)}  {equality.name} …")
            found.append(next(each))
            tell(f"{number}/{len(chosen)}  {equality.name}: {found[-1].result}, {found[-1].seconds:.1f} s", done=True)
        each.close()
        _report(run, found, as_json)
    if any(finding.result == "fail" for finding in found):
        raise typer.Exit(1)


def _report(run: Path, found: Sequence[EqualityResult], as_json: bool) -> None:
    results = [finding.result for finding in found]
    counts = {result: results.count(result) for result in ("pass", "fail", "does not apply")}
    if as_json:
        print_json({"run": str(run), "findings": [finding.json() for finding in found], **counts})
        return
    rows = table("what", "left", "right", "difference", "allowed", "result", right=(3, 4))
    for finding in found:
        rows.add_row(*(Text(printable(cell)) for cell in _cells(finding)))
    console().print(rows)
    typer.echo(", ".join(_counted(number, result) for result, number in counts.items() if number))


def _counted(number: int, result: str) -> str:
    return f"{number} {result if number == 1 else result.replace('does', 'do')}"


def _cells(finding: EqualityResult) -> tuple[str, ...]:
    difference = "" if finding.difference is None else f"{finding.difference:.3g}"
    allowed = "" if finding.difference is None else f"{finding.tolerance:.3g}"
    because = ": " if finding.result == "fail" else ", because " if finding.result == "does not apply" else "; "
    result = finding.result + (because + finding.note if finding.note else "")
    return finding.equality, finding.left, finding.right, difference, allowed, result
