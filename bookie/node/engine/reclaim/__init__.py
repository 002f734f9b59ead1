"""Compaction: copies live entries of files with much garbage to new logs; removes the files."""
