"""The storage engine of one bookie: journal files that hold the data, an LMDB index into them.

The engine knows neither gRPC nor the metadata store. An add writes the bytes of an entry only once:
the index points into the journal file that holds the entry. Only a replay or a compaction copies
entries. `engine.py` composes the parts.
"""
