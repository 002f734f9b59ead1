"""The daemon: a bookie put together from its layers, and what it shows of itself."""
