"""Writes a ledger as its only writer: `writer` is the state machine, `handle` its driver."""
