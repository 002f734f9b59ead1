"""A host that opens connection after connection to a running bookie, and others beside it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from contextlib import ExitStack

import aiohttp

from bookie.api import connect
from tests.fault.daemon_process import Home, serving
from tests.unit.wire.fake_node import until

PATIENCE_SECONDS = 60.0
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


def is_open(peer: socket.socket) -> bool:
    """False once the bookie has hung up."""
    try:
        while peer.recv(65536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


async def test_a_flood_of_connections_hurts_its_own_address(home: Home) -> None:
    """By the settings, from the start to the end of the process; the log tells once."""
    home.sections["limits"] = {
        "connections_max": 40,
        "connections_per_address_max": 8,
        "connections_reserved": 10,
    }
    home.sections["rpc"] = {"drain_seconds": 0.5}
    port, http = int(str(home.sections["listen"]["port"])), home.sections["http"]["port"]
    async with serving(home.write()) as daemon, asyncio.timeout(PATIENCE_SECONDS):
        await daemon.until("registered")
        with ExitStack() as stack:
            flood = []
            for _ in range(30):
                peer = stack.enter_context(
                    socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
                )
                peer.setblocking(False)
                peer.send(HELLO)
                flood.append(peer)
            await daemon.until("connections_ended")
            await until(lambda: sum(map(is_open, flood)) == 8)
            line = json.loads(daemon.lines[-1])
            assert (line["most_from"], line["reason"]) == ("127.0.0.2", "address")
            async with (
                connect(home.metadata_uri) as bookkeeper,
                bookkeeper.create_ledger(
                    ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
                ) as writer,
            ):
                assert await writer.append(b"served") == 0
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{http}/metrics") as answer,
            ):
                text = await answer.text()
            assert float(re.findall(r'_ended_total\{reason="address"\} (\S+)', text)[0]) == 22
            daemon.process.send_signal(signal.SIGTERM)
            assert await daemon.end() == 0
    assert sum('"connections_ended"' in line for line in daemon.lines) == 1
