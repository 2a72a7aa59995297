"""What Python code calls: load a run, describe it, plot it."""
