"""Ledgers in the metadata store: records, ids, deletions and their proofs."""
