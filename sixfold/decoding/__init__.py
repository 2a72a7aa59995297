"""Decoding: a trained model writes text, or predicts labels."""
