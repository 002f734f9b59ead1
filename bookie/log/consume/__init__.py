"""Cursors and commits, consumers of one partition, groups of consumers."""
