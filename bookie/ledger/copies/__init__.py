"""Copies of a ledger: audit, plan, repair, and the marks of what lacks some."""
