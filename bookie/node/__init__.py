"""What one bookie promises: add, read, fence, LAC, force and list, on the engine and nothing else.

No gRPC and no wire format: `bookie.rpc` translates. Everything here runs in one event loop thread.
"""
