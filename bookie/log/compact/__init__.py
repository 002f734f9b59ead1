"""Compaction: copy many small ledgers of a log into few large ones."""
