"""The storage engine of one bookie: journal files that hold the data, an LMDB index into them.

gRPC and the metadata store are unknown here. Each byte is written once: the index points into the
journal file that an entry was written to. `engine.py` composes the parts.
"""
