"""What clients and bookies say to each other: messages, their bytes, deadlines.

The hot messages travel as bytes that `codec` builds and parses itself; the cold ones go through the
generated protobuf code. `grpc` carries both.
"""
