"""Measurements; nothing is asserted. What is compared uses gRPC as bookies and clients do."""

import bookie.rpc  # noqa: F401  (it has gRPC loaded in the way it chooses)
