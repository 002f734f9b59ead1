"""The carrier by gRPC: `server` is the bookie's side, `connection` is a client's side."""

from bookie.config import grpc_polling

with grpc_polling():
    import grpc  # noqa: F401  (who imports it later finds it as it was loaded here)
