"""A model as a value: Spec and its slots, the registry of modifications, and assemble, which checks them together."""
