"""The start of the engine: from what the last process left to a state that may serve."""
