"""The command line: one module for each command group, imported when the user names the group.

No other package of bookie imports `bookie.cli`. A module of this package imports only the libraries
of its own commands. Commands import heavy libraries (gRPC, numpy, pydantic, aiohttp, rich) only
when they run. ``bookie --help`` and completion answer at once, because they import no command.
"""
