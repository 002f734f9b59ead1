"""One bookie on its engine: add, read, fence, LAC, force and list.

`bookie.wire.grpc` translates from gRPC and the wire format. Everything here runs in one event loop.
"""
