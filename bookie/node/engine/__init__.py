"""The storage engine of one bookie: journal files that hold the data, an LMDB index into them.

It knows neither gRPC nor the metadata store. Each byte is written once: the index points into the
journal file that an entry was written to. `engine.py` composes the parts.
"""
