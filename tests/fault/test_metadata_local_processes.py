"""The local store under real processes that are killed and stopped."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import lmdb
import pytest

import bookie
from bookie.cluster.directory import BookieDirectory
from bookie.errors import MetadataUnavailableError
from bookie.metadata.connect import open_store
from bookie.metadata.model import Change, ChangeKind, Commit, Resync
from bookie.metadata.session import EXPIRY_EVENTS, SessionEvent
from bookie.metadata.store import MetadataStore

_WORKER = Path(__file__).with_name("metadata_worker.py")
_ROOT = Path(bookie.__file__).parent.parent


@asynccontextmanager
async def _worker(
    role: str, directory: Path, argument: object, *, timeout_seconds: float = 30.0
) -> AsyncIterator[Process]:
    words = [str(_WORKER), role, str(directory), str(timeout_seconds), str(argument)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()


async def _line(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(300):
        return (await process.stdout.readline()).decode().strip()


async def _events(changes: AsyncIterator[Change]) -> AsyncIterator[tuple[ChangeKind, str]]:
    async with asyncio.timeout(300):
        async for change in changes:
            assert isinstance(change, Commit)
            for event in change.events:
                yield event.kind, event.key


def _check_invariants(directory: Path) -> dict[str, int]:
    """Read the tables directly: no gap in the log, indexes equal records, owners are sessions.

    Returns the version of each record.
    """
    with lmdb.open(str(directory), max_dbs=8, readonly=True) as environment:
        tables = {
            name: environment.open_db(name.encode(), create=False)
            for name in ("records", "children", "ephemerals", "sessions", "log", "meta")
        }
        with environment.begin() as transaction:
            rows = {
                name: {bytes(k): bytes(v) for k, v in transaction.cursor(db=table)}
                for name, table in tables.items()
            }
    versions = [struct.unpack(">Q", key)[0] for key in rows["log"]]
    (last,) = struct.unpack(">Q", rows["meta"][b"version"])
    assert versions == list(range(1, last + 1))
    children, ephemerals = set(), set()
    for key, value in rows["records"].items():
        assert struct.unpack_from(">Q", value)[0] <= last
        parent = key
        while parent:
            parent, _, name = parent.rpartition(b"/")
            children.add((parent or b"/") + b"\0" + name)
        owner = value[32:48]
        if owner != bytes(16):
            ephemerals.add(owner + key)
            assert owner in rows["sessions"]
    assert set(rows["children"]) == children
    assert set(rows["ephemerals"]) == ephemerals
    return {k.decode(): struct.unpack_from(">Q", v)[0] for k, v in rows["records"].items()}


async def test_four_processes_count_exactly(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}") as store:
        await store.put("/counter", b"0")
        async with (
            _worker("count", tmp_path, 150) as a,
            _worker("count", tmp_path, 150) as b,
            _worker("count", tmp_path, 150) as c,
            _worker("count", tmp_path, 150) as d,
        ):
            async with asyncio.timeout(60):
                assert [await process.wait() for process in (a, b, c, d)] == [0, 0, 0, 0]
        record = await store.get("/counter")
        assert record is not None
        assert record.value == b"600"


async def test_a_killed_holder_loses_its_leases_at_once_and_in_one_change(
    tmp_path: Path,
) -> None:
    """Case 155."""
    async with open_store(f"local://{tmp_path}") as store, store.watch("/leases") as changes:
        # The session alone would keep them for longer than this test waits.
        async with _worker("hold", tmp_path, 5, timeout_seconds=300.0) as holder:
            assert await _line(holder) == "ready"
            assert [r.created_by_self async for r in store.scan_children("/leases")] == [False] * 5
            begun = await anext(changes)
            holder.kill()
            ended = await asyncio.wait_for(anext(changes), 60)
        assert isinstance(begun, Commit)
        assert isinstance(ended, Commit)
        assert [event.key for event in ended.events] == [event.key for event in begun.events]
        assert {event.kind for event in ended.events} == {ChangeKind.DELETED}
        assert not await store.exists("/leases")
    _check_invariants(tmp_path)
    assert os.listdir(tmp_path / "sessions") == []


async def test_a_stopped_holder_loses_its_leases_and_learns_it(tmp_path: Path) -> None:
    """Case 156."""
    async with (
        open_store(f"local://{tmp_path}") as store,
        store.watch("/leases") as changes,
        _worker("hold", tmp_path, 1, timeout_seconds=1.0) as holder,
    ):
        assert await _line(holder) == "ready"
        events = _events(changes)
        assert await anext(events) == (ChangeKind.CREATED, "/leases/0")
        holder.send_signal(signal.SIGSTOP)
        assert await anext(events) == (ChangeKind.DELETED, "/leases/0")
        holder.send_signal(signal.SIGCONT)
        assert [await _line(holder) for _ in EXPIRY_EVENTS] == [e.value for e in EXPIRY_EVENTS]


async def test_a_reader_stopped_in_its_transaction_blocks_nobody(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}") as store:
        await store.put("/a", b"")
        async with _worker("transaction", tmp_path, "read") as reader:
            assert await _line(reader) == "inside"
            reader.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(60):
                for i in range(50):
                    await store.put("/a", b"%d" % i)
            reader.send_signal(signal.SIGCONT)


async def test_a_writer_killed_in_its_transaction_blocks_nobody(tmp_path: Path) -> None:
    async with open_store(f"local://{tmp_path}") as store:
        await store.put("/a", b"")
        async with _worker("transaction", tmp_path, "write") as writer:
            assert await _line(writer) == "inside"
            writer.kill()
            async with asyncio.timeout(60):
                await store.put("/a", b"after")
    _check_invariants(tmp_path)


async def test_a_stuck_writer_shows_as_a_lost_connection_until_it_goes_on(tmp_path: Path) -> None:
    async with (
        open_store(f"local://{tmp_path}", session_timeout_seconds=6.0) as store,
        store.session_events() as events,
        _worker("transaction", tmp_path, "write") as writer,
    ):
        assert await _line(writer) == "inside"
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(300):
            put = tasks.create_task(store.put("/a", b""))
            assert await anext(events) is SessionEvent.CONNECTION_LOST
            assert not put.done()
            assert writer.stdin is not None
            writer.stdin.write(b"go on\n")
            assert await anext(events) is SessionEvent.RECONNECTED


async def test_a_writer_stuck_for_long_loses_the_session_for_its_owner_only(tmp_path: Path) -> None:
    """The owner cannot know what becomes of its session; the others see that it is alive."""
    uri = f"local://{tmp_path}"
    async with (
        open_store(uri, session_timeout_seconds=6.0) as store,
        store.session_events() as session_events,
    ):
        await store.put("/mine", b"", ephemeral=True)
        events = aiter(session_events)
        async with (
            _worker("transaction", tmp_path, "write") as writer,
            asyncio.timeout(60),
            asyncio.TaskGroup() as tasks,
        ):
            assert await _line(writer) == "inside"
            tasks.create_task(_put_at_last(store))
            heard = [await anext(events), await anext(events)]
            assert writer.stdin is not None
            writer.stdin.write(b"go on\n")
            heard += [await anext(events), await anext(events)]
        assert heard == list(EXPIRY_EVENTS)
        record = await store.get("/mine")
        assert record is not None
        assert record.created_by_self


async def _put_at_last(store: MetadataStore) -> None:
    """Write until it succeeds, so that somebody waits for the lock."""
    while True:
        try:
            await store.put("/a", b"")
        except MetadataUnavailableError:
            continue
        return


async def test_a_write_behind_a_stuck_writer_ends_in_a_sentence_and_still_happens(
    tmp_path: Path,
) -> None:
    async with (
        open_store(f"local://{tmp_path}", session_timeout_seconds=0.3) as store,
        _worker("transaction", tmp_path, "write") as writer,
    ):
        assert await _line(writer) == "inside"
        with pytest.raises(MetadataUnavailableError, match="may be stopped"):
            await store.put("/a", b"")
        with pytest.raises(MetadataUnavailableError, match="may be stopped"):
            async with open_store(f"local://{tmp_path}", session_timeout_seconds=0.3):
                pass
        assert writer.stdin is not None
        writer.stdin.write(b"go on\n")
        assert await _line(writer) == "outside"
        await asyncio.wait_for(writer.wait(), 60)
        await store.put("/b", b"")
        assert await store.exists("/a")
        assert len(os.listdir(tmp_path / "sessions")) == 1


async def test_the_end_of_a_stopped_writer_frees_all_others(tmp_path: Path) -> None:
    """What the guide says to do: kill it. What it had begun to write did not happen."""
    async with (
        open_store(f"local://{tmp_path}", session_timeout_seconds=0.5) as store,
        _worker("transaction", tmp_path, "write") as writer,
    ):
        assert await _line(writer) == "inside"
        writer.send_signal(signal.SIGSTOP)
        with pytest.raises(MetadataUnavailableError, match="may be stopped"):
            await store.put("/a", b"")
        writer.kill()
        await asyncio.wait_for(writer.wait(), 60)
        await store.put("/b", b"")
        assert await store.exists("/a")


async def test_closing_does_not_wait_for_a_stuck_writer(tmp_path: Path) -> None:
    async with _worker("transaction", tmp_path, "write") as writer:
        async with open_store(f"local://{tmp_path}", session_timeout_seconds=0.5) as store:
            assert await _line(writer) == "inside"
            assert await store.get("/a") is None
        assert writer.returncode is None, "closing waited until the writer was gone"
    # The environment was left open; the next store in this process takes it over.
    async with open_store(f"local://{tmp_path}") as store:
        await store.put("/a", b"")


@pytest.mark.parametrize("seed", range(3))
async def test_kills_under_load_leave_whole_commits(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    acknowledged: dict[str, int] = {}
    mirror: dict[str, int | None] = {}

    async def run_and_kill(name: str) -> None:
        async with _worker("churn", tmp_path, name) as worker:
            for _ in range(dice.randrange(1, 60)):
                words = (await _line(worker)).split()
                assert words[:1] == ["acknowledged"]
                acknowledged[name] = int(words[1])
            worker.kill()

    async def follow(changes: AsyncIterator[Change]) -> None:
        async for change in changes:
            assert not isinstance(change, Resync)
            for event in change.events:
                if event.kind is ChangeKind.DELETED:
                    del mirror[event.key]
                else:
                    mirror[event.key] = event.revision
            if "/end" in mirror:
                return

    async with open_store(f"local://{tmp_path}") as store, store.watch("/") as changes:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(300):
            tasks.create_task(follow(changes))
            async with asyncio.TaskGroup() as workers:
                for number in range(3):
                    workers.create_task(run_and_kill(str(seed * 10 + number)))
            while len(os.listdir(tmp_path / "sessions")) > 1:
                await store.put("/waiting", b"")
            await store.put("/end", b"")
        for name, version in acknowledged.items():
            record = await store.get(f"/acknowledged/{name}")
            assert record is not None
            assert record.version >= version
        assert not await store.exists("/leases")
    assert mirror == _check_invariants(tmp_path)


async def test_a_killed_bookie_leaves_the_directory_and_its_successor_enters(
    tmp_path: Path,
) -> None:
    async with open_store(f"local://{tmp_path}") as store, BookieDirectory(store) as directory:
        for _ in range(2):
            async with _worker("register", tmp_path, "bookie-1") as bookie_process:
                assert await _line(bookie_process) == "registered"
                async with asyncio.timeout(60):
                    while "bookie-1" not in directory.bookies():
                        await directory.wait_for_change()
                bookie_process.kill()
            # The successor starts at once: it may meet the record of the dead.
        async with asyncio.timeout(60):  # of a session timeout of 30 s
            while directory.bookies():
                await directory.wait_for_change()
        assert directory.resolve("bookie-1").port == 3181


async def test_a_second_process_with_the_same_bookie_id_gives_up(tmp_path: Path) -> None:
    async with _worker("register", tmp_path, "bookie-1") as first:
        assert await _line(first) == "registered"
        async with _worker("register", tmp_path, "bookie-1", timeout_seconds=0.5) as second:
            assert "another process is registered as bookie bookie-1" in await _line(second)
            assert await asyncio.wait_for(second.wait(), 60) == 0
