"""From texts to numbers that compare."""
