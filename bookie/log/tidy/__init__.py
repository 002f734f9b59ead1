"""Deletion of old and unused data: retention, truncation, deletion of logs, the sweep."""
