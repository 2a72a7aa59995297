"""Says in plain words what is wrong, and what to do: with a run from its log, with a text before training."""
