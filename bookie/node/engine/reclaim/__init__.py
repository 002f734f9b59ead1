"""Compaction: moves live entries out of mostly dead files, and removes these files."""
