"""Promises of clients while bookies come and go and other clients interfere, on real bookies."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from bookie.api import BookKeeper, WriterHandle, connect
from bookie.config import ClientSettings, RpcSettings
from bookie.errors import (
    BookieError,
    BookieUnreachableError,
    ClientClosedError,
    LedgerFencedError,
    LedgerRecoveryError,
    NotEnoughBookiesError,
    WrongClusterError,
)
from bookie.ledger.connection.pool import BookieConnection, BookiePool
from bookie.ledger.metadata import Fragment
from bookie.ledger.read.handle import ReaderHandle
from bookie.metadata.versioned import Versioned
from tests.unit.ledger.real_cluster import WAIT_SECONDS_MAX, RealCluster, until


async def payloads_of(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    reader = await bk.open_ledger(ledger_id)
    return [entry.payload async for entry in reader.read()]


async def append_until_fenced(writer: WriterHandle, acknowledged: dict[int, bytes]) -> None:
    """Append and note what was acknowledged, until another client takes the ledger over."""
    number = 0
    while True:
        payload = b"%d" % number
        number += 1
        try:
            acknowledged[await writer.append(payload)] = payload
        except (LedgerFencedError, ClientClosedError):
            return


async def test_recovery_keeps_all_that_a_busy_writer_was_acknowledged(bk: BookKeeper) -> None:
    """Fifty coroutines append while another client recovers: nothing acknowledged is missing."""
    writer = await bk.create_ledger()
    acknowledged: dict[int, bytes] = {}
    async with asyncio.TaskGroup() as tasks:
        for _ in range(50):
            tasks.create_task(append_until_fenced(writer, acknowledged))
        await until(lambda: len(acknowledged) > 500)
        reader = await bk.open_ledger(writer.ledger_id, recover=True)
    read = {entry.entry_id: entry.payload async for entry in reader.read()}
    assert max(acknowledged) <= reader.last_entry_id
    assert {entry_id: read[entry_id] for entry_id in acknowledged} == acknowledged
    assert sorted(read) == list(range(reader.last_entry_id + 1))


async def test_a_ledger_is_read_while_it_is_written(bk: BookKeeper, cluster: RealCluster) -> None:
    """A tailing and a plain reader, a bookie that restarts: one sequence for everybody."""
    writer = await bk.create_ledger()
    await writer.append(b"0")
    tailed: list[bytes] = []

    async def tail() -> None:
        reader = await bk.open_ledger(writer.ledger_id)
        async for entry in reader.tail():
            assert entry.entry_id == len(tailed)
            tailed.append(entry.payload)

    async def read_again_and_again(reader: ReaderHandle) -> None:
        last = -1
        while not reader.is_closed:
            now = await reader.refresh()
            assert now >= last
            entries = [entry.payload async for entry in reader.read(max(last, 0), now)]
            assert entries == [b"%d" % i for i in range(max(last, 0), now + 1)]
            last = now

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tail())
        tasks.create_task(read_again_and_again(await bk.open_ledger(writer.ledger_id)))
        for number in range(1, 150):
            if number == 50:
                await cluster.stop(2)
            if number == 100:
                await cluster.start(2, same_port=False)
            await writer.append(b"%d" % number)
        await writer.close()
    assert tailed == [b"%d" % i for i in range(150)]


async def test_a_tail_moves_on_when_its_bookies_restart(
    bk: BookKeeper, cluster: RealCluster
) -> None:
    """Each bookie in turn is away; the follower hears of new entries from the others."""
    writer = await bk.create_ledger()
    reader = await bk.open_ledger(writer.ledger_id)
    seen: list[int] = []

    async def follow() -> None:
        async for entry in reader.tail():
            seen.append(entry.entry_id)  # noqa: PERF401  (others look while it grows)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        for number in range(3):
            await cluster.stop(number)
            entry_id = await writer.append(b"x")
            await until(lambda last=entry_id: seen[-1:] == [last])  # type: ignore[misc]
            await cluster.start(number)
            await until(lambda: not writer.is_under_replicated)
        await writer.close()
    assert seen == [0, 1, 2]


async def test_deferred_sync_confirms_before_it_is_durable(bk: BookKeeper) -> None:
    """Appends return, the LAC waits for the force; closing forces first."""
    writer = await bk.create_ledger(deferred_sync=True)
    assert await writer.append_many([b"a", b"b"]) == range(2)
    assert writer.last_add_confirmed == -1
    await writer.force()
    assert writer.last_add_confirmed == 1
    await writer.force()
    assert await writer.append(b"c") == 2
    assert (await writer.close()).last_entry_id == 2


async def test_what_was_not_forced_is_not_promised(bk: BookKeeper, cluster: RealCluster) -> None:
    """Two bookies restart before the force: their copies may be gone, and the force says so."""
    writer = await bk.create_ledger(deferred_sync=True)
    await writer.append(b"a")
    # A batch that one of three has not acknowledged is kept, and sent to the restarted one.
    await until(lambda: not writer._machine.window.retained)
    for number in (0, 1):
        await cluster.stop(number)
        await cluster.start(number)
        await until(lambda: not writer.is_under_replicated)
    with pytest.raises(NotEnoughBookiesError):
        await writer.force()
    assert writer.last_add_confirmed == -1


async def test_a_force_does_not_mean_a_later_life(bk: BookKeeper, cluster: RealCluster) -> None:
    """Two bookies restart, and the client does not notice, as when a machine loses its power.

    Unsynced entries are gone then. So they must not answer a force for it.
    """
    writer = await bk.create_ledger(deferred_sync=True)
    await writer.append(b"a")
    await until(lambda: not writer._machine.window.retained)
    for number in (0, 1):
        connection = writer._pool.connection(f"b{number}")
        await _carrier_stays(connection)
        for lane in connection._plain.values():
            assert lane._stream is not None
            lane._stream._on_broken = lambda _: None
        await cluster.stop(number)
        await cluster.start(number)
        await _answers(connection)
    assert not writer.is_under_replicated
    with pytest.raises(NotEnoughBookiesError):
        await writer.force()
    assert writer.last_add_confirmed == -1


async def _carrier_stays(connection: BookieConnection) -> None:
    """From now on the client chooses no other carrier, which would begin a new stream."""
    chosen = connection._chosen
    await until(lambda: not chosen._is_choosing)
    chosen._is_choosing = True


async def _answers(connection: BookieConnection) -> None:
    """Wait until the bookie answers calls."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            with contextlib.suppress(BookieError):
                await connection.channel().info(timeout=60)
                return
            await asyncio.sleep(0.01)


async def test_another_cluster_is_refused(bk: BookKeeper) -> None:
    """A client with another instance id is refused to write, read and recover."""
    writer = await bk.create_ledger()
    await writer.append(b"a")
    entered = bk._connected
    found = await entered.ledgers.read(writer.ledger_id)
    async with asyncio.TaskGroup() as tasks:
        stranger = BookiePool(entered.directory, "another", tasks, ClientSettings(), RpcSettings())
        incarnations = await entered.ensembles.incarnations(found.value.last_fragment.bookies)
        foreign = WriterHandle(found, stranger, entered.ledgers, incarnations)
        foreign.start()
        assert isinstance(await failure_of(foreign), WrongClusterError)
        reader = ReaderHandle(found, stranger, entered.ledgers)
        with pytest.raises(WrongClusterError):
            await reader.refresh()
        await stranger.close()
    assert await writer.append(b"b") == 1


async def failure_of(writer: WriterHandle) -> BookieError | None:
    try:
        await writer.append(b"x")
    except BookieError as error:
        return error
    return None


# -- bookies that fail -----------------------------------------------------------------------------


async def test_a_writer_goes_on_without_a_bookie(bk: BookKeeper, cluster: RealCluster) -> None:
    """Three of three, one stops: appends go on at once, and everything is read back."""
    writer = await bk.create_ledger()
    await writer.append_many([b"before"] * 10)
    await cluster.stop(1)
    for _ in range(20):
        await writer.append(b"during")
    await cluster.start(1)
    await writer.append_many([b"after"] * 10)
    await writer.close()
    expected = [b"before"] * 10 + [b"during"] * 20 + [b"after"] * 10
    for _ in range(6):  # readers start at different replicas
        assert await payloads_of(bk, writer.ledger_id) == expected


async def test_a_writer_survives_the_restart_of_every_bookie(
    bk: BookKeeper, cluster: RealCluster
) -> None:
    """One after the other, at another address: the writer finds each again."""
    writer = await bk.create_ledger()
    for number in range(3):
        await cluster.stop(number)
        await writer.append(b"%d" % number)
        await cluster.start(number, same_port=False)
        await until(lambda: not writer.is_under_replicated)
        await writer.append(b"%d" % number)
    await writer.close()
    assert await payloads_of(bk, writer.ledger_id) == [b"0", b"0", b"1", b"1", b"2", b"2"]


async def test_appends_wait_for_bookies_until_the_timeout(
    cluster: RealCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three are gone: within the add timeout they may come back; after it, an error.

    The log says then how each bookie stands. The ensemble's order is the placement's.
    """
    async with connect(cluster.uri, add_timeout_seconds=2) as bk:
        writer = await bk.create_ledger()
        await writer.append(b"a")
        await cluster.stop(0)
        await cluster.stop(1)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(writer.append(b"b"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await cluster.start(0)
        assert waiting.result() == 1
        await cluster.stop(0)
        with pytest.raises(NotEnoughBookiesError):
            await writer.append(b"c")
        failed = next(line for line in caplog.messages if line.startswith("writer_failed"))
        assert "'b0: down'" in failed
        assert "'b1: down'" in failed
        assert "'b2: up, " in failed
        await cluster.start(0)
        await cluster.start(1)
        assert (await writer.close()).last_entry_id == 1


async def test_recovery_needs_enough_bookies(cluster: RealCluster) -> None:
    """3/3/2 with one bookie: refused; with two: everything acknowledged is there."""
    async with connect(cluster.uri, read_timeout_seconds=2) as bk:
        writer = await bk.create_ledger()
        await writer.append_many([b"x"] * 50)
        await cluster.stop(0)
        await cluster.stop(1)
        with pytest.raises(NotEnoughBookiesError):
            await bk.open_ledger(writer.ledger_id)
        await cluster.start(1)
        reader = await bk.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_entry_id == 49
        assert len([entry async for entry in reader.read()]) == 50


async def test_a_reader_finds_entries_whose_bookie_was_replaced(
    bk: BookKeeper, cluster: RealCluster
) -> None:
    """Its metadata names a bookie that is gone for good; newer metadata names one that serves."""
    writer = await bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    await writer.append_many([b"a", b"b"])
    await writer.close()
    reader = await bk.open_ledger(writer.ledger_id)
    ledgers = bk._connected.ledgers
    found = await ledgers.read(writer.ledger_id)
    right = found.value.last_fragment.bookies[0]
    wrong = next(bookie_id for bookie_id in bk.bookies() if bookie_id != right)
    reader._found = Versioned(
        replace(found.value, fragments=(Fragment(0, (wrong,)),)), found.version - 1
    )
    assert [entry.payload async for entry in reader.read()] == [b"a", b"b"]
    assert reader.metadata == found.value


async def test_a_bookie_that_was_renewed_meanwhile_is_not_counted_on(bk: BookKeeper) -> None:
    """The client chose it by an old registration; its former process may be alive and answer."""
    entered = bk._connected
    found = await entered.ensembles.cookies.read("b1")
    assert found is not None
    await entered.ensembles.cookies.write(
        replace(found.value, incarnation="another"), found.version
    )
    writer = await bk.create_ledger()
    assert await writer.append_many([b"x", b"y"]) == range(2)
    slot = writer.metadata.last_fragment.bookies.index("b1")
    assert writer._machine.slots.lost == 1 << slot
    assert writer.is_under_replicated


async def acknowledged_by_two(cluster: RealCluster) -> int:
    """A ledger on b0, b1 and b2, whose entries only b0 and b1 have; nobody of them runs."""
    async with connect(cluster.uri) as bk:
        writer = await bk.create_ledger()
        await cluster.stop(2)
        await writer.append_many([b"%d" % number for number in range(10)])
        # A writer that lived would let others take over the slots of b0 and b1.
    await cluster.stop(0)
    await cluster.stop(1)
    return writer.ledger_id


async def test_another_bookie_at_an_old_address_decides_nothing(cluster: RealCluster) -> None:
    """Addresses go from one to another.

    Its "no such ledger" counts as a failed call.
    """
    async with connect(cluster.uri, read_timeout_seconds=1, speculative_read_seconds=0.5) as bk:
        ledger_id = await acknowledged_by_two(cluster)
        cluster.give_address(0, 3)
        cluster.give_address(1, 4)
        for number in (2, 3, 4):
            await cluster.start(number)
        with pytest.raises(LedgerRecoveryError):
            await bk.open_ledger(ledger_id, recover=True)
        await cluster.start(0)
        reader = await bk.open_ledger(ledger_id, recover=True)
        assert reader.last_entry_id == 9


async def test_another_bookie_at_an_old_address_loses_nothing(
    cluster: RealCluster, bk: BookKeeper
) -> None:
    """b0 comes back elsewhere as it was: its writers count on it again, and so do new ledgers."""
    writer = await bk.create_ledger()
    await writer.append(b"a")
    await cluster.stop(0)
    cluster.give_address(0, 3)
    await cluster.start(3)
    channel = bk._connected.pool.connection("b0").channel()
    with pytest.raises(BookieUnreachableError, match="this is bookie b3"):
        await channel.info(timeout=60)
    await writer.append(b"b")
    await cluster.start(0)
    await writer.append(b"c")
    await until(lambda: not writer._machine.window.retained)
    assert not writer.is_under_replicated
    assert writer._machine.slots.lost == 0


async def test_a_former_process_of_a_bookie_decides_nothing(cluster: RealCluster) -> None:
    """It lives on where clients reach it, and its successor is away: its word counts no more."""
    async with connect(cluster.uri, read_timeout_seconds=1, speculative_read_seconds=0.5) as bk:
        writer = await bk.create_ledger()
        await writer.append(b"a")
        await cluster.stop(2)
        cookies = bk._connected.ensembles.cookies
        found = await cookies.read("b1")
        assert found is not None
        await cookies.write(replace(found.value, incarnation="its successor's"), found.version)
        with pytest.raises(LedgerRecoveryError):
            await bk.open_ledger(writer.ledger_id, recover=True)
        await cluster.start(2)
        reader = await bk.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_entry_id == 0
