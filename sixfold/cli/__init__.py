"""The command `sixfold`: one verb per function. torch is imported only by the verbs that need it."""

# ruff: noqa: I001  (verbs are registered by being read, and the help shows them in this order)
from sixfold.cli import train, translate, score, verify, export, bench, list  # noqa: A004, F401
from sixfold.cli.app import app, main

__all__ = ["app", "main"]
