"""The types and functions that all architectures share. This layer knows no files, no text and no ranks."""
