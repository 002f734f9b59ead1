"""Replaces the random numbers and clocks that bookie uses by seeded numbers and virtual time.

Clients take jitter from `random`. Without this module, the code takes ids from `secrets`, `uuid`
and the kernel, and times from `time`. Within `seeded_world`, all these values depend only on the
seed and on virtual time.
"""

from __future__ import annotations

import gc
import random
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import bookie.api.connection
import bookie.env.clock
import bookie.ledger.catalog.ledgers
import bookie.ledger.connection.pool
import bookie.ledger.connection.retrying
import bookie.ledger.copies.marks
import bookie.ledger.place.ensembles
import bookie.ledger.read.handle
import bookie.ledger.write.handle
import bookie.ledger.write.writer_lanes
import bookie.log.catalog.logs
import bookie.log.clock_check
import bookie.log.consume.cursors
import bookie.log.consume.group
import bookie.log.log_client
import bookie.wire.frames.server
import bookie.wire.grpc.transport
from bookie.env import SystemClock
from bookie.testing.simulation.loop import SimulatedLoop
from bookie.testing.simulation.machine import EPOCH_MS, small_steps
from bookie.testing.simulation.simulated_calls import SimulatedChannel
from bookie.testing.simulation.simulated_network import SimulatedNetwork
from bookie.testing.simulation.simulated_sockets import open_sockets

_TOKENS = (
    bookie.ledger.catalog.ledgers,
    bookie.ledger.copies.marks,
    bookie.log.catalog.logs,
    bookie.log.consume.cursors,
    bookie.log.consume.group,
)
_DRAWS = (
    bookie.ledger.place.ensembles,
    bookie.ledger.connection.pool,
    bookie.ledger.read.handle,
    bookie.ledger.connection.retrying,
    bookie.ledger.write.handle,
    bookie.ledger.write.writer_lanes,
    bookie.log.clock_check,
    bookie.log.log_client,
)


class LoopClock:
    """The clock of clients and of the metadata store."""

    def __init__(self, loop: SimulatedLoop, choose: random.Random) -> None:
        self._loop = loop
        self._choose = choose

    def monotonic(self) -> float:
        return self._loop.time()

    def now_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000)

    def nonce(self) -> bytes:
        return self._choose.randbytes(16)

    def boot_id(self) -> str:
        """Return an empty text, because clients have no boot id."""
        return ""


@contextmanager
def seeded_world(
    loop: SimulatedLoop, network: SimulatedNetwork, seed: int, open_store: Any
) -> Iterator[LoopClock]:
    """Replace randomness, clocks, channels and metadata sessions for the duration of the block.

    Python's garbage collector is off during the block, because the collector would destroy objects
    at random moments.
    """
    choose = random.Random(f"world/{seed}")
    clock = LoopClock(loop, choose)
    drawn = SimpleNamespace(
        random=choose.random,
        uniform=choose.uniform,
        randrange=choose.randrange,
        sample=choose.sample,
        SystemRandom=lambda: choose,
    )
    tokens = SimpleNamespace(
        randbits=choose.getrandbits, token_hex=lambda count: choose.randbytes(count).hex()
    )
    this_process = SimpleNamespace(getpid=lambda: 1)

    def open_channel(
        address: str, options: list[tuple[str, int]], credentials: None = None
    ) -> SimulatedChannel:
        del credentials
        timeout_ms = dict(options)["grpc.min_reconnect_backoff_ms"]
        return SimulatedChannel(network, address, timeout_ms / 1000)

    def time_ns() -> int:
        return clock.now_ms() * 1_000_000

    changes: list[tuple[Any, str, Any]] = [
        *((module, "random", drawn) for module in _DRAWS),
        *((module, "secrets", tokens) for module in _TOKENS),
        *(
            (module, "os", this_process)
            for module in (bookie.log.consume.group, bookie.log.log_client)
        ),
        (bookie.env.clock, "os", SimpleNamespace(urandom=choose.randbytes)),
        (bookie.env.clock, "time", SimpleNamespace(time_ns=time_ns)),
        (SystemClock, "monotonic", staticmethod(clock.monotonic)),
        (uuid, "uuid4", lambda: uuid.UUID(bytes=choose.randbytes(16), version=4)),
        (bookie.wire.grpc.transport, "open_channel", open_channel),
        (bookie.wire.frames.server, "bind_all", open_sockets(loop, network).bind_all),
        (bookie.api.connection, "open_store", open_store),
    ]
    was_enabled = gc.isenabled()
    # Garbage of earlier seeds must not be destroyed during this seed.
    gc.collect()
    gc.disable()
    try:
        with ExitStack() as stack:
            for owner, name, value in changes:
                stack.enter_context(patch.object(owner, name, value))
            stack.enter_context(small_steps())
            yield clock
    finally:
        if was_enabled:
            gc.enable()
