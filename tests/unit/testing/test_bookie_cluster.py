"""Clusters for users' tests: what each verb does to a bookie, and what clients see of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import bookie.testing
from bookie.api import BookKeeper, WriterHandle
from bookie.errors import (
    BadRequestError,
    BookieError,
    NotEnoughBookiesError,
    UnknownLedgerStateError,
)
from bookie.metadata.memory import tree
from bookie.testing import BookieCluster, cluster, sync_cluster

WAIT_SECONDS_MAX = 120.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not condition():  # noqa: ASYNC110  (whatever the condition is about)
            await asyncio.sleep(0.005)


async def written(bk: BookKeeper, count: int = 10) -> WriterHandle:
    """A writer with so many entries."""
    writer = await bk.create_ledger()
    await writer.append_many([b"%d" % number for number in range(count)])
    return writer


async def payloads(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    """All entries of a ledger, which is recovered."""
    reader = await bk.open_ledger(ledger_id, recover=True)
    return [entry.payload async for entry in reader.read()]


def names(directory: Path, pattern: str) -> set[str]:
    """The names in `directory` of whatever matches the pattern, or holds it."""
    return {path.relative_to(directory).parts[0] for path in directory.glob(pattern)}


def place(c: BookieCluster, writer: WriterHandle, slot: int) -> int:
    """The number of the bookie in a slot of the writer's ensemble."""
    return c.bookie_ids.index(writer.metadata.last_fragment.bookies[slot])


async def test_a_cluster_is_ready_and_leaves_nothing(tmp_path: Path) -> None:
    """All bookies are registered at the beginning, and their metadata is gone at the end."""
    async with cluster(bookies=2, directory=tmp_path) as c:
        async with c.connect() as bk:
            assert set(bk.bookies()) == set(c.bookie_ids) == {"bookie-0", "bookie-1"}
        assert c.is_running(0)
        assert c.uri.removeprefix("memory://") in tree._trees
    assert c.uri.removeprefix("memory://") not in tree._trees
    assert names(tmp_path, "*") == set(c.bookie_ids)


async def test_two_clusters_do_not_know_each_other() -> None:
    """Each has a store of its own."""
    async with cluster(1) as one, cluster(1) as other, one.connect() as bk:
        assert one.uri != other.uri
        assert len(bk.bookies()) == 1


async def test_what_was_acknowledged_survives_kills_of_all() -> None:
    """The files hold it; what was not acknowledged may be there or not."""
    async with cluster() as c:
        async with c.connect(add_timeout_seconds=1) as bk:
            writer = await written(bk)
            for number in range(3):
                await c.kill(number)
            assert not any(map(c.is_running, range(3)))
            with pytest.raises(NotEnoughBookiesError):
                await writer.append(b"nobody hears this")
        for number in range(3):
            await c.restart(number)
        async with c.connect() as bk:
            assert await payloads(bk, writer.ledger_id) == [b"%d" % number for number in range(10)]


async def test_a_killed_bookie_is_replaced() -> None:
    """Its registration goes, appends go on, and the spare takes its place."""
    async with cluster(4) as c, c.connect(replace_after_seconds=0.1) as bk:
        writer = await written(bk)
        killed = place(c, writer, 0)
        await c.kill(killed)
        await until(lambda: len(bk.bookies()) == 3)
        assert await writer.append(b"10") == 10
        await until(lambda: len(writer.metadata.fragments) == 2)
        await writer.close()
        await c.restart(killed)
        await until(lambda: len(bk.bookies()) == 4)
        assert len(await payloads(bk, writer.ledger_id)) == 11


async def test_a_killed_bookie_does_not_stop_in_order(tmp_path: Path) -> None:
    """Only a bookie that is stopped says in its directory that it was closed."""
    async with cluster(2, directory=tmp_path) as c:
        await c.kill(0)
        await c.stop(1)
    assert names(tmp_path, "*/ledgers/STOPPED") == {"bookie-1"}


async def test_a_running_bookie_is_restarted_in_order() -> None:
    """Its entries are there afterwards."""
    async with cluster() as c, c.connect() as bk:
        writer = await written(bk)
        await writer.close()
        for number in range(3):
            await c.restart(number)
            assert c.is_running(number)
        await until(lambda: len(bk.bookies()) == 3)
        assert len(await payloads(bk, writer.ledger_id)) == 10


async def test_a_paused_bookie_hangs_and_comes_back() -> None:
    """It stays registered and answers late what it was asked meanwhile."""
    async with cluster() as c, c.connect(replace_after_seconds=60) as bk:
        writer = await written(bk)
        for number in range(2):
            await c.pause(number)
        async with asyncio.TaskGroup() as tasks:
            appending = tasks.create_task(writer.append(b"10"))
            done, _ = await asyncio.wait([appending], timeout=0.1)
            assert not done
            assert len(bk.bookies()) == 3
            for number in range(2):
                await c.resume(number)
        assert appending.result() == 10


async def test_a_partitioned_bookie_is_away_until_it_is_healed() -> None:
    """Its session ends, so nobody counts on it; then it registers again."""
    async with cluster() as c, c.connect() as bk:
        writer = await written(bk)
        await c.partition(0)
        await until(lambda: len(bk.bookies()) == 2)
        with pytest.raises(NotEnoughBookiesError):
            await bk.create_ledger()
        await writer.append(b"10")
        await c.heal(0)
        await until(lambda: len(bk.bookies()) == 3)
        await (await written(bk)).close()
        assert len(await payloads(bk, writer.ledger_id)) == 11


async def test_a_wiped_bookie_does_not_deny_what_it_had() -> None:
    """It comes back empty, and says that it does not know."""
    async with cluster(1) as c, c.connect() as bk:
        sizes = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
        async with bk.create_ledger(**sizes) as writer:  # type: ignore[arg-type]
            await writer.append(b"lost")
        reader = await bk.open_ledger(writer.ledger_id)
        incarnation = bk.bookies()["bookie-0"].incarnation
        await c.wipe(0)
        await c.wipe(0)  # it is still wiped
        await c.restart(0)
        await until(lambda: "bookie-0" in bk.bookies())
        assert bk.bookies()["bookie-0"].incarnation != incarnation
        with pytest.raises(BookieError) as failed:
            _ = [entry async for entry in reader.read()]
        assert isinstance(failed.value, UnknownLedgerStateError)


async def test_verbs_refuse_what_makes_no_sense() -> None:
    """With a sentence that names the bookie."""
    async with cluster(1) as c:
        with pytest.raises(BadRequestError, match="no bookie 1"):
            await c.kill(1)
        await c.kill(0)
        for verb in (c.kill, c.stop, c.pause, c.resume, c.partition, c.heal):
            with pytest.raises(BadRequestError, match="bookie-0 does not run"):
                await verb(0)


async def test_the_end_comes_in_every_state() -> None:
    """Paused, partitioned, killed and stopped bookies hold nothing up."""
    async with cluster(4) as c:
        await c.pause(0)
        await c.partition(1)
        await c.kill(2)
        await c.stop(3)


async def test_a_paused_bookie_may_be_killed() -> None:
    """With clients that wait for it."""
    async with cluster() as c, c.connect(add_timeout_seconds=30) as bk:
        writer = await written(bk)
        for number in range(2):
            await c.pause(number)
        async with asyncio.TaskGroup() as tasks:
            appending = tasks.create_task(writer.append(b"10"))
            await asyncio.sleep(0)
            for number in range(2):
                await c.kill(number)
                await c.restart(number)
        assert appending.result() == 10


async def test_a_bookie_that_cannot_start_ends_the_block(tmp_path: Path) -> None:
    """The error says why."""
    (tmp_path / "bookie-0").mkdir()
    (tmp_path / "bookie-0" / "journal").write_text("a file", encoding="utf-8")
    with pytest.raises(BaseExceptionGroup) as failed:
        async with cluster(1, directory=tmp_path):
            raise AssertionError("it started")
    assert failed.group_contains(BookieError, match="journal")


async def test_without_fsync_bookies_work_as_well() -> None:
    """Also across a kill, because the page cache outlives it."""
    async with cluster(fsync=False) as c, c.connect() as bk:
        writer = await written(bk)
        for number in range(3):
            await c.kill(number)
            await c.restart(number)
        await until(lambda: len(bk.bookies()) == 3)
        assert len(await payloads(bk, writer.ledger_id)) == 10


def test_a_sync_cluster_has_the_same_verbs() -> None:
    """They wait for the loop of `bookie.sync`."""
    with sync_cluster(4) as c, c.connect(replace_after_seconds=0.1) as bk:
        assert len(c.bookie_ids) == 4
        with bk.create_ledger() as writer:
            for number, (do, undo) in enumerate(
                ((c.pause, c.resume), (c.partition, c.heal), (c.kill, c.restart), (c.stop, None))
            ):
                do(number)
                writer.append(b"x")
                if undo is not None:
                    undo(number)
        c.wipe(3)
        c.restart(3)
        assert all(map(c.is_running, range(4)))
        assert len(list(bk.open_ledger(writer.ledger_id).read())) == 4


def test_names_are_loaded_at_their_first_use() -> None:
    """And a misspelt one is an AttributeError."""
    with pytest.raises(AttributeError, match="clusters"):
        getattr(bookie.testing, "clusters")  # noqa: B009  (type checkers would refuse it)
