"""The ids that control a model; every vocabulary begins with them."""

PAD, BOS, EOS, UNK, MASK = range(5)
CONTROLS = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNK: "<unk>", MASK: "<mask>"}
