"""The daemon: the floors below put together, and what a running bookie shows of itself."""
