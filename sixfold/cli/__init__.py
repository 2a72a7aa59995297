"""The command `sixfold`: one file per verb, named as it is typed. torch is imported only by the verbs that need it."""

# ruff: noqa: I001  (verbs are registered by being read, and the help shows them in this order)
from sixfold.cli import train, info, plot, translate, generate, classify, score, verify, export, bench  # noqa: F401
from sixfold.cli import list, count, prepare  # noqa: A004, F401
from sixfold.cli.app import app, main

__all__ = ["app", "main"]
