"""The command line: one file per command group, loaded when its group is named.

Nothing here is imported by the rest of bookie. A module of this package imports only what its own
commands need, and the heavy libraries (gRPC, numpy, pydantic, aiohttp, rich) only inside a command,
so that ``bookie --help`` and completion answer at once.
"""
