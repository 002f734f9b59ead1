"""The index: where each entry is, in LMDB."""
