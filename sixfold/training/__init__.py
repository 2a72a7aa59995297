"""Training: the loop, checkpoints, processes, validation, and observers."""
