"""One file for each modification of the Transformer, named as in the literature: the listing is the index."""
