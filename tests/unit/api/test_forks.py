"""Forks of processes that used a client in an event loop: each story is a process of its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.unit.ledger.real_cluster import real_cluster

PROCESS_SECONDS_MAX = 60.0

BEGINNING = """
import asyncio, os, signal, sys
import bookie.sync
from bookie import connect
from bookie.errors import ConfigurationError

async def use():
    async with connect(uri) as bk:
        async with bk.create_ledger() as writer:
            await writer.append_many([b"x"] * 100)
        reader = await bk.open_ledger(writer.ledger_id)
        return len([entry async for entry in reader.read()])

def refused(connecting):
    try:
        connecting()
    except ConfigurationError as error:
        return "spawn" in str(error)

def in_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # for a child that hangs
        try:
            print("child", work(), flush=True)
        except BaseException as error:
            print("the child failed:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

uri = sys.argv[1]
"""

STORIES = {
    "each process of a fork connects by itself": (
        """
print("status", in_child(lambda: asyncio.run(use())), flush=True)
print("parent", asyncio.run(use()))
""",
        ["child 100", "status 0", "parent 100"],
    ),
    "a child of a parent that used a client is told so": (
        """
print("parent", asyncio.run(use()), flush=True)
print("status", in_child(lambda: refused(lambda: asyncio.run(use()))), flush=True)
print("status", in_child(lambda: refused(lambda: bookie.sync.shared_client(uri))), flush=True)
print("parent", asyncio.run(use()))
""",
        ["parent 100", "child True", "status 0", "child True", "status 0", "parent 100"],
    ),
    "a grandchild is told as well": (
        """
print("parent", asyncio.run(use()), flush=True)
work = lambda: in_child(lambda: refused(lambda: asyncio.run(use())))
print("status", in_child(work), flush=True)
""",
        ["parent 100", "child True", "child 0", "status 0"],
    ),
    "a child of a parent that used bookie.sync is told so": (
        """
with bookie.sync.connect(uri) as bk:
    print("parent", len(list(bk.list_ledgers())), flush=True)
print("status", in_child(lambda: refused(lambda: asyncio.run(use()))), flush=True)
""",
        ["parent 0", "child True", "status 0"],
    ),
}


@pytest.mark.parametrize("name", STORIES)
async def test_processes(name: str, tmp_path: Path) -> None:
    """Each story ends as it should, with a status of 0."""
    story, expected = STORIES[name]
    async with real_cluster(tmp_path, uri=f"local://{tmp_path}/metadata") as cluster:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", BEGINNING + story, cluster.uri),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PROCESS_SECONDS_MAX):
            output, complaints = await process.communicate()
    left = [line for line in complaints.decode().splitlines() if "fork_posix" not in line]
    assert (output.decode().splitlines(), process.returncode, left) == (expected, 0, [])
