"""The exclusive writer of a log: takeover, appends, rolls, idempotent producers."""
