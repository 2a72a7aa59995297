"""Text: files, tokenizers, prepared arrays, and batches."""
