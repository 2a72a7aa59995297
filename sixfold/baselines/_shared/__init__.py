"""Parts that several baselines use."""
