"""The command `sixfold`: one file per verb, with its name. torch is imported only by the verbs that need it."""

from sixfold.cli.app import app, load_verbs, main

__all__ = ["app", "load_verbs", "main"]
