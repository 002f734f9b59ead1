"""The storage engine of one bookie: journal files that hold the data, an LMDB index into them.

The engine knows neither gRPC nor the metadata store. Each byte is written once: the index points
into the journal file that holds the entry. `engine.py` composes the parts.
"""
