"""The configuration: its schema, its error messages, and the recipes."""
