"""The names of all metrics; metrics.py has the functions that compute them."""

TEXT_METRICS = (  # of texts that a model writes
    "bleu",
    "chrf",
    "ter",
    "rouge1",
    "rouge2",
    "rougeL",
    "gleu",
    "sentence_bleu",
    "exact_match",
    "symbol_error_rate",
    "word_error_rate",
    "pronunciation",
)
LABEL_METRICS = ("accuracy", "macro_f1")
