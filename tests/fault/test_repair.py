"""Copies come back by themselves: real bookies that are killed, wiped and sent away.

In the end each entry of a closed ledger stands on every member of its write set, byte by byte the
same, and nothing is marked or locked.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest

from bookie.api import BookKeeper, WriterHandle
from bookie.cluster import keys
from bookie.cluster.cookies import CookieManager
from bookie.errors import BookieError
from bookie.ledger.copies.departures import Departures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.replica_plan import quorum_of, settled_fragments
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.read.verification import list_stored, read_command
from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from tests.fault.daemon_process import serving
from tests.fault.ledger_worker import payload_of
from tests.fault.lossy_cluster import LossyCluster, create, healed, lossy_cluster, payloads_of
from tests.fault.metadata_servers import SHARED

FIVE = ("b1", "b2", "b3", "b4", "b5")
STORES = ["local", *sorted(SHARED)]
SIZES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 1)]
REPAIR = {
    "lost_bookie_delay_seconds": 0.5,
    "retry_seconds_max": 2.0,
    "audit_interval_seconds": 5.0,
}
PAYLOADS = [b"%d" % number * 20 for number in range(200)]
SESSION_SECONDS = 4.0
SECONDS_MAX = 300.0
"""What is to happen has happened by then, even on a busy machine."""

Condition = Callable[[], Awaitable[bool]]


@pytest.fixture
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind: str = request.param
    found: str = f"local://{tmp_path}/metadata"
    return found if kind == "local" else SHARED[kind](request).uri


def repairing(uri: str, path: Path, **settings: float) -> AbstractAsyncContextManager[LossyCluster]:
    """Five bookies that repair, with sessions that survive a busy machine."""
    return lossy_cluster(
        uri, path, FIVE, repair=REPAIR | settings, session_timeout_seconds=SESSION_SECONDS
    )


async def _until(condition: Condition, what: str) -> None:
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                with suppress(BookieError):
                    if await condition():
                        return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"in {SECONDS_MAX:g} s it never came that {what}") from None


async def _written(client: BookKeeper, count: int = 8) -> list[int]:
    """Closed ledgers of several sizes, all with the same entries."""
    sizes = [SIZES[number % len(SIZES)] for number in range(count)]
    return [await _written_ledger(client, one) for one in sizes]


async def _written_ledger(client: BookKeeper, sizes: tuple[int, int, int]) -> int:
    writer = await create(client, sizes)
    await writer.append_many(PAYLOADS)
    return (await writer.close()).ledger_id


async def _named(client: BookKeeper, ledgers: list[int], bookie_id: str) -> list[int]:
    """Those ledgers that name a bookie."""
    found = [await client.ledger_metadata(one) for one in ledgers]
    return [
        one.ledger_id
        for one in found
        if any(bookie_id in fragment.bookies for fragment in one.fragments)
    ]


async def _packets(client: BookKeeper, metadata: LedgerMetadata) -> dict[int, list[bytes]]:
    """The packets of each entry, from each member of its write set alone."""
    quorum, pool = quorum_of(metadata), client._connected.pool
    found: dict[int, list[bytes]] = {}
    for fragment, last in settled_fragments(metadata):
        for slot, bookie_id in enumerate(fragment.bookies):
            stripe = quorum.stripe_of(slot)
            at = stripe.next_id(fragment.first_entry_id)
            while at <= last:
                command = read_command(
                    metadata, at, last, stripe, max_entries=1000, max_bytes=1 << 20
                )
                reply = await pool.connection(bookie_id).channel().read(command, timeout=10)
                if reply.batch is None:
                    break
                for entry_id, packet in zip(
                    reply.batch.entry_ids().tolist(), reply.batch.packets(), strict=True
                ):
                    found.setdefault(entry_id, []).append(bytes(packet))
                at = stripe.next_id(reply.batch.last_entry_id + 1)
    return found


async def _is_whole(client: BookKeeper, ledger_id: int) -> bool:
    metadata = await client.ledger_metadata(ledger_id)
    packets = await _packets(client, metadata)
    ends = range(metadata.last_entry_id + 1)
    return all(
        len(packets.get(entry_id, [])) == metadata.write_quorum_size
        and len(set(packets[entry_id])) == 1
        for entry_id in ends
    )


async def _is_clean(store: MetadataStore) -> bool:
    marks = UnderreplicationManager(store)
    return not [one async for one in marks.marked()] and not await marks.locked()


async def _check_end(cluster: LossyCluster, client: BookKeeper, ledgers: list[int]) -> None:
    """All ledgers have all their copies, and nothing is left marked or locked."""
    async with open_store(cluster.uri) as store:

        async def is_over() -> bool:
            for one in ledgers:
                if not await _is_whole(client, one):
                    return False
            return await _is_clean(store)

        await _until(is_over, "every entry has its copies, and no ledger is marked")
    for one in ledgers:
        assert await payloads_of(client, one) == PAYLOADS


async def _append(writer: WriterHandle, ended: asyncio.Event) -> None:
    while not ended.is_set():
        await writer.append_many(PAYLOADS[:5])
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("uri", STORES, indirect=True)
async def test_a_bookie_that_is_gone_for_good(uri: str, tmp_path: Path) -> None:
    """Its copies move; a writer goes on; then the bookie returns with all that it had."""
    async with repairing(uri, tmp_path) as cluster:
        client = await cluster.client()
        ledgers = await _written(client)
        victim = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies[0]
        writer = await create(client)
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_append(writer, ended))
            await cluster.kill(victim)

            async def has_moved() -> bool:
                return not await _named(client, ledgers, victim)

            await _until(has_moved, f"no ledger names {victim}")
            await cluster.start(victim)
            await _check_end(cluster, client, ledgers)
            ended.set()
        metadata = await writer.close()
        await _until(
            lambda: _is_whole(client, metadata.ledger_id), "the writer's ledger has its copies"
        )
        async with open_store(cluster.uri) as store:
            lost = Departures(store, keys.LOST_BOOKIES)

            async def is_back() -> bool:
                return not await lost.names()

            await _until(is_back, "nobody counts as lost")


@pytest.mark.parametrize("uri", STORES, indirect=True)
async def test_a_disk_that_is_replaced(uri: str, tmp_path: Path) -> None:
    """The bookie begins empty, gets everything back, and leaves its doubt."""
    async with repairing(uri, tmp_path, lost_bookie_delay_seconds=600) as cluster:
        client = await cluster.client()
        ledgers = await _written(client)
        victim = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies[0]
        await cluster.stop(victim)
        await cluster.wipe(victim)
        await cluster.start(victim)
        await _check_end(cluster, client, ledgers)

        async def is_out_of_doubt() -> bool:
            report = await cluster.checked(victim)  # None if the store was away meanwhile
            return bool(report and report["whole"])

        await _until(is_out_of_doubt, f"{victim} is whole")
        assert ledgers[0] in await _named(client, ledgers, victim)


async def test_a_replaced_disk_needs_no_command(tmp_path: Path) -> None:
    """The bookie starts on empty directories. A second one waits for the first one's copies."""
    uri = f"local://{tmp_path}/metadata"
    async with repairing(uri, tmp_path, lost_bookie_delay_seconds=600) as cluster:
        client = await cluster.client()
        ledgers = [await _written_ledger(client, (3, 3, 2)) for _ in range(4)]
        one, other, *_ = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies
        assert await cluster.command("repair", "disable") == (0, "")
        await cluster.stop(one)
        for directory in cluster.directories(one):
            shutil.rmtree(directory)
        await cluster.start(one)
        assert any("lost_data_replaced" in line for line in cluster.daemons[one].lines)
        await cluster.stop(other)
        for directory in cluster.directories(other):
            shutil.rmtree(directory)
        async with serving(cluster.homes[other].write()) as stopped:
            await stopped.until("start_waits")
            assert "it may have the last copies of entries of" in stopped.lines[-1]
            stopped.process.terminate()
            assert await stopped.end() == 0
        async with serving(cluster.homes[other].write()) as waiting:
            await waiting.until("start_waits")
            assert await cluster.command("repair", "enable") == (0, "")
            await waiting.until("lost_data_replaced")
            await waiting.until("registered")
            assert sum("start_waits" in line for line in waiting.lines) <= 2  # each reason once
            waiting.process.terminate()
            assert await waiting.end() == 0
        await cluster.start(other)
        await _check_end(cluster, client, ledgers)
        assert ledgers[0] in await _named(client, ledgers, one)
        assert ledgers[0] in await _named(client, ledgers, other)


async def test_a_disk_that_is_not_mounted_is_waited_for(tmp_path: Path) -> None:
    """The other copies were on a bookie that is gone for good; its cookie is still there."""
    uri = f"local://{tmp_path}/metadata"
    async with repairing(uri, tmp_path, lost_bookie_delay_seconds=600) as cluster:
        client = await cluster.client()
        ledgers = [await _written_ledger(client, (3, 3, 2)) for _ in range(2)]
        gone, late, *_ = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies
        await cluster.stop(gone, late)
        kept = [(path, path.with_name(f"{path.name}.kept")) for path in cluster.directories(late)]
        for path, aside in kept:
            path.rename(aside)
        async with serving(cluster.homes[late].write()) as daemon:
            await daemon.until("start_waits")
            for path, aside in kept:
                path.rename(path.with_name(f"{path.name}.below"))
                aside.rename(path)
            await daemon.until("registered")
            assert not any("lost_data_replaced" in line for line in daemon.lines)


@pytest.mark.parametrize(
    ("section", "key"), [("repair", "enabled"), ("bookie", "replace_lost_data")]
)
async def test_who_may_not_replace_refuses(tmp_path: Path, section: str, key: str) -> None:
    uri = f"local://{tmp_path}/metadata"
    async with lossy_cluster(uri, tmp_path, repair={"enabled": True}) as cluster:
        await cluster.stop("b1")
        for directory in cluster.directories("b1"):
            shutil.rmtree(directory)
        home = cluster.homes["b1"]
        home.sections.setdefault(section, {})[key] = False
        async with serving(home.write()) as refused:
            assert await refused.end() == 1
            assert "type `bookie cookie delete b1`" in refused.lines[-1]


@pytest.mark.parametrize("uri", STORES, indirect=True)
async def test_whoever_repairs_is_killed(uri: str, tmp_path: Path) -> None:
    """Also in the middle of a move. Somebody else goes on, and nothing stays marked or locked."""
    async with repairing(uri, tmp_path) as cluster:
        client = await cluster.client()
        ledgers = await _written(client, 40)
        victim, other, *_ = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies
        await cluster.kill(victim)
        async with open_store(cluster.uri) as store:
            marks = UnderreplicationManager(store)

            async def is_marked() -> bool:
                return any([True async for _ in marks.marked()])

            async def is_under_repair() -> bool:
                return bool(await marks.locked()) or not await _named(client, ledgers, victim)

            await _until(is_marked, "ledgers are marked")
            await _until(is_under_repair, "a ledger is under repair")
        survivors = [name for name in FIVE if name not in (victim, other)]
        for name in survivors[:2]:
            await cluster.kill(name)
            await cluster.start(name)
        await cluster.start(victim)
        await _check_end(cluster, client, ledgers)


@pytest.mark.parametrize("uri", STORES, indirect=True)
async def test_a_bookie_returns_after_its_copies_moved(uri: str, tmp_path: Path) -> None:
    """It loses what nobody names any more, and takes copies again."""
    async with repairing(uri, tmp_path, unnamed_copies_grace_seconds=1) as cluster:
        client = await cluster.client()
        ledgers = await _written(client)
        victim = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies[0]
        had = await _named(client, ledgers, victim)
        await cluster.kill(victim)

        async def has_moved() -> bool:
            return not await _named(client, ledgers, victim)

        await _until(has_moved, f"no ledger names {victim}")
        await cluster.start(victim)

        async def has_lost_them() -> bool:
            return not await _stored(client, victim, had)

        await _until(has_lost_them, f"{victim} has removed its copies")
        await _check_end(cluster, client, ledgers)
        if not uri.startswith("local:"):
            return
        status, said = await cluster.command("cluster", "rebalance")
        assert status == 0, said
        assert await _named(client, ledgers, victim), said
        await _check_end(cluster, client, ledgers)


async def _stored(client: BookKeeper, bookie_id: str, ledgers: list[int]) -> list[int]:
    """Those ledgers of which a bookie lists entries."""
    found = []
    for ledger_id in ledgers:
        metadata = await client.ledger_metadata(ledger_id)
        if await list_stored(client._connected.pool, bookie_id, metadata, 0):
            found.append(ledger_id)
    return found


async def test_a_bookie_that_comes_gets_its_share(tmp_path: Path) -> None:
    """By one command; the others free what they gave."""
    uri = f"local://{tmp_path}/metadata"
    settings = REPAIR | {"unnamed_copies_grace_seconds": 1.0, "lost_bookie_delay_seconds": 600.0}
    async with lossy_cluster(
        uri, tmp_path, FIVE, repair=settings, session_timeout_seconds=SESSION_SECONDS
    ) as cluster:
        client = await cluster.client()
        await cluster.stop("b5")

        async def is_away() -> bool:
            return "b5" not in client.bookies()

        await _until(is_away, "b5 is away")
        ledgers = await _written(client, 40)
        assert not await _named(client, ledgers, "b5")
        before = {name: await _named(client, ledgers, name) for name in FIVE}
        await cluster.start("b5")

        async def is_there() -> bool:
            return "b5" in client.bookies()

        await _until(is_there, "b5 is there")
        status, plan = await cluster.command("cluster", "rebalance", "--dry-run")
        assert status == 0, plan
        assert not await _named(client, ledgers, "b5")
        status, said = await cluster.command("cluster", "rebalance", "--bytes-per-second-max", "0")
        assert (status, said) == (0, plan)
        assert await _named(client, ledgers, "b5")
        await _check_end(cluster, client, ledgers)

        async def have_freed() -> bool:
            for name in FIVE:
                left = set(before[name]) - set(await _named(client, ledgers, name))
                if await _stored(client, name, sorted(left)):
                    return False
            return True

        await _until(have_freed, "the former bookies have removed their copies")
        assert await cluster.command("repair", "disable") == (0, "")
        status, said = await cluster.command("cluster", "rebalance")
        assert (status, said) == (
            1,
            "bookie: repair is disabled in this cluster; enable it first\n",
        )


@pytest.mark.parametrize("uri", STORES, indirect=True)
async def test_a_writer_is_killed(uri: str, tmp_path: Path) -> None:
    """Its ledger is closed by itself, with every acknowledged entry. Another writer goes on."""
    async with repairing(uri, tmp_path, open_ledger_grace_seconds=1.0) as cluster:
        client = await cluster.client()
        living = await create(client)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fault.ledger_worker", uri),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            ledger_id = int(await process.stdout.readline())
            for _ in range(200):
                await process.stdout.readline()
        finally:
            process.kill()
        rest, _ = await process.communicate()
        # The kill may have cut off the last line.
        acknowledged = int((b"199\n" + rest).rpartition(b"\n")[0].rpartition(b"\n")[2])

        async def is_closed() -> bool:
            return (await client.ledger_metadata(ledger_id)).is_closed

        await _until(is_closed, f"ledger {ledger_id} is closed")
        found = await payloads_of(client, ledger_id)
        assert len(found) > acknowledged
        assert found == [payload_of(entry_id) for entry_id in range(len(found))]
        await living.append_many(PAYLOADS)
        assert not (await client.ledger_metadata(living.ledger_id)).is_closed
        await living.close()


async def test_a_bookie_leaves_the_cluster(tmp_path: Path) -> None:
    """By one command, which goes on after an interruption, and ends when the bookie is stopped."""
    uri = f"local://{tmp_path}/metadata"
    async with repairing(uri, tmp_path) as cluster:
        client = await cluster.client()
        ledgers = await _written(client)
        victim = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies[0]
        status, said = await cluster.command("cluster", "decommission", "b9", "--yes")
        assert (status, said) == (1, "bookie: this cluster has no bookie b9\n")
        status, said = await cluster.command("cluster", "decommission", victim, "--yes")
        assert status == 0
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(
                cluster.command("cluster", "decommission", victim, "--wait")
            )

            async def has_moved() -> bool:
                return not await _named(client, ledgers, victim)

            async def is_read_only() -> bool:
                return victim not in client._connected.directory.bookies()

            await _until(has_moved, f"no ledger names {victim}")
            await _until(is_read_only, f"{victim} takes no new ledgers")
            new = [await create(client) for _ in range(10)]
            assert not await _named(client, [one.ledger_id for one in new], victim)
            await cluster.stop(victim)
            status, said = await leaving
        assert status == 0, said
        assert f"bookie {victim} has left the cluster" in said
        async with open_store(uri) as store:
            assert victim not in await CookieManager(store).bookie_ids()
            assert not await Departures(store, keys.LEAVING_BOOKIES).names()
        await _check_end(cluster, client, ledgers)


async def test_a_pause_of_repair(tmp_path: Path) -> None:
    """While an operator has disabled it, nothing moves; then it goes on."""
    uri = f"local://{tmp_path}/metadata"
    async with repairing(uri, tmp_path) as cluster:
        client = await cluster.client()
        ledgers = await _written(client)
        victim = (await client.ledger_metadata(ledgers[0])).last_fragment.bookies[0]
        assert await cluster.command("repair", "disable") == (0, "")
        before = await _named(client, ledgers, victim)
        await cluster.kill(victim)
        async with open_store(uri) as store:
            lost = Departures(store, keys.LOST_BOOKIES)

            async def is_lost() -> bool:
                return await lost.names() == {victim}

            await _until(is_lost, f"{victim} counts as lost")
        status, said = await cluster.command("repair", "trigger")
        assert (status, said) == (
            1,
            "bookie: repair is disabled in this cluster; enable it first\n",
        )
        assert await _named(client, ledgers, victim) == before
        status, said = await cluster.command("repair", "status")
        assert status == 0
        assert f"lost bookies     {victim}" in said
        assert await cluster.command("repair", "enable") == (0, "")
        await healed(lambda: _check_end(cluster, client, ledgers))
        assert not await _named(client, ledgers, victim)
