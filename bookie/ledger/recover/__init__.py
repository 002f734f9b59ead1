"""Recovers a ledger: fences it, finds its end, closes it; `recovery` is the state machine."""
