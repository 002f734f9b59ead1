"""A client's side of the transport: one channel to each bookie, and the streams on it."""
