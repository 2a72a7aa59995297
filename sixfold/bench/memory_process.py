"""The process that bench/memory.py starts: it measures one pass after another, and prints a line of JSON for each."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from sixfold.bench.growth import act
from sixfold.bench.memory import LEAST, measured
from sixfold.runs import model_files
from sixfold.spec.registry import import_file


def main() -> None:
    job: Mapping[str, Any] = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    for file in job["imports"]:
        import_file(file)
    model = model_files.load(job["directory"])
    left = max(job["until"] - time.time(), LEAST)  # loading has used some of the time
    for found in measured(act(model, job["library"], job["way"], max(job["lengths"])), job["lengths"], left):
        print(json.dumps(found), flush=True)  # noqa: T201  (memory.py reads it)


if __name__ == "__main__":
    main()
