"""The records of a log: their bytes, their positions, their producers."""
