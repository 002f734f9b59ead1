"""Compaction: copies many small ledgers of a log into few."""
