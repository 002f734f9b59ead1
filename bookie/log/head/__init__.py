"""The head of a partition: its chain of ledgers, and the rule for beginning the next ledger."""
