"""The command line: one file per command group, loaded when its group is named.

The rest of bookie imports nothing from here. A module of this package imports what its own commands
need. It imports heavy libraries (gRPC, numpy, pydantic, aiohttp, rich) inside a command only. So
``bookie --help`` and completion answer at once.
"""
