"""The bookie's side of the transport: the gRPC server, its calls and its streams."""
