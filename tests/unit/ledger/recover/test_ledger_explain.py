"""`BookKeeper.explain_ledger` on real bookies: the verdict of a recovery, without one."""

from __future__ import annotations

import asyncio

import pytest

from bookie.api import BookKeeper, WriterHandle, connect
from bookie.entry.checksum import crc32c
from bookie.entry.digest import digester_for_key
from bookie.entry.entry import pack_batch
from bookie.errors import LedgerRecoveryError, NoSuchLedgerError
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.metadata import LedgerState
from bookie.ledger.recover.explanation import LedgerExplanation, TailRange, tail_of
from bookie.ledger.recover.recovery_forecast import WouldClose
from bookie.metadata.versioned import Versioned
from bookie.wire.commands import AddCommand
from tests.unit.ledger.real_cluster import RealCluster, until


def number_of(name: str) -> int:
    """The number of bookie b0, b1, …"""
    return int(name.removeprefix("b"))


def explain_words(found: LedgerExplanation) -> str:
    """The verdict as one text."""
    return "\n".join(found.verdict())


def closes_of(found: LedgerExplanation) -> list[WouldClose]:
    """The outcomes, all of which must be closes."""
    closes = [one for one in found.outcomes if isinstance(one, WouldClose)]
    assert len(closes) == len(found.outcomes)
    return closes


async def written(
    bk: BookKeeper, count: int, sizes: tuple[int, int, int] = (3, 3, 2)
) -> WriterHandle:
    """A ledger with so many entries, each acknowledged before the next one."""
    writer = await bk.create_ledger(
        ensemble_size=sizes[0], write_quorum_size=sizes[1], ack_quorum_size=sizes[2]
    )
    for number in range(count):
        await writer.append(b"%d" % number)
    return writer


async def stored(bk: BookKeeper, ledger_id: int) -> Versioned[object]:
    """The metadata as the store has it."""
    found = await bk._connected.ledgers.read(ledger_id)
    return Versioned(found.value, found.version)


def test_the_tail_names_who_has_what() -> None:
    """Ranges of several bookies become ranges with equal holders; holes are left out."""
    assert tail_of({}) == ()
    assert tail_of({"b0": [(3, 5)], "b1": [(3, 3), (5, 9)], "b2": []}) == (
        TailRange(3, 3, ("b0", "b1")),
        TailRange(4, 4, ("b0",)),
        TailRange(5, 5, ("b0", "b1")),
        TailRange(6, 9, ("b1",)),
    )
    assert tail_of({"b0": [(0, 1), (2, 3), (7, 7)]}) == (
        TailRange(0, 3, ("b0",)),
        TailRange(7, 7, ("b0",)),
    )


async def test_an_open_ledger_is_not_disturbed(bk: BookKeeper, cluster: RealCluster) -> None:
    """The verdict is that of a recovery; no bookie is fenced, and the writer goes on."""
    writer = await written(bk, 5)
    before = await stored(bk, writer.ledger_id)
    async with connect(cluster.uri) as other:
        found = await other.explain_ledger(writer.ledger_id)
    assert found.is_decidable
    # The last entry is beyond the LAC until the idle writer tells its bookies.
    ends = [(one.last_entry_id, one.length) for one in closes_of(found)]
    assert ends == [(4, 5), (4, 5)]
    assert (found.last_add_confirmed in (3, 4), found.fenced) == (True, ())
    assert found.tail in ((), (TailRange(4, 4, found.metadata.last_fragment.bookies),))
    for slot in found.slots:
        assert (slot.registration, slot.answer, slot.fenced) == ("writable", "ok", False)
        assert (slot.is_current, slot.last_entry_id) == (True, 4)
    words = explain_words(found)
    assert "a recovery would close it at entry 4\n" in words
    assert "a live writer may still append" in words
    assert await stored(bk, writer.ledger_id) == before
    assert await writer.append(b"more") == 5
    for bookie in cluster.bookies.values():
        assert not (await bookie.read_lac(writer.ledger_id, b"")).fenced
    assert (await writer.close()).last_entry_id == 5


async def test_a_live_writer_does_not_keep_it_busy(bk: BookKeeper) -> None:
    """Entries beyond the first answers are left out, so the explanation ends; none is lost."""
    writer = await written(bk, 1)
    is_over = asyncio.Event()
    acknowledged = 0

    async def append() -> None:
        nonlocal acknowledged
        while not is_over.is_set():
            acknowledged += len(await writer.append_many([b"x"] * 100))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(append())
        await until(lambda: acknowledged > 0)
        for _ in range(5):
            before = writer.last_add_confirmed
            found = await bk.explain_ledger(writer.ledger_id)
            assert min(one.last_entry_id for one in closes_of(found)) >= before
        is_over.set()
    assert (await writer.close()).last_entry_id == acknowledged


async def test_one_bookie_is_missing(bk: BookKeeper, cluster: RealCluster) -> None:
    """Two of three decide. A recovery then ends where the explanation said."""
    writer = await written(bk, 3)
    gone = writer.metadata.last_fragment.bookies[1]
    await cluster.stop(number_of(gone))
    found = await bk.explain_ledger(writer.ledger_id)
    assert found.is_decidable
    slot = found.slots[1]
    assert (slot.bookie_id, slot.registration, slot.answer) == (gone, "none", "no answer")
    assert (slot.fenced, slot.last_entry_id, slot.is_current) == (None, None, None)
    outcome = closes_of(found)[0]
    recovered = await bk.open_ledger(writer.ledger_id, recover=True)
    assert (recovered.last_entry_id, recovered.metadata.length) == (
        outcome.last_entry_id,
        outcome.length,
    )


async def test_two_bookies_are_missing(bk: BookKeeper, cluster: RealCluster) -> None:
    """Nothing can be decided. The missing are named, and a recovery fails."""
    writer = await written(bk, 3)
    bookies = writer.metadata.last_fragment.bookies
    for name in bookies[:2]:
        await cluster.stop(number_of(name))
    found = await bk.explain_ledger(writer.ledger_id)
    assert not found.is_decidable
    assert (
        f"a recovery would need answers of at least 1 more bookie of write set "
        f"{{{', '.join(bookies)}}}: {bookies[0]} (no answer), {bookies[1]} (no answer)"
    ) in found.verdict()
    with pytest.raises(LedgerRecoveryError):
        await bk.open_ledger(writer.ledger_id, recover=True)
    # The recovery has fenced the one that answered.
    found = await bk.explain_ledger(writer.ledger_id)
    assert found.metadata.state is LedgerState.IN_RECOVERY
    assert found.fenced == (bookies[2],)
    assert "a recovery has begun and has not ended" in explain_words(found)
    assert f"fenced on {bookies[2]}" in explain_words(found)
    await cluster.start(number_of(bookies[0]))
    async with connect(cluster.uri) as other:
        found = await other.explain_ledger(writer.ledger_id)
        assert found.is_decidable
        recovered = await other.open_ledger(writer.ledger_id, recover=True)
    assert recovered.last_entry_id == 2


async def test_the_first_answers_may_decide(bk: BookKeeper, cluster: RealCluster) -> None:
    """One bookie alone has an entry beyond the end: a recovery keeps it, or not; both are right."""
    writer = await written(bk, 3)
    found = writer.metadata
    holder = found.last_fragment.bookies[2]
    digester = digester_for_key(found.digest_type, found.password_key)
    batch = pack_batch(writer.ledger_id, 3, 2, 3, [b"z"], digester)
    command = AddCommand(batch, writer.ledger_id, found.password_key, crc32c(batch.payload))
    assert (await cluster.bookies[number_of(holder)].add(command)).status is Status.OK
    explanation = await bk.explain_ledger(writer.ledger_id)
    assert [one.last_entry_id for one in closes_of(explanation)] == [2, 3]
    assert explanation.tail == (TailRange(3, 3, (holder,)),)
    closes, stores = explanation.verdict()[:2]
    assert closes.startswith("a recovery would close it at an entry from 2 to 3: ")
    # Entry 2 again, too, for one that hears only of the LAC before it.
    assert stores.startswith("it would store at most entr")
    await cluster.stop(number_of(holder))
    assert (await bk.explain_ledger(writer.ledger_id)).verdict()[0].endswith("at entry 2")


async def test_striped_and_dead(bk: BookKeeper, cluster: RealCluster) -> None:
    """Five bookies share the entries; the forecast of a recovery without one of them holds."""
    for number in (3, 4):
        await cluster.start(number)
    await until(lambda: len(bk.bookies()) == 5)
    writer = await written(bk, 12, (5, 3, 2))
    await cluster.stop(number_of(writer.metadata.last_fragment.bookies[2]))
    found = await bk.explain_ledger(writer.ledger_id)
    assert found.is_decidable
    outcome = closes_of(found)[0]
    assert outcome.last_entry_id == 11
    recovered = await bk.open_ledger(writer.ledger_id, recover=True)
    assert (recovered.last_entry_id, recovered.metadata.length) == (11, outcome.length)


async def test_a_closed_ledger_asks_no_bookie(bk: BookKeeper, cluster: RealCluster) -> None:
    """Its end is in the metadata: dead bookies do not matter."""
    writer = await written(bk, 2)
    await writer.close()
    empty = await written(bk, 0)
    await empty.close()
    for number in range(3):
        await cluster.stop(number)
    found = await bk.explain_ledger(writer.ledger_id)
    assert (found.is_decidable, found.slots) == (True, ())
    assert found.verdict() == [
        "the ledger is closed at entry 1, after 2 bytes: there is nothing to decide"
    ]
    found = await bk.explain_ledger(empty.ledger_id)
    assert found.metadata.last_entry_id == NO_ENTRY
    assert "closed without an entry" in explain_words(found)


async def test_an_empty_ledger(bk: BookKeeper) -> None:
    """Its bookies know nothing of it, which decides."""
    writer = await written(bk, 0)
    found = await bk.explain_ledger(writer.ledger_id)
    assert [slot.answer for slot in found.slots] == ["no such ledger"] * 3
    assert "a recovery would close it without an entry" in found.verdict()
    with pytest.raises(NoSuchLedgerError):
        await bk.explain_ledger(77)
