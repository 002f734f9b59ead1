"""One bookie on its engine: it answers add, read, fence, LAC, force and list requests.

`bookie.wire.grpc` turns gRPC requests into calls of this package. All of this code runs in one
event loop.
"""
