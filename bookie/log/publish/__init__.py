"""Transactional logs: ranges that are written apart, and published together."""
