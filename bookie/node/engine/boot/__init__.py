"""The start of the engine: from the files of the last process to a state that may serve."""
