"""The verb `info`: describes a run."""

from __future__ import annotations

from sixfold.cli.app import app
from sixfold.cli.options import AsJson, Import, RunOrModel, import_parts, print_json
from sixfold.terminal import console


@app.command()
def info(run: RunOrModel, imports: Import = None, as_json: AsJson = False) -> None:
    """Describe a run: sizes, data, progress, best score."""
    from sixfold.api.describe import describe_run, table_of
    from sixfold.runs.run import Run

    import_parts(imports)
    described = describe_run(Run(run))
    if as_json:
        print_json(described)
    else:
        console().print(table_of(described))
