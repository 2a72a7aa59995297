"""Files that are written atomically, and their hashes."""
