"""Run directories and model files."""
