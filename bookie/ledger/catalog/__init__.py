"""Ledgers in the metadata store: records, ids, deletion and its proofs."""
