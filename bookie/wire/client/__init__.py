"""A client's side of the wire: one channel to each bookie, and the streams on it."""
