"""The records of a log: their bytes, positions, and snapshots of producers."""
