"""The daemon: runs one bookie, and shows the bookie's state by HTTP, metrics and log lines."""
