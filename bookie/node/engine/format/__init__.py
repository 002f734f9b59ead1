"""The bytes of a bookie's files: records, blocks, index pages and rows, torn tails. Pure."""
