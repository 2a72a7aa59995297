"""What any architecture needs. This layer knows no files, no text and no ranks."""
