"""Measurements; nothing is asserted. What is compared uses gRPC as bookies and clients do."""

import bookie.wire.grpc  # noqa: F401  (it has gRPC loaded in the way it chooses)
