"""The head of a partition: its chain of ledgers, and the rule for when a new ledger begins."""
