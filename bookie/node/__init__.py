"""One bookie: answers add, read, fence, LAC, force and list requests with its storage engine.

`bookie.wire` turns clients' requests into calls of this package. The requests are handled in one
event loop; blocking work runs in worker threads.
"""
