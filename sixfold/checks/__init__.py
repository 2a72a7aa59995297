"""What can be said of a model without training it."""
