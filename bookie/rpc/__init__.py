"""The bookie's only gRPC: wire bytes, the servicer, the server and the client's channels.

The hot messages travel as bytes that `codec` builds and parses itself; the cold ones go through the
generated protobuf code. `server` is a bookie's half, `client` the half of its clients.
"""

from bookie.config import grpc_polling

with grpc_polling():
    import grpc  # noqa: F401  (who imports it later finds it as it was loaded here)
