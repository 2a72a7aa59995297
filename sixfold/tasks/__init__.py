"""The tasks that models are trained for, one per file. Start with task.py. torch is not imported here."""
