"""Checks the promised equalities: on a user's run (`sixfold verify RUN`), or on a modification (`contract/`)."""
