"""Sets gRPC's own environment variables for socket polling and logs, before gRPC is loaded.

gRPC for Python can wait for its sockets in two ways. The older way polls the sockets in the thread
that waits for completions. The newer way is the event engine, the default of recent versions. For
each message, the event engine wakes two or three more threads in the client and in the server.

Both ways were measured with version 1.85 between a bookie and a client on two cores. A single
append takes 562 to 760 us with the older way, and 761 to 1061 us with the event engine. Batches of
small entries are 3 to 11 % faster with the older way. With 200 or 1000 channels both ways are
equally fast, even after an outage.

gRPC does not promise to keep ``GRPC_EXPERIMENTS``, so it is set only for measured versions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Final

GRPC_VARIABLE: Final = "GRPC_EXPERIMENTS"

VERBOSITY_VARIABLE: Final = "GRPC_VERBOSITY"

POLLING: Final = "-event_engine_client,-event_engine_listener"

_VERSIONS: Final = ("1.85.",)
"""The measured versions; other versions may print an error to stderr if the names are unknown."""


@contextmanager
def grpc_polling(environment: MutableMapping[str, str] | None = None) -> Iterator[None]:
    """Set ``GRPC_EXPERIMENTS`` during the block, so that gRPC polls sockets if the block loads it.

    The function changes nothing if the variable is set already, if gRPC is already loaded, or if
    this version of gRPC was not measured. Processes that start after the block do not inherit the
    variable.
    """
    variables = os.environ if environment is None else environment
    is_chosen = GRPC_VARIABLE in variables or (environment is None and "grpc" in sys.modules)
    if is_chosen or not _is_measured():
        yield
        return
    variables[GRPC_VARIABLE] = POLLING
    try:
        yield
    finally:
        # Another thread may have loaded gRPC at the same time.
        variables.pop(GRPC_VARIABLE, None)


def silence_grpc(environment: MutableMapping[str, str] | None = None) -> None:
    """Turn off gRPC's own log lines, which are not JSON, unless ``GRPC_VERBOSITY`` is set.

    Call this in the daemon, before gRPC is loaded. The errors of RPCs contain the same facts as
    gRPC's log lines.
    """
    variables = os.environ if environment is None else environment
    variables.setdefault(VERBOSITY_VARIABLE, "NONE")


def _is_measured() -> bool:
    try:
        return version("grpcio").startswith(_VERSIONS)
    except PackageNotFoundError:  # installed without package metadata
        return False
