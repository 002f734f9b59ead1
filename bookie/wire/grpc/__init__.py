"""The transport by gRPC: `server` is the bookie's side, `client` is the clients' side."""

from bookie.config import grpc_polling

with grpc_polling():
    import grpc  # noqa: F401  (who imports it later finds it as it was loaded here)
