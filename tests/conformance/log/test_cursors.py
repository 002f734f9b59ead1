"""Cursors of a log: created, committed, moved, protected, listed, deleted."""

from __future__ import annotations

import pytest

from bookie.errors import (
    BadRequestError,
    BadVersionError,
    CursorLostError,
    KeyExistsError,
    MetadataUnavailableError,
    NoSuchCursorError,
    NoSuchLogError,
)
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.consume.commit import take_cursor
from bookie.log.consume.cursors import CursorRecord
from bookie.log.record.log_record import LogPosition
from bookie.metadata.versioned import Versioned
from tests.conformance.log.conftest import FIRST, ORDERS, LogProcess, NewProcess
from tests.conformance.log.fake_logs import CursorHistory

SECOND = LogPartition(ORDERS, 1)


@pytest.fixture
async def two(process: LogProcess) -> LogProcess:
    """A process, and a log of two partitions with 4 and 2 records."""
    await process.client.create(ORDERS, partitions=2)
    process.logs.append(FIRST, b"a", b"b", b"c", b"d")
    process.logs.append(SECOND, b"x", b"y")
    return process


async def test_a_cursor_lives_from_create_to_delete(two: LogProcess) -> None:
    cursors = two.cursors()
    assert await cursors.all() == {}
    with pytest.raises(NoSuchCursorError, match="no cursor billing on orders"):
        await cursors.delete("billing")
    await cursors.create("billing")
    with pytest.raises(KeyExistsError, match="billing of the log orders exists"):
        await cursors.create("billing")
    await cursors.create("audit", "latest", protected=False)
    assert {
        name: {number: (one.offset, one.is_protected) for number, one in found.items()}
        for name, found in (await cursors.all()).items()
    } == {"audit": {0: (4, False), 1: (2, False)}, "billing": {0: (0, True), 1: (0, True)}}
    await cursors.delete("audit")
    assert list(await cursors.all()) == ["billing"]


async def test_no_cursor_begins_at_the_offset_of_another_partition(two: LogProcess) -> None:
    place = LogPosition(1, 1, 1, 1)
    with pytest.raises(BadRequestError, match="begins in each of the 2 partitions of orders"):
        await two.cursors().create("billing", place)
    narrow = LogName("default", "narrow")
    await two.client.create(narrow)
    with pytest.raises(BadRequestError, match="is in partition 1, not in partition 0"):
        await two.cursors(narrow).create("billing", place)
    assert [await two.cursors(name).all() for name in (ORDERS, narrow)] == [{}, {}]


async def test_a_creation_that_was_cut_off_is_continued(two: LogProcess) -> None:
    cursors = two.cursors()
    await cursors.create("billing", "latest")
    await two.client.logs.delete_cursor(SECOND, "billing")
    await cursors.create("billing", "earliest")
    offsets = {number: one.offset for number, one in (await cursors.all())["billing"].items()}
    assert offsets == {0: 4, 1: 0}


async def test_a_cursor_needs_a_log_and_a_name(process: LogProcess) -> None:
    with pytest.raises(NoSuchLogError):
        await process.cursors(LogName("default", "none")).create("billing")
    await process.client.create(ORDERS)
    with pytest.raises(BadRequestError, match="cannot name a cursor"):
        await process.cursors().create("a/b")
    with pytest.raises(BadRequestError, match="no partition 1"):
        await process.cursors().commit("billing", 1, partition=1)


async def test_commits_never_go_back(two: LogProcess) -> None:
    cursors = two.cursors()
    with pytest.raises(NoSuchCursorError):
        await cursors.commit("billing", 1)
    await cursors.create("billing")
    await cursors.commit("billing", 3)
    await cursors.commit("billing", 2)
    await cursors.commit("billing", 1, partition=1)
    assert {one.partition: (one.cursor.offset, one.lag) for one in await cursors.status()} == {
        FIRST: (3, 1),
        SECOND: (1, 1),
    }
    assert await cursors.lag("billing") == 2
    with pytest.raises(NoSuchCursorError):
        await cursors.lag("other")


async def test_a_reset_moves_anywhere_and_begins_an_epoch(two: LogProcess) -> None:
    cursors = two.cursors()
    with pytest.raises(NoSuchCursorError):
        await cursors.reset("billing", "latest")
    await cursors.create("billing")
    assert await cursors.reset("billing", "latest") == {0: 4, 1: 2}
    made = (await cursors.all())["billing"]
    assert await cursors.lag("billing") == 0
    assert await cursors.reset("billing", "earliest", partition=1) == {1: 0}
    assert await cursors.reset("billing", 1, partition=0) == {0: 1}
    with pytest.raises(BadRequestError, match="name the partition"):
        await cursors.reset("billing", 1)
    assert await cursors.reset("billing", time=3) == {0: 3, 1: 2}
    assert await cursors.reset("billing", LogPosition(1, 1, 1, 1)) == {1: 1}
    with pytest.raises(BadRequestError, match="is in partition 1, not in partition 0"):
        await cursors.reset("billing", LogPosition(1, 1, 1, 1), partition=0)
    found = (await cursors.all())["billing"]
    begun = {number: one.epoch for number, one in made.items()}
    assert {number: (one.offset, one.epoch - begun[number]) for number, one in found.items()} == {
        0: (3, 2),
        1: (1, 3),
    }


async def test_a_cursor_is_protected_and_released(two: LogProcess) -> None:
    cursors = two.cursors()
    await cursors.create("billing")
    await cursors.commit("billing", 3)
    held = await take_cursor(two.client, CursorRecord(two.client, FIRST, "billing"))
    await cursors.protect("billing", protected=False)
    # Its holder goes on.
    await held.commit(4)
    found = (await cursors.all())["billing"]
    assert [(one.offset, one.is_protected) for one in found.values()] == [(4, False), (0, False)]


# ---- holders


async def test_each_holder_has_a_greater_token(two: LogProcess) -> None:
    record = CursorRecord(two.client, FIRST, "billing")
    with pytest.raises(NoSuchCursorError):
        await take_cursor(two.client, record)

    async def start() -> int:
        return 2

    first = await take_cursor(two.client, record, start)
    assert (first.token > 0, first.committed) == (True, 2)
    await first.commit(3)
    await first.commit(2)  # it never goes back
    assert (first.committed, await two.committed()) == (3, 3)
    second = await take_cursor(two.client, record, start)
    assert (second.token > first.token, second.committed) == (True, 3)
    with pytest.raises(CursorLostError, match=f"lost the cursor billing of {FIRST}"):
        await first.commit(4)
    await second.commit(4)
    with pytest.raises(CursorLostError):
        await first.commit(3)
    assert await two.committed() == 4


@pytest.mark.parametrize("made_by", ["a consumer", "an operator"])
async def test_a_cursor_that_is_made_anew_goes_on_with_its_tokens(
    two: LogProcess, made_by: str
) -> None:
    """A checker of tokens would take a former holder's for a newer one."""
    record = CursorRecord(two.client, FIRST, "billing")
    tokens = []

    async def start() -> int:
        return 0

    for _ in range(3):
        for _ in range(4):
            tokens.append((await take_cursor(two.client, record, start)).token)
            await two.cursors().reset("billing", 1, partition=0)
        await two.cursors().delete("billing")
        if made_by == "an operator":
            await two.cursors().create("billing")
    assert tokens == sorted(set(tokens))


async def test_a_cursor_that_is_deleted_while_it_is_taken_is_made_again(
    two: LogProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start, but not for ever; without a start that is an error."""
    record = CursorRecord(two.client, FIRST, "billing")
    revision, deletions = two.client.logs.cursor_revision, 1

    async def start() -> int:
        return 2

    async def revision_of_a_deleted_one(partition: LogPartition, cursor: str) -> int:
        nonlocal deletions
        if deletions:
            deletions -= 1
            await two.client.logs.delete_cursor(partition, cursor)
        return await revision(partition, cursor)

    monkeypatch.setattr(two.client.logs, "cursor_revision", revision_of_a_deleted_one)
    held = await take_cursor(two.client, record, start)
    assert (held.committed, await two.committed(), deletions) == (2, 2, 0)
    deletions = 10**6
    with pytest.raises(NoSuchCursorError):
        await take_cursor(two.client, record, start)
    assert deletions > 10**6 - 100
    deletions = 0
    await two.cursors().create("billing")
    deletions = 1
    with pytest.raises(NoSuchCursorError):
        await take_cursor(two.client, record)


async def test_a_cursor_that_another_makes_and_deletes_meanwhile_is_created(
    two: LogProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = two.client.logs.write_cursor
    refused: list[LogPartition] = []

    async def write_of_a_taken_name(
        partition: LogPartition, cursor: str, value: LogCursor, version: int
    ) -> Versioned[LogCursor]:
        if not refused:
            refused.append(partition)
            raise KeyExistsError("another process made it, and deletes it at once")
        return await write(partition, cursor, value, version)

    monkeypatch.setattr(two.client.logs, "write_cursor", write_of_a_taken_name)
    await two.cursors().create("billing", "latest")
    offsets = {number: one.offset for number, one in (await two.cursors().all())["billing"].items()}
    assert (offsets, refused) == ({0: 4, 1: 2}, [FIRST])


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_a_commit_that_was_not_answered_is_made_once(two: LogProcess, lost: str) -> None:
    record = CursorRecord(two.client, FIRST, "billing")
    await two.cursors().create("billing")
    setattr(two.store, f"lost_{'requests' if lost == 'request' else 'replies'}", 1)
    held = await take_cursor(two.client, record)
    assert held.token > 0
    setattr(two.store, f"lost_{'requests' if lost == 'request' else 'replies'}", 1)
    await held.commit(2)
    assert await two.committed() == 2
    await held.commit(3)
    assert await two.committed() == 3


async def test_a_late_commit_cannot_undo_a_later_one(
    two: LogProcess, history: CursorHistory
) -> None:
    """The first write is on its way while the store seems dead; the second one comes first."""
    record = CursorRecord(two.client, FIRST, "billing")
    await two.cursors().create("billing")
    held = await take_cursor(two.client, record)
    two.store.session_timeout_seconds = 0.0
    two.store.lost_requests = 1
    with pytest.raises(MetadataUnavailableError):
        await held.commit(2)
    await held.commit(3)
    (late,) = two.store.lost
    with pytest.raises(BadVersionError):
        await two.session.transaction(late)
    await held.commit(4)
    assert await two.committed() == 4
    assert history.check() == 1


async def test_two_who_take_at_once_get_different_tokens(
    two: LogProcess, new_process: NewProcess, history: CursorHistory
) -> None:
    """Both read the same epoch; the one whose write comes second reads again."""
    other = await new_process()
    await two.cursors().create("billing")
    seconds = []

    async def take_between() -> None:
        seconds.append(
            await take_cursor(other.client, CursorRecord(other.client, FIRST, "billing"))
        )

    read = two.client.logs.read_cursor

    async def read_then_lose(partition: LogPartition, cursor: str) -> object:
        found = await read(partition, cursor)
        if not seconds:
            await take_between()
        return found

    two.client.logs.read_cursor = read_then_lose  # type: ignore[method-assign, assignment]
    first = await take_cursor(two.client, CursorRecord(two.client, FIRST, "billing"))
    assert first.token == seconds[0].token + 1
    with pytest.raises(CursorLostError):
        await seconds[0].commit(1)
    assert history.check() == 2


async def test_a_holder_on_a_late_server_hears_that_it_lost_its_cursor(
    two: LogProcess, new_process: NewProcess
) -> None:
    """It looks when it has claimed its lock again; the server still has its own epoch."""
    other = await new_process()
    await two.cursors().create("billing")
    held = await take_cursor(two.client, CursorRecord(two.client, FIRST, "billing"))
    await held.check()
    await two.store.fall_behind()
    await take_cursor(other.client, CursorRecord(other.client, FIRST, "billing"))
    with pytest.raises(CursorLostError):
        await held.check()
