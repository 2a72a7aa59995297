"""The three kinds of models, how one is built, and how large it is."""
