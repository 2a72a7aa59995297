"""The names of the equalities, in the order of the table. Here, so that `--help` knows them without torch."""

KEYS = (
    "weights",
    "checkpoints",
    "tokenizers",
    "cache",
    "batch",
    "int8",
    "attention",
    "text",
    "micro-batches",
    "processes",
    "resume",
    "export",
    "loss",
    "score",
)
