"""The command `sixfold`: one file per verb, named as it is typed. torch is imported only by the verbs that need it."""

from sixfold.cli.app import app, load_verbs, main

__all__ = ["app", "load_verbs", "main"]
