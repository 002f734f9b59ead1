"""Bookies that lose their disks, or come back as an older self: nothing acknowledged is lost.

Three real bookies, ledgers on all three with an ack quorum of two, and each kind of shared metadata
store. Whatever one bookie forgets, the others' word must be enough, or nobody may decide.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from bookie.api import WriterHandle
from bookie.errors import (
    BookieError,
    LedgerFencedError,
    LedgerRecoveryError,
)
from bookie.ids import Status
from bookie.ledger.metadata import LedgerState
from bookie.wire.commands import ReadCommand
from tests.fault.daemon_cluster import BOOKIES
from tests.fault.lossy_cluster import (
    LossyCluster,
    create,
    lossy_cluster,
    payloads_of,
    with_frames,
)
from tests.fault.metadata_servers import SHARED
from tests.unit.ledger.real_cluster import until

STORES = ["local", *sorted(SHARED)]


async def append(writer: WriterHandle, first: int, end: int) -> None:
    """Append these numbers; all are acknowledged when this returns."""
    await writer.append_many([b"%d" % number for number in range(first, end)])


def numbers(end: int) -> list[bytes]:
    """What a ledger holds after `append(writer, 0, end)`."""
    return [b"%d" % number for number in range(end)]


async def outcome(writer: WriterHandle, payload: bytes) -> BookieError | int:
    """The id, or why the append failed."""
    try:
        return await writer.append(payload)
    except BookieError as error:
        return error


COPY_LOSSES = ["wiped", "older", "index and journals"]
LOSSES = ["wiped", "older", "index", "index and journals"]


async def lose(cluster: LossyCluster, name: str, loss: str, copy: Path | None = None) -> None:
    """What becomes of the disk of a bookie that does not run."""
    match loss:
        case "wiped":
            await cluster.wipe(name)
        case "older":
            assert copy is not None
            cluster.put_back(name, copy)
        case _:
            cluster.lose_index(name, journals="journals" in loss)


async def a_lost_copy_cuts_no_ledger_short(cluster: LossyCluster, loss: str) -> None:
    """Entries are on b1 and b3; b3 loses them, b1 hangs: b2 and b3 may not decide the end."""
    client = await cluster.client()
    writer = await create(client)
    await append(writer, 0, 10)
    await cluster.stop("b3")
    copy = cluster.copy("b3")
    await cluster.start("b3")
    await cluster.kill("b2")
    await append(writer, 10, 20)
    await cluster.stop("b3")
    await lose(cluster, "b3", loss, copy)
    await cluster.start("b2", "b3")
    await cluster.hang("b1")
    other = await cluster.client()
    with pytest.raises(LedgerRecoveryError):
        await other.open_ledger(writer.ledger_id, recover=True)
    cluster.resume("b1")
    reader = await other.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_entry_id == 19
    assert await payloads_of(other, writer.ledger_id) == numbers(20)


async def a_lost_fence_lets_no_writer_in(cluster: LossyCluster, loss: str) -> None:
    """The fence reached b1 and b2, the ledger is closed; b1 forgets it, b2 is slow."""
    client = await cluster.client()
    writer = await create(client)
    await append(writer, 0, 1)
    await cluster.stop("b1")
    copy = cluster.copy("b1")
    await cluster.start("b1")
    await cluster.sees(client, "b1", "b2", "b3")
    await cluster.hang("b3")
    other = await cluster.client()
    reader = await other.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_entry_id == 0
    await cluster.stop("b1")
    await lose(cluster, "b1", loss, copy)
    await cluster.start("b1")
    await cluster.hang("b2")
    cluster.resume("b3")
    late = await outcome(writer, b"late")
    assert isinstance(late, BookieError), f"acknowledged as entry {late} after the close at 0"
    cluster.resume("b2")
    assert await payloads_of(other, writer.ledger_id) == numbers(1)


async def a_doubtful_start_ends_no_healthy_writer(cluster: LossyCluster) -> None:
    """b1 boots without its index: five writers go on with the two others, and with it anew."""
    client = await cluster.client()
    writers = [await create(client) for _ in range(5)]
    for writer in writers:
        await append(writer, 0, 5)
    await cluster.stop("b1")
    cluster.lose_index("b1", journals=False)
    await cluster.start("b1")
    await cluster.sees(client, "b1", "b2", "b3")
    for writer in writers:
        await append(writer, 5, 10)
    # b1 has told each of them by now, or does when its lane is tried again. Nobody else is there,
    # so that it takes over its own slot.
    await until(lambda: all(sum(writer._machine.epochs) >= 1 for writer in writers))
    for writer in writers:
        await append(writer, 10, 20)
        assert (await writer.close()).last_entry_id == 19
    fresh = await create(client)
    await append(fresh, 0, 5)
    await fresh.close()
    assert not fresh.is_under_replicated, "new ledgers count on it again"


async def a_fence_that_nobody_made_ends_no_writer(cluster: LossyCluster) -> None:
    """b1 alone says FENCED, and the metadata says OPEN: the bookie failed, not the ledger."""
    client = await cluster.client()
    writer = await create(client)
    await append(writer, 0, 3)
    entered = client._connected
    channel = entered.pool.connection("b1").channel()
    await channel.fence(writer.ledger_id, writer.metadata.password_key, timeout=60)
    await append(writer, 3, 10)
    # Its answer may come after those of the two others.
    await until(lambda: writer.is_under_replicated)
    assert (await writer.close()).last_entry_id == 9
    assert await payloads_of(client, writer.ledger_id) == numbers(10)


async def a_fence_that_somebody_made_ends_the_writer(cluster: LossyCluster) -> None:
    """The metadata is no longer OPEN: dead, and whatever it had under way is unknown."""
    client, other = await cluster.client(), await cluster.client()
    writer = await create(client)
    await append(writer, 0, 3)
    await other.open_ledger(writer.ledger_id, recover=True)
    assert isinstance(await outcome(writer, b"late"), LedgerFencedError)
    found = await other._connected.ledgers.read(writer.ledger_id)
    assert (found.value.state, found.value.last_entry_id) == (LedgerState.CLOSED, 2)


async def swapped_disks_are_refused_by_name(cluster: LossyCluster) -> None:
    """Neither of the two serves the other's entries; put back, both do."""
    client = await cluster.client()
    writer = await create(client)
    await append(writer, 0, 10)
    await cluster.stop("b1", "b2")
    cluster.swap("b1", "b2")
    for mine, theirs in (("b1", "b2"), ("b2", "b1")):
        with pytest.raises(AssertionError):
            await cluster.start(mine)
        status, sentence = await cluster.daemons[mine].refusal()
        assert status == 1
        assert f"holds data of bookie {theirs}, and this is bookie {mine}" in sentence
        await cluster.kill(mine)
    cluster.swap("b1", "b2")
    await cluster.start("b1", "b2")
    await append(writer, 10, 12)
    await writer.close()
    assert not writer.is_under_replicated
    assert await payloads_of(client, writer.ledger_id) == numbers(12)


async def one_disk_is_put_back_older(cluster: LossyCluster, part: str) -> None:
    """Only the journal's, or only the ledgers': what it held since is unknown, not absent."""
    client = await cluster.client()
    await cluster.stop("b1")
    copy = cluster.copy("b1")
    await cluster.start("b1")
    await cluster.sees(client, "b1", "b2", "b3")
    writer = await create(client)
    await append(writer, 0, 10)
    await cluster.stop("b1")
    cluster.put_back("b1", copy, part)
    await cluster.start("b1")
    channel = client._connected.pool.connection("b1").channel()
    found = await channel.read(ReadCommand(writer.ledger_id, 9, 9), timeout=60)
    assert not found.status.is_definite_negative
    beyond = await channel.read(ReadCommand(writer.ledger_id, 99, 99), timeout=60)
    assert beyond.status is Status.UNKNOWN_LEDGER_STATE
    await writer.close()
    assert await payloads_of(client, writer.ledger_id) == numbers(10)


async def two_doubts_do_not_stop_a_recovery(cluster: LossyCluster) -> None:
    """b1 is in doubt about an older ledger and misses entries of a new one; b2 loses its index.

    b1 has lost nothing of the new ledger. So its word and that of b3 suffice to find the end.
    """
    client = await cluster.client()
    old = await create(client)
    await append(old, 0, 5)
    await cluster.stop("b1")
    cluster.lose_index("b1", journals=False)
    await cluster.start("b1")
    await cluster.sees(client, "b1", "b2", "b3")
    writer = await create(client)
    await append(writer, 0, 10)
    await until(lambda: not writer._machine.window.retained)  # all three have them
    await cluster.kill("b1")
    await append(writer, 10, 20)
    await until(lambda: not writer._machine.window.retained)  # b1 is given up
    await cluster.stop("b2")
    cluster.lose_index("b2", journals=False)
    await cluster.start("b2")
    # Nobody else is there, so that b2 takes over its own slot: the first fragment ends.
    await append(writer, 20, 30)
    await until(lambda: len(writer.metadata.fragments) == 2)
    await cluster.start("b1")
    report = await cluster.checked("b1")
    missed = f"ledger {writer.ledger_id}: 10 entries are missing (the first is 10)"
    assert missed in report["problems"], report
    other = await cluster.client()
    reader = await other.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_entry_id == 29
    assert await payloads_of(other, writer.ledger_id) == numbers(30)
    await old.close()


SCENARIOS: list[Callable[[LossyCluster], Awaitable[None]]] = [
    *(partial(a_lost_copy_cuts_no_ledger_short, loss=loss) for loss in COPY_LOSSES),
    *(partial(a_lost_fence_lets_no_writer_in, loss=loss) for loss in LOSSES),
    a_doubtful_start_ends_no_healthy_writer,
    a_fence_that_nobody_made_ends_no_writer,
    a_fence_that_somebody_made_ends_the_writer,
    two_doubts_do_not_stop_a_recovery,
    swapped_disks_are_refused_by_name,
    *(partial(one_disk_is_put_back_older, part=part) for part in ("journal", "ledgers")),
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", STORES)
async def test_every_loss(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, is_soak: bool
) -> None:
    """One after the other on the same bookies; each with ledgers and clients of its own.

    What a bookie lost is the same with every store. So the servers see each third story, and all
    of them in a soak.
    """
    uri = f"local://{tmp_path}/metadata"
    if kind != "local":
        uri = SHARED[kind](request).uri
    framed = with_frames(kind, BOOKIES)
    async with lossy_cluster(uri, tmp_path, by_frames=framed) as cluster:
        for scenario in SCENARIOS if is_soak or kind == "local" else SCENARIOS[::3]:
            cluster.resume(*BOOKIES)
            await cluster.start(*sorted({*BOOKIES} - cluster.running))
            # Those that hung have lost their sessions, and register again.
            async with cluster.connect() as look:
                await cluster.sees(look, *BOOKIES)
            await scenario(cluster)
