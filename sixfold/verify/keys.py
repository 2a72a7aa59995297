"""The names of the equalities, in the order of the table.

They have a file of their own so that `--help` can list them without importing torch.
"""

KEYS = (
    "weights",
    "checkpoints",
    "tokenizers",
    "contract",
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
