"""Recover a ledger: fence it, find its end, close it; state machine `recovery`, and `driver`."""
