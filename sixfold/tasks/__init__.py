"""What models are trained for, one task a file. Start with task.py. torch is not imported here."""
