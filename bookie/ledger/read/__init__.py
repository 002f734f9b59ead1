"""Reads a ledger: `reader` is the state machine, `handle` its driver, `follow` follows the tail."""
