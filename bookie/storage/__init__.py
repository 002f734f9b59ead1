"""The storage engine of one bookie: journal files that hold the data, an LMDB index into them.

No gRPC and no metadata store. Each byte is written once: a journal file is the first home of its
entries, and the index points into it. `engine.py` composes the parts.
"""
