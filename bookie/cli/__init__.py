"""The command line: one file per command group, loaded when its group is named.

The rest of bookie imports nothing from this package. A module of this package imports what its own
commands need. Heavy libraries (gRPC, numpy, pydantic, aiohttp, rich) are imported only inside a
command. So ``bookie --help`` and completion answer at once.
"""
