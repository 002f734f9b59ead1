"""Bookies, writers, readers and admins on one cluster, each with the least rights in the metadata.

The servers refuse what lies beyond: so whatever a process did here, its rights sufficed for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

import bookie
import bookie.sync
from bookie.api import BookKeeper, LogRecord, WriterHandle
from bookie.daemon.local.process import child_environment
from bookie.errors import UnauthorizedError
from bookie.ledger.metadata import LedgerState
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.namespaces import NamespaceManager
from bookie.metadata.etcd.backend import EtcdStore
from bookie.metadata.rights import Kind
from tests.fault.daemon_cluster import BOOKIES, SECONDS_MAX, home_of
from tests.fault.daemon_process import Daemon, serving
from tests.servers.guarded import GuardedStore, guarded

__all__ = ["guarded"]

DENIALS = ("does not let", "denies us", "refuses")
"""What the two stores' refusals have in common with no other line of a bookie's log."""


async def pair(client: BookKeeper) -> WriterHandle:
    """A new ledger on two bookies of three, so that the third one may take a place."""
    return await client.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)


def connected(store: GuardedStore, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> BookKeeper:
    """A client of this kind, to enter."""
    with monkeypatch.context() as variables:
        for name, value in store.variables(kind).items():
            variables.setenv(name, value)
        return bookie.connect(store.uri)


async def bookies(store: GuardedStore, path: Path, stack: AsyncExitStack) -> dict[str, Daemon]:
    """Three that repair soon."""
    found = {}
    for name in BOOKIES:
        home = home_of(store.uri, path, name, timeout_seconds=3.0)
        home.sections["metadata"].update(store.settings(Kind.BOOKIE))
        home.sections["repair"] = {
            "lost_bookie_delay_seconds": 0.5,
            "open_ledger_grace_seconds": 1.0,
        }
        home.sections["garbage"] = {"interval_seconds": 2.0}
        found[name] = await stack.enter_async_context(serving(home.write()))
    for daemon in found.values():
        await daemon.until("registered")
    return found


async def write(client: BookKeeper) -> int:
    """Everything that a writer does; the id of a closed ledger."""
    async with await pair(client) as writer:
        await writer.append(b"one")
    async with await pair(client) as unwanted:
        await unwanted.append(b"unwanted")
    await client.delete_ledger(unwanted.ledger_id)
    await client.create_log("orders")
    async with client.open_log("orders") as log:
        for number in range(3):
            await log.append(b"%d" % number)
    await client.truncate_log("orders", before=1)
    async with client.consume("orders", cursor="billing", start="earliest") as consumer:
        await anext(aiter(consumer))
        await consumer.commit()
    async with client.join_group("reports", logs=["orders"], start="earliest") as member:
        await anext(aiter(member))
    await client.create_log("published", transactional=True)
    await client.sweep_logs(dry_run=True)
    await client.delete_log("sales/old")
    return writer.ledger_id


async def read(client: BookKeeper, ledger_id: int) -> None:
    """Everything that a reader does."""
    await read_ledger(client, ledger_id)
    assert (await client.ledger_metadata(ledger_id)).state is LedgerState.CLOSED
    values = [record.value async for record in client.read_log("orders")]
    assert values == [b"1", b"2"]
    assert [name async for name in client.list_logs()] == ["orders", "published"]
    assert (await client.log_status("orders")).partitions[0].extent.end_offset == 3
    assert ledger_id in [one async for one in client.list_ledgers()]


async def read_ledger(client: BookKeeper, ledger_id: int) -> None:
    reader = await client.open_ledger(ledger_id)
    assert [entry.payload async for entry in reader.read(0, reader.last_entry_id)] == [b"one"]


async def refused(call: Callable[[], Awaitable[object]]) -> None:
    """One sentence, and at once: an error that can be retried would be retried for long."""
    with pytest.raises(UnauthorizedError) as caught:
        await call()
    assert "\n" not in str(caught.value)
    assert any(word in str(caught.value) for word in DENIALS)


async def command(store: GuardedStore, kind: Kind, *words: str) -> tuple[int, str]:
    """Status of a command, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bookie", *words, "-m", store.uri),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=child_environment(os.environ) | store.variables(kind),
    )
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()


async def test_each_process_does_its_work_and_no_other(
    guarded: GuardedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await guarded.make_cluster()
    async with AsyncExitStack() as stack:
        daemons = await bookies(guarded, tmp_path, stack)
        async with guarded.opened(Kind.ADMIN) as store:
            await NamespaceManager(store).create("sales", LogPolicy(ack_quorum_size=2))
        async with connected(guarded, Kind.ADMIN, monkeypatch) as admin:
            await admin.create_log("sales/old", policy=LogPolicy(retention_seconds=60))
        async with connected(guarded, Kind.WRITER, monkeypatch) as writer:
            ledger_id = await write(writer)
            left_open = await pair(writer)
            await left_open.append(b"of a client that ends")
            namespaces = NamespaceManager(writer._logs_here.store)
            await refused(lambda: namespaces.create("other"))
            await writer.create_log("sales/new")
            await writer.delete_log("sales/new")

        async with connected(guarded, Kind.READER, monkeypatch) as reader:
            await read(reader, ledger_id)
            await follow(guarded, reader, monkeypatch)
            if isinstance(store := reader._logs_here.store, EtcdStore):
                assert store.client.calls.keys() == {"Authenticate", "Range", "Watch"}
            await refused(lambda: pair(reader))
            await refused(lambda: reader.create_log("mine"))
            await refused(lambda: reader.open_log("orders"))
            await refused(lambda: reader.delete_ledger(ledger_id))
            await refused(lambda: reader.delete_log("orders"))
            await refused(lambda: reader.open_ledger(left_open.ledger_id, recover=True))
            await refused(lambda: reader.join_group("reports", logs=["orders"]).__aenter__())
        with monkeypatch.context() as variables:
            for name, value in guarded.variables(Kind.READER).items():
                variables.setenv(name, value)
            await asyncio.to_thread(refuse_without_a_loop, guarded.uri)
        for words in (
            ("log", "read", "orders"),
            ("log", "show", "orders"),
            ("ledger", "read", str(ledger_id)),
        ):
            status, printed = await command(guarded, Kind.READER, *words)
            assert (status, "Traceback" in printed) == (0, False), printed
        status, printed = await command(guarded, Kind.READER, "ledger", "delete", "0", "--yes")
        assert status != 0
        assert any(word in printed for word in DENIALS), printed

        await repaired(guarded, daemons, ledger_id, left_open.ledger_id, monkeypatch)
        for name, daemon in daemons.items():
            if daemon.process.returncode is None:
                daemon.process.send_signal(signal.SIGTERM)
            await daemon.end()
            denied = [line for line in daemon.lines if any(word in line for word in DENIALS)]
            assert not denied, name
        async with guarded.opened(Kind.READER) as store:
            assert await store.get_children("/available/readwrite") == []


async def follow(store: GuardedStore, reader: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader sees records, and a new ledger of the log, as they come."""
    async with (
        connected(store, Kind.WRITER, monkeypatch) as writer,
        writer.open_log("orders") as log,
        aclosing(reader.read_log("orders", start="latest", follow=True)) as records,
        asyncio.timeout(SECONDS_MAX),
        asyncio.TaskGroup() as tasks,
    ):
        seen = tasks.create_task(next_of(records))
        while not seen.done():
            await log.append(b"new")
            await asyncio.wait([seen], timeout=0.5)
        assert seen.result().value == b"new"


async def next_of(records: AsyncIterator[LogRecord]) -> LogRecord:
    return await anext(records)


def refuse_without_a_loop(uri: str) -> None:
    """The same client, called from a thread without an event loop; its user is the reader."""
    with bookie.sync.connect(uri) as client:
        assert client.list_logs()
        with pytest.raises(UnauthorizedError):
            client.create_log("mine")


async def repaired(
    store: GuardedStore,
    daemons: dict[str, Daemon],
    closed: int,
    left_open: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bookies close the ledger of a writer that is gone, and copy what a lost bookie had."""
    async with (
        connected(store, Kind.READER, monkeypatch) as reader,
        asyncio.timeout(SECONDS_MAX),
    ):
        while (await reader.ledger_metadata(left_open)).state is not LedgerState.CLOSED:  # noqa: ASYNC110  (the metadata tells nobody)
            await asyncio.sleep(0.2)
        victim = (await reader.ledger_metadata(closed)).fragments[0].bookies[0]
        daemons[victim].process.kill()
        while victim in (await reader.ledger_metadata(closed)).fragments[0].bookies:  # noqa: ASYNC110  (the metadata tells nobody)
            await asyncio.sleep(0.2)
        await read_ledger(reader, closed)
