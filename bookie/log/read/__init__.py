"""Readers of a log: positions and times, ranges, followers, several partitions."""
