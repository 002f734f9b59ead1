"""The queue of appends: groups are cut the same, however the entries came."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bookie.entry.entry import with_prefixes
from bookie.errors import BadRequestError
from bookie.ledger.write.append_queue import AppendQueue, NewEntries, PendingAppends

DIGEST_BYTES = 4
OVERHEAD_BYTES = 36
ENTRIES_MAX = 10
BYTES_MAX = 1000


def queue() -> AppendQueue:
    """A queue of small groups."""
    return AppendQueue(DIGEST_BYTES, ENTRIES_MAX, BYTES_MAX)


def groups_of(filled: AppendQueue) -> list[PendingAppends]:
    """Everything in the queue, taken."""
    groups = []
    while filled:
        groups.append(filled.take())
    return groups


@pytest.mark.parametrize("seed", range(50))
async def test_many_at_once_make_the_groups_of_one_by_one(seed: int) -> None:
    """Same payloads in the same groups, no group above a bound except by a single entry."""
    random = Random(seed)
    future = asyncio.get_running_loop().create_future
    sizes_max = random.choice([0, 20, 300, 1500])
    at_once, one_by_one = queue(), queue()
    for _ in range(random.randrange(1, 6)):
        payloads = [random.randbytes(random.randint(0, sizes_max)) for _ in range(25)]
        part = payloads[: random.randrange(1, 25)]
        prefix = random.choice([b"", b"to all"])
        at_once.put_many(NewEntries.of(part, prefix), future())
        for payload in part:
            one_by_one.put(prefix + payload, future())
    assert at_once.next_entry_id == one_by_one.next_entry_id
    taken = groups_of(at_once)
    expected = groups_of(one_by_one)
    whole = [with_prefixes(group.payloads, group.shared) for group in taken]
    assert whole == [group.payloads for group in expected]
    assert [group.packed_bytes for group in taken] == [group.packed_bytes for group in expected]
    for group in taken:
        sizes = [
            len(payload) + OVERHEAD_BYTES for payload in with_prefixes(group.payloads, group.shared)
        ]
        assert group.entries == len(sizes) <= ENTRIES_MAX
        assert group.packed_bytes == sum(sizes)
        assert sum(sizes) <= BYTES_MAX or len(sizes) == 1


async def test_who_appends_many_waits_for_the_last_group() -> None:
    """The range of ids is the outcome of the group that has the last of them."""
    filled = queue()
    first = asyncio.get_running_loop().create_future()
    second = asyncio.get_running_loop().create_future()
    filled.put_many(NewEntries.of([b"x"] * 25), first)
    filled.put_many(NewEntries.of([b"y"] * 2), second)
    groups = groups_of(filled)
    assert [group.entries for group in groups] == [10, 10, 7]
    assert [group.outcomes for group in groups] == [[], [], [range(25), range(25, 27)]]
    assert groups[2].futures == [first, second]


def test_an_entry_that_fits_into_no_packet_is_refused() -> None:
    """The bound is the entry's own, not the group's."""
    empty = queue()
    empty.check(empty.payload_bytes_max)
    with pytest.raises(BadRequestError, match="larger than"):
        empty.check(empty.payload_bytes_max + 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_leaves_its_group_to_the_others(fails: bool) -> None:
    """Each of them gets its own id, or its own error."""
    filled = queue()
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[int]] = [loop.create_future() for _ in range(3)]
    for future in futures:
        filled.put(b"x", future)
    futures[1].cancel()
    (group,) = groups_of(filled)
    if fails:
        group.fail(BadRequestError("refused"))
    else:
        group.succeed()
    assert [future.cancelled() for future in futures] == [False, True, False]
    errors = [future.exception() for future in (futures[0], futures[2])]
    if fails:
        assert [type(error) for error in errors] == [BadRequestError] * 2
    else:
        assert [futures[0].result(), futures[2].result()] == [0, 2]
