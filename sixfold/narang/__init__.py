"""The study \"Do Transformer Modifications Transfer Across Implementations and Applications?\" (arXiv 2102.11972)."""
