"""The command line: one file per command group, imported when its group is named.

The rest of bookie imports nothing from this package. A module of this package imports only the
libraries of its own commands. Heavy libraries (gRPC, numpy, pydantic, aiohttp, rich) are imported
only inside a command. So ``bookie --help`` and completion answer at once.
"""
