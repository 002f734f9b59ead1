"""The byte formats of a bookie's files: records, blocks, index pages, rows, torn tails; no I/O."""
