"""Reads of a ledger: `reader` is the machine, `handle` its driver, `follow` a tail."""
