"""Starts the engine: turns the files of the last process into a state that can serve."""
