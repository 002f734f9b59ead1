"""The bookie's side of gRPC: the gRPC server, which serves the calls of `bookie.wire.server`."""
