"""The exclusive writer of a log: takeover, appends, new ledgers, idempotent producers."""
