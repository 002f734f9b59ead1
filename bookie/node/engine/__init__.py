"""The storage engine of one bookie: journal files with the data, and an LMDB index of the entries.

The engine uses neither gRPC nor the metadata store. An add writes the bytes of an entry only once:
the index points into the journal file that holds the entry. Only a replay or a compaction copies
entries. `engine.py` makes the engine from its parts.
"""
