"""Rules that forbid or demand words while decoding."""
