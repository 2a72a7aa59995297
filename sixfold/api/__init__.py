"""Functions for Python programs: load a run, describe it, plot it."""
