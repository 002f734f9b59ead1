"""Read a ledger: `reader` is the state machine, `handle` its driver, `follow` for tailing."""
