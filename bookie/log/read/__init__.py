"""Reading a log: start positions, ranges, readers of one partition or several, status."""
