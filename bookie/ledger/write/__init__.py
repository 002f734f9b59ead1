"""The one writer of a ledger: `writer` is the machine, `handle` its driver."""
