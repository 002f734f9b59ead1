"""The journal: the bookie first makes every entry durable in it."""
