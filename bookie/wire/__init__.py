"""The messages between clients and bookies, their bytes, and deadlines of calls.

The hot messages travel as bytes that `codec` builds and parses itself; the cold ones go through the
generated protobuf code. `grpc` carries both.
"""
