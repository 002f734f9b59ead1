"""Fences a ledger, finds its end and closes it; `driver` runs the state machine `recovery`."""
