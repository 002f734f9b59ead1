"""One bookie on its engine: it answers add, read, fence, LAC, force and list requests.

`bookie.wire.grpc` translates from gRPC and the wire format. All of this code runs in one event
loop.
"""
