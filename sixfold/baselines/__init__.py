"""Baselines: models with which the Transformer is compared. They register by `modification`, as in modifications/."""
