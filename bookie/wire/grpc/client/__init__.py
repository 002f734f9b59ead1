"""A client's half of the wire: one channel to each bookie, and the streams on it."""
