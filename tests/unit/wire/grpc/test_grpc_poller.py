"""gRPC's own thread never waits for the event loop, however busy the loop is."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from bookie.config import with_free_poller

ROOT = Path(__file__).resolve().parents[4]


def test_pairs_that_others_make_stay_as_they_are() -> None:
    """Only what gRPC makes in this thread does not block when it is written."""

    def make() -> tuple[socket.socket, socket.socket]:
        return socket.socketpair()

    ours = with_free_poller(make)
    other = socket.socketpair()
    assert [one.getblocking() for one in ours] == [True, False]
    assert [one.getblocking() for one in other] == [True, True]
    for one in (*ours, *other):
        one.close()


def test_a_full_pair_of_a_server_does_not_block() -> None:
    """The pair of gRPC's thread, in a process that has just begun to use gRPC."""
    script = (
        "import asyncio, socket\n"
        "from bookie.wire.grpc import transport\n"
        "made = []\n"
        "before = socket.socketpair\n"
        "def pair(*args):\n"
        "    made.append(before(*args))\n"
        "    return made[-1]\n"
        "async def main():\n"
        "    socket.socketpair = pair\n"
        "    channel = transport.open_channel('127.0.0.1:1', [])\n"
        "    print([one.getblocking() for one in made[0]], socket.socketpair is pair)\n"
        "    await channel.close()\n"
        "asyncio.run(main())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout == "[False, False] True\n"
