"""Print the curve of a finished run as a line of sixfold/doctor/curves.jsonl, the recorded curves of `sixfold info`.

python tools/record_curve.py runs/help-en-de --name help-en-de >> sixfold/doctor/curves.jsonl
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sixfold.doctor.course import Course
from sixfold.doctor.run_doctor import curve_of
from sixfold.runs.run import Run
from sixfold.text.corpus import open_prepared
from sixfold.text.tokenizer import Tokenizers


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the curve of a run as a line of sixfold/doctor/curves.jsonl.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", help="name of the curve [default: that of the directory]")
    given = parser.parse_args()
    run = Run(given.run).need()
    course = Course(run.records(), run.read_config())
    curve = curve_of(run, course, open_prepared(run.data, Tokenizers.load(run.directory)))
    if not curve.points:
        parser.error(f"{given.run} has no validation to record")
    sys.stdout.write(curve._replace(name=given.name or curve.name).json() + "\n")


if __name__ == "__main__":
    main()
