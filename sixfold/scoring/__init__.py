"""Metrics, likelihoods, and tests of significance."""
