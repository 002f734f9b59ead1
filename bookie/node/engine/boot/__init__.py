"""Starts the engine: reads the files of the last process and builds the engine's state."""
