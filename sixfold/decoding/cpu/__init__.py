"""The fast decoding step for plain models on a CPU."""
