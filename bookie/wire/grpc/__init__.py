"""The transport by gRPC: `server` is a bookie's side, `client` the side of its clients."""

from bookie.config import grpc_polling

with grpc_polling():
    import grpc  # noqa: F401  (who imports it later finds it as it was loaded here)
