"""The index of all entries, in LMDB."""
