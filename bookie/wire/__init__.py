"""The messages between clients and bookies, their bytes, and deadlines of calls.

The frequent messages travel as bytes that `codec` builds and parses itself; the rare messages use
the generated protobuf code. The package `grpc` carries both kinds.
"""
