"""The command line: one module per command group, imported when the user names the group.

No other package of bookie imports `bookie.cli`. A module of this package imports only the libraries
of its own commands. Heavy libraries (gRPC, numpy, pydantic, aiohttp, rich) are imported only inside
a command. So ``bookie --help`` and completion answer at once.
"""
