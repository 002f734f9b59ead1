"""The head of a partition: the chain of its ledgers, changed by compare-and-set only."""
