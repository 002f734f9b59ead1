"""Compaction: live entries move out of mostly dead files, and the files go."""
