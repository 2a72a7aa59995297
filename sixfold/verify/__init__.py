"""The promise, checked on a run of the user's own (`sixfold verify RUN`), and on a part of theirs (`contract/`)."""
