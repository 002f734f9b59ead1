"""Consumption of logs: cursors and commits, consumers of one partition, groups of consumers."""
