"""Recovers a ledger: fence, find the end, close; machine `recovery`, run by `driver`."""
