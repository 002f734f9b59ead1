"""The head of a partition: its chain of ledgers, and the rule that begins a new ledger."""
