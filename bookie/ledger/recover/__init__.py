"""Recovery: fence a ledger, find its end, close it. `recovery` is the machine, `driver` drives."""
