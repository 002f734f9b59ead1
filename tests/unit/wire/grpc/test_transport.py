"""gRPC's way to wait for sockets is chosen before it is loaded, or by the user."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from bookie.config import grpc_polling
from bookie.config.grpc_transport import GRPC_VARIABLE, POLLING

CALLS = 200

CALL_AND_COUNT = """
import asyncio, json, os
from pathlib import Path
{load}
import grpc
from grpc import aio

def wakes():
    count = 0
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "event_engine":
            lines = (task / "status").read_text().splitlines()
            count += next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return count

async def answer(request, context):
    return request

async def main():
    server = aio.server()
    handlers = {{"Call": grpc.unary_unary_rpc_method_handler(answer)}}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{{port}}") as channel:
        call = channel.unary_unary("/Test/Call")
        await call(b"")
        before = wakes()
        for _ in range({calls}):
            await call(b"")
        print(json.dumps([wakes() - before, os.environ.get({variable!r})]), flush=True)
        # A server that stops may tell its channel, which logs that. It is not what is asked here.
        os._exit(0)

asyncio.run(main())
"""

LOADS = (
    "import bookie.wire.grpc",
    "from bookie.metadata.connect import open_store; open_store({uri!r})",
)


def served(load: str, **variables: str) -> tuple[bool, str | None, str]:
    """Were other threads woken for each call? Also the variable, and the text on stderr."""
    environment = {key: value for key, value in os.environ.items() if key != GRPC_VARIABLE}
    script = CALL_AND_COUNT.format(load=load, calls=CALLS, variable=GRPC_VARIABLE)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    wakes, variable = json.loads(done.stdout)
    # Six wake-ups for each call, beside those of its timers.
    return wakes >= 3 * CALLS, variable, done.stderr


@pytest.mark.parametrize("load", LOADS)
def test_sockets_are_polled_by_who_waits_for_them(load: str) -> None:
    """gRPC starts no threads for it, stays silent, and leaves the variables for children unset."""
    assert served(load.format(uri="etcd://127.0.0.1:1/x")) == (False, None, "")


@pytest.mark.parametrize("chosen", ["", "event_engine_client"])
def test_a_choice_of_the_user_stands(chosen: str) -> None:
    """Also the empty one, which is the library's own default."""
    assert served(LOADS[0], **{GRPC_VARIABLE: chosen}) == (True, chosen, "")


def test_the_choice_is_made_while_the_block_lasts() -> None:
    """Also when loading fails."""
    variables = {"OTHER": "1"}
    seen = {}

    def load() -> None:
        with grpc_polling(variables):
            seen.update(variables)
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert seen == {"OTHER": "1", GRPC_VARIABLE: POLLING}
    assert variables == {"OTHER": "1"}


PORT_TAKEN = """
import os, socket
from bookie.config import silence_grpc

silence_grpc()
import bookie.wire.grpc
import grpc

with socket.create_server(("127.0.0.1", 0)) as taken:
    server = grpc.server(None, options=[("grpc.so_reuseport", 0)])
    try:
        server.add_insecure_port(f"127.0.0.1:{taken.getsockname()[1]}")
    except RuntimeError:
        os._exit(0)
os._exit(1)
"""


@pytest.mark.parametrize(
    ("variables", "is_silent"), [({}, True), ({"GRPC_VERBOSITY": "error"}, False)]
)
def test_a_daemon_silences_the_library(variables: dict[str, str], is_silent: bool) -> None:
    """Its own lines are no JSON. They may still be asked for, to look for a fault."""
    done = subprocess.run(
        [sys.executable, "-c", PORT_TAKEN],
        env={name: text for name, text in os.environ.items() if name != "GRPC_VERBOSITY"}
        | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert (done.stderr == "") is is_silent
