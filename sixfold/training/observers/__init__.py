"""Observers of a run: its log, its display, TensorBoard, and the user's own, given to `train(observers=…)`."""
