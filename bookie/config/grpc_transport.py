"""How gRPC waits for its sockets: chosen by its own variable, which it reads once, as it loads.

gRPC for Python has two ways. Its older one polls the sockets in the thread that waits for
completions. The event engine, the default of recent versions, has threads of its own for that: each
message passes through two or three more of them on either side, and each of those has to be woken.
Measured with version 1.85 between a bookie and a client on two cores: an append that is alone takes
0.75 of the time with the older way (562 to 760 against 761 to 1061 us), batches of small entries
are 3 to 11 % faster.

Where the choice is no longer known, gRPC says so on stderr and goes on with what it has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Final

GRPC_VARIABLE: Final = "GRPC_EXPERIMENTS"

POLLING: Final = "-event_engine_client,-event_engine_listener"


@contextmanager
def grpc_polling(environment: MutableMapping[str, str] | None = None) -> Iterator[None]:
    """While the block loads gRPC, tell it to poll, unless the user has chosen (also by nothing).

    Children of this process do not inherit the choice. If gRPC is loaded already, whoever loaded it
    has chosen.
    """
    variables = os.environ if environment is None else environment
    if GRPC_VARIABLE in variables:
        yield
        return
    variables[GRPC_VARIABLE] = POLLING
    try:
        yield
    finally:
        del variables[GRPC_VARIABLE]
