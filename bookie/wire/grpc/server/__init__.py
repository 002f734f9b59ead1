"""The bookie's half of the wire: the gRPC server, its calls and its streams."""
