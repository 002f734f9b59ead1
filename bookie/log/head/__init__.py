"""The head of a partition: the chain of its ledgers, and the rule when the next one begins."""
