"""Processes that fork, are imported into, and end: each story is a process of its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.unit.ledger.real_cluster import real_cluster

PROCESS_SECONDS_MAX = 60.0

BEGINNING = """
import os, sys
import bookie.sync
from bookie.errors import ClientClosedError, ConfigurationError

def write(bk):
    with bk.create_ledger() as writer:
        writer.append_many([b"x"] * 100)
    return sum(1 for _ in bk.open_ledger(writer.ledger_id).read())

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print("the child failed:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

uri = sys.argv[1]
"""


async def told(uri: str, story: str) -> list[str]:
    """The output of a process that lives `story`; it must end in order, without complaints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", BEGINNING + story, uri),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PROCESS_SECONDS_MAX):
        output, complaints = await process.communicate()
    # gRPC itself remarks that it does not survive a fork beside open channels.
    left = [line for line in complaints.decode().splitlines() if "fork_posix" not in line]
    assert (process.returncode, left) == (0, []), output.decode()
    return output.decode().splitlines()


STORIES = {
    "each process of a fork connects by itself": (
        """
def work():
    with bookie.sync.connect(uri) as bk:
        print("child", write(bk), flush=True)

print("status", in_child(work), flush=True)
with bookie.sync.connect(uri) as bk:
    print("parent", write(bk))
""",
        ["child 100", "status 0", "parent 100"],
    ),
    "children may be forked beside a loop without clients": (
        """
import threading

def work():
    print("child", write(bookie.sync.shared_client(uri)), flush=True)

bookie.sync.connect(uri)  # begins the thread, and is never opened
assert "bookie-sync" in [thread.name for thread in threading.enumerate()]
for _ in range(2):
    print("status", in_child(work), flush=True)
print("parent", write(bookie.sync.shared_client(uri)))
""",
        ["child 100", "status 0", "child 100", "status 0", "parent 100"],
    ),
    "a child of a parent with an open client is told so": (
        """
def work():
    for use in (lambda: write(bk), lambda: next(tail), reader.refresh, bk.close):
        try:
            use()
        except ClientClosedError as error:
            assert "fork" in str(error), error
            print("closed", flush=True)
    assert not bk.is_open
    try:
        bookie.sync.connect(uri)
    except ConfigurationError as error:
        assert "spawn" in str(error), error
        print("spawn", flush=True)

with bookie.sync.connect(uri) as bk:
    writer = bk.create_ledger()
    writer.append(b"x")
    reader = bk.open_ledger(writer.ledger_id)
    tail = reader.tail()
    next(tail)
    print("status", in_child(work), flush=True)
    writer.append(b"y")
    print("parent", next(tail).entry_id)
    tail.close()
    writer.close()
""",
        ["closed"] * 4 + ["spawn", "status 0", "parent 1"],
    ),
    "clients that were closed before the fork hurt as well": (
        """
def work():
    try:
        bookie.sync.shared_client(uri)
    except ConfigurationError as error:
        print("spawn", flush=True)

def family():
    work()
    assert in_child(work) == 0

with bookie.sync.connect(uri) as bk:
    write(bk)
print("status", in_child(family), flush=True)
with bookie.sync.connect(uri) as bk:
    print("parent", write(bk))
""",
        ["spawn", "spawn", "status 0", "parent 100"],
    ),
    "importing starts nothing": (
        """
import threading
print(threading.active_count(), "uvloop" in sys.modules)
""",
        ["1 False"],
    ),
    "a shared client is closed at the end of the process": (
        """
import atexit
atexit.register(lambda: print(client.is_open))  # the first to be registered runs last
print(write(bookie.sync.shared_client(uri)))
client = bookie.sync.shared_client(uri)
print(client.is_open)
""",
        ["100", "True", "False"],
    ),
}


@pytest.mark.parametrize("name", STORIES)
async def test_processes(name: str, tmp_path: Path) -> None:
    """Each story ends as it should."""
    story, expected = STORIES[name]
    async with real_cluster(tmp_path, uri=f"local://{tmp_path}/metadata") as cluster:
        assert await told(cluster.uri, story) == expected
