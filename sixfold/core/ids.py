"""The ids that mean the same in every vocabulary."""

PAD, BOS, EOS = 0, 1, 2  # padding, begin of a sequence, end of a sequence
