"""Copies of a ledger: audit, plan, repair, and marks of the ledgers that lack copies."""
