"""One bookie on its engine: add, read, fence, LAC, force and list.

`bookie.rpc` translates from gRPC and the wire format. Everything here runs in one event loop.
"""
