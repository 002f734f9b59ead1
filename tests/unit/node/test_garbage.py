"""Garbage collection: data goes only when all conditions agree, and then for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.cluster import keys
from bookie.config import GarbageSettings
from bookie.errors import (
    BadRequestError,
    DiskFullError,
    FormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from bookie.ids import Status
from bookie.ledger.catalog.deletion_proofs import DAY_MS, find_days
from bookie.ledger.metadata import LedgerState
from bookie.node.garbage import GarbageReport, RoundOutcome
from tests.unit.node.engine.machine import KIB
from tests.unit.node.engine.machine import add as add_to_engine
from tests.unit.node.garbage_place import Place, collecting
from tests.unit.node.node_room import add, ids_of, read, serving
from tests.unit.node.started_bookie import metadata

OK, FENCED = Status.OK, Status.FENCED


@pytest.fixture(name="place")
async def _place(tmp_path: Path) -> AsyncIterator[Place]:
    async with collecting(tmp_path) as place:
        yield place


# ---- ledgers that somebody deleted


async def test_a_ledger_whose_deletion_is_proven_goes_at_once(place: Place) -> None:
    """Its late writer is refused as if it were fenced; the other ledgers stay."""
    await place.create(range(1, 4))
    assert (await place.round()).missing == 0
    await place.delete([2])
    assert await place.round() == GarbageReport(RoundOutcome.DONE, local=3, missing=1, deleted=1)
    assert (await add(place.room.bookie, 2, [2])).status is FENCED
    assert (await read(place.room.bookie, 2, 0, 0)).status is Status.NO_SUCH_LEDGER
    assert await place.stored() == [1, 3]
    assert ids_of(await read(place.room.bookie, 1, 0, 0)) == [0]
    assert await place.round() == GarbageReport(RoundOutcome.DONE, local=2)


async def test_any_number_with_proof_may_go(place: Place) -> None:
    """All of them at once are no reason to stop."""
    await place.create(range(1, 301))
    await place.round()
    await place.delete(range(1, 300))
    report = await place.round()
    assert (report.outcome, report.deleted) == (RoundOutcome.DONE, 299)
    assert await place.stored() == [300]


async def test_the_only_ledger_may_go(place: Place) -> None:
    """The cluster has no ledger then, but proof of why."""
    await place.create([1])
    await place.round()
    await place.delete([1])
    assert (await place.round()).deleted == 1
    listed = place.ledgers.listed
    assert (await place.round()).local == 0
    assert place.ledgers.listed == listed, "without ledgers there is nothing to ask for"


async def test_a_ledger_that_was_made_again_stays(place: Place) -> None:
    """As an operator's import makes one; there is proof of its deletion all the same."""
    await place.create([1, 2])
    await place.delete([1])
    await place.ledgers.create(metadata(1, LedgerState.OPEN, ("b1",)), is_fresh=True)
    assert await place.round() == GarbageReport(RoundOutcome.DONE, local=2)
    assert await place.stored() == [1, 2]


async def test_a_device_without_room_for_notes_gives_space_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later round repeats a failed record."""

    async def full(_values: object) -> None:
        raise DiskFullError("no room")

    await place.create([1, 2, 3])
    await place.delete([1])
    await place.lose([2])
    with monkeypatch.context() as patch:
        patch.setattr(place.room.engine.integrity, "put", full)
        report = await place.round()
        assert (report.outcome, report.deleted, report.absent) == (RoundOutcome.DONE, 1, 1)
    await place.round()
    place.restart()
    await place.round()
    assert place.collector.status().garbage_waiting_since_ms == 20_000 * DAY_MS
    assert place.collector._memory.now.observed_seconds == 10.0


async def test_a_round_sweeps_old_proofs(place: Place) -> None:
    await place.create([1, 2])
    await place.delete([1])
    place.clock.ms += 8 * DAY_MS
    await place.round()
    assert await find_days(place.store) == []
    assert await place.stored() == [2], "the ledger went before its proof"


async def test_a_sweep_that_fails_is_no_failure_of_the_round(place: Place) -> None:
    """Something that is no proof lies among the proofs of an old day."""
    await place.store.put(f"{keys.DELETED}/000001/stranger", b"")
    await place.create([1, 2])
    await place.delete([1])
    assert (await place.round()).deleted == 1
    await place.store.delete(f"{keys.DELETED}/000001/stranger")
    assert (await place.round()).outcome is RoundOutcome.DONE
    assert not place.collector._sweep_failed


# ---- ledgers that are merely absent


async def test_an_absent_ledger_goes_after_its_grace(place: Place) -> None:
    """Its writer goes on till then; node info tells since when it waits, and until when."""
    await place.create(range(1, 4))
    await place.round()
    await place.lose([2])
    for _ in range(3):
        report = await place.round()
        assert report == GarbageReport(RoundOutcome.DONE, local=3, missing=1, absent=1)
    status = place.collector.status()
    assert status.garbage_waiting_ledgers == 1
    assert status.garbage_waiting_since_ms == 20_000 * DAY_MS
    assert status.garbage_first_deletion_at_ms == 20_000 * DAY_MS + 5000
    assert place.room.machine.metrics.garbage_waiting_ledgers._value.get() == 1
    assert (await add(place.room.bookie, 2, [1])).status is OK
    assert await place.round() == GarbageReport(RoundOutcome.DONE, local=3, missing=1, deleted=1)
    assert (await add(place.room.bookie, 2, [2])).status is FENCED
    status = place.collector.status()
    assert (status.garbage_waiting_ledgers, status.garbage_waiting_since_ms) == (0, None)
    assert status.garbage_first_deletion_at_ms is None


async def test_two_listings_have_to_lack_it(place: Place) -> None:
    """However short the grace is."""
    place.collector.settings = GarbageSettings(grace_seconds=1e-9)
    await place.create([1, 2])
    await place.lose([1])
    assert (await place.round()).deleted == 0
    assert (await place.round()).deleted == 1


async def test_a_ledger_that_came_back_waits_anew(place: Place) -> None:
    await place.create([1, 2])
    await place.lose([1])
    for _ in range(3):
        await place.round()
    await place.ledgers.create(metadata(1, LedgerState.OPEN, ("b1",)))
    assert (await place.round()).absent == 0
    await place.lose([1])
    for _ in range(3):
        assert (await place.round()).deleted == 0
    assert (await place.round()).deleted == 1


async def test_only_observed_time_counts(place: Place) -> None:
    """Three things add no grace: a clock that jumps, a store that is silent, a wrong wall clock."""
    await place.create([1, 2])
    await place.lose([1])
    await place.round()
    place.clock.ms += 400 * DAY_MS
    assert (await place.round(after=1e6)).deleted == 0
    assert place.collector._memory.now.observed_seconds == 20.0, "twice the pause at most"
    place.ledgers.broken_after = 0
    assert (await place.round()).outcome is RoundOutcome.ABORTED
    place.ledgers.broken_after = None
    assert (await place.round()).deleted == 0
    assert (await place.round()).deleted == 1


async def test_the_grace_goes_on_after_a_restart(place: Place) -> None:
    """Observed time is remembered. The time of the stop adds to it no further."""
    await place.create([1, 2])
    await place.lose([1])
    for _ in range(3):
        await place.round()
    observed = place.collector._memory.now
    await place.collector._memory.save()
    place.restart()
    assert (await place.round(after=1e6)).deleted == 0
    assert place.collector._memory.now == observed
    assert (await place.round()).deleted == 1


async def test_the_grace_survives_a_crash(place: Place) -> None:
    """All but the last minute of it, which is not noted each time."""
    await place.create([1, 2])
    await place.lose([1])
    place.collector.settings = GarbageSettings(grace_seconds=100.0)
    for _ in range(9):
        await place.round()
    assert place.collector._memory.now.observed_seconds == 80.0
    killed = place.room.machine.killed("kill")
    async with serving(killed) as room:
        after = Place(
            room, place.ledgers, place.clock, place.collector, place.store, place.instance_id
        )
        after.restart()
        await after.round()
        assert after.collector._memory.now.observed_seconds == 60.0
        deleted = [(await after.round()).deleted for _ in range(4)]
        assert deleted == [0, 0, 0, 1]


async def test_a_ledger_that_is_created_while_listing_is_not_looked_at(place: Place) -> None:
    """The ledgers stored here are listed first."""
    await place.create([1])
    place.ledgers.while_listing.append(metadata(9, LedgerState.OPEN, ("b1",)))
    await place.round()
    await add(place.room.bookie, 9, [0])
    assert (await place.round()).missing == 0


@pytest.mark.parametrize("proven", [True, False])
async def test_a_listing_that_breaks_deletes_nothing(place: Place, proven: bool) -> None:
    """With proof or without."""
    await place.create(range(1, 4))
    if proven:
        await place.delete([1])
    else:
        await place.lose([1])
        for _ in range(3):
            await place.round()
    place.ledgers.broken_after = 1
    report = await place.round()
    assert (report.outcome, report.deleted) == (RoundOutcome.ABORTED, 0)
    assert "session ended" in report.reason
    assert await place.stored() == [1, 2, 3]
    place.ledgers.broken_after = None
    await place.round()
    await place.round()
    assert await place.stored() == [2, 3]


@pytest.mark.parametrize("proven", [True, False])
@pytest.mark.parametrize(
    "error", [MetadataUnavailableError("no answer"), FormatError("damaged"), NoSuchLedgerError("")]
)
async def test_only_a_direct_no_such_ledger_deletes(
    place: Place, error: Exception, proven: bool
) -> None:
    """Silence and damage prove nothing. They leave other ledgers alone, too."""
    await place.create(range(1, 4))
    if proven:
        await place.delete([1])
    else:
        await place.lose([1])
        for _ in range(3):
            await place.round()
    place.ledgers.read_error = error
    report = await place.round()
    gone = isinstance(error, NoSuchLedgerError)
    assert report.deleted == (1 if gone else 0)
    assert report.outcome is (RoundOutcome.DONE if gone else RoundOutcome.ABORTED)
    assert await place.stored() == ([2, 3] if gone else [1, 2, 3])


async def test_a_listing_that_leaves_out_a_ledger_does_not_delete_it(place: Place) -> None:
    """The direct read finds it."""
    await place.create(range(1, 4))
    place.ledgers.hidden = {2}
    for _ in range(6):
        report = await place.round()
        assert (report.outcome, report.deleted, report.absent) == (RoundOutcome.DONE, 0, 0)
    assert await place.stored() == [1, 2, 3]


async def test_a_listing_that_lies_later_does_not_delete_what_waits(place: Place) -> None:
    """The ledger came back, the listing leaves it out: the last direct read finds it."""
    await place.create([1, 2])
    await place.lose([1])
    await place.round()
    await place.ledgers.create(metadata(1, LedgerState.OPEN, ("b1",)))
    place.ledgers.hidden = {1}
    for _ in range(6):
        assert (await place.round()).deleted == 0
    assert await place.stored() == [1, 2]


# ---- too many


async def test_too_many_absent_ledgers_need_an_operator(place: Place) -> None:
    """At once, before any grace is over, whatever their number; a forced round deletes them."""
    metrics = place.room.machine.metrics
    await place.create(range(1, 11))
    await place.round()
    await place.lose(range(1, 4))
    for _ in range(6):
        report = await place.round()
        assert (report.outcome, report.deleted) == (RoundOutcome.STOPPED, 0)
        assert "3 of 10" in place.collector.stopped
    assert metrics.garbage_stopped._value.get() == 1
    assert place.collector.status().garbage_first_deletion_at_ms is None
    await place.delete([4])
    report = await place.round()
    assert (report.outcome, report.deleted) == (RoundOutcome.STOPPED, 1), "what has proof goes on"
    assert (await place.round(force=True)).deleted == 3
    assert metrics.garbage_stopped._value.get() == 0
    assert place.collector.stopped == ""
    assert await place.stored() == [5, 6, 7, 8, 9, 10]


async def test_one_of_three_may_go_and_two_of_three_may_not(place: Place) -> None:
    await place.create([1, 2, 3])
    await place.round()
    await place.lose([1])
    deleted = [(await place.round()).deleted for _ in range(4)]
    assert deleted == [0, 0, 0, 1]
    await place.create([4])
    await place.lose([2, 3])
    for _ in range(6):
        report = await place.round()
        assert (report.outcome, report.deleted) == (RoundOutcome.STOPPED, 0)


async def test_new_ledgers_do_not_end_a_stop(place: Place) -> None:
    """It ends when the absent ones come back; a restart does not end it either."""
    await place.create(range(1, 11))
    await place.round()
    await place.lose(range(1, 5))
    await place.round()
    await place.create(range(100, 150))
    place.restart()
    for _ in range(6):
        report = await place.round()
        assert (report.outcome, report.deleted) == (RoundOutcome.STOPPED, 0)
    assert "4 of 10" in place.collector.stopped
    for ledger_id in (1, 2):
        await place.ledgers.create(metadata(ledger_id, LedgerState.OPEN, ("b1",)))
    report = await place.round()
    assert (report.outcome, report.deleted) == (RoundOutcome.DONE, 2), "two of ten are not too many"


async def test_a_forced_round_needs_a_second_listing(place: Place) -> None:
    """Ledgers that are first found absent now go with the next forced round."""
    await place.create(range(1, 4))
    await place.lose([1, 2])
    assert (await place.round(force=True)).deleted == 0
    assert (await place.round(force=True)).deleted == 2


# ---- ledgers that an operator keeps


async def test_an_undeleted_ledger_waits_for_a_whole_grace_again(place: Place) -> None:
    """The others go when they are due; it does after a restart, too."""
    await place.create(range(1, 12))
    await place.lose([1, 2])
    for _ in range(3):
        await place.round()
    assert await place.collector.keep([1]) == 1
    place.restart()
    await place.round()
    assert (await place.round()).deleted == 1
    assert await place.stored() == [1, *range(3, 12)]
    assert (await place.round()).deleted == 0
    assert (await place.round()).deleted == 1


async def test_all_that_waits_can_be_undeleted(place: Place) -> None:
    """A ledger that is not waiting is named, and the call leaves all as it is."""
    with pytest.raises(BadRequestError, match="no ledger waits"):
        await place.collector.keep()
    await place.create(range(1, 12))
    await place.lose([1, 2])
    for _ in range(3):
        await place.round()
    with pytest.raises(BadRequestError, match="ledger 3 does not wait"):
        await place.collector.keep([1, 3])
    assert await place.collector.keep() == 2
    for _ in range(2):
        assert (await place.round()).deleted == 0
    assert (await place.round()).deleted == 2


async def test_a_ledger_that_is_kept_while_others_are_looked_up_stays(place: Place) -> None:
    """The operator's word counts up to the last moment."""
    await place.create(range(1, 12))
    await place.lose([1, 2])
    for _ in range(3):
        await place.round()
    exists = place.collector._exists

    async def keep_first(ledger_id: int) -> bool:
        if ledger_id == 1:
            await place.collector.keep([1])
        return await exists(ledger_id)

    place.collector._exists = keep_first  # type: ignore[method-assign]
    assert (await place.round()).deleted == 1
    assert await place.stored() == [1, *range(3, 12)]


# ---- rounds


async def test_a_deletion_survives_a_crash_and_gives_the_space_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files go with a compaction that the collector asks for."""
    engine, machine = place.room.engine, place.room.machine
    woken: list[bool] = []
    monkeypatch.setattr(engine, "compact", lambda: woken.append(True))
    await place.create([1, 2])
    for entry_id in range(1, 60):
        await add_to_engine(engine, 1, [entry_id], size=40 * KIB)
    await engine.checkpoint()
    await place.delete([1])
    assert (await place.round()).deleted == 1
    killed = machine.killed("kill")
    assert woken == [True]
    await engine.compactor.round(force=True)
    size = sum(path.stat().st_size for path in (*machine.journals(), *machine.log_files()))
    assert size < 1.1 * 1024 * KIB
    assert ids_of(await read(place.room.bookie, 2, 0, 0)) == [0]
    async with serving(killed) as after:
        assert (await add(after.bookie, 1, [99])).status is FENCED


async def test_rounds_are_made_by_themselves(place: Place) -> None:
    """Woken here; a suspended collector makes none, a forced one makes its two."""
    await place.create([1, 2])
    await place.lose([1])
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(place.collector.run())
        place.collector.suspended = True
        place.collector.wake()
        for _ in range(20):
            await asyncio.sleep(0)
        assert place.collector.last is None
        place.collector.suspended = False
        for _ in range(2):
            place.clock.seconds += 10
            before = place.collector.last
            place.collector.wake(force=True)
            async with asyncio.timeout(60):
                while place.collector.last is before:  # noqa: ASYNC110  (no event to wait for)
                    await asyncio.sleep(0)
        running.cancel()
    assert await place.stored() == [2]


async def test_a_store_that_is_slow_to_list_is_left_in_peace(place: Place) -> None:
    """The pause is twenty times what the listing took; shorter, if something is about to go."""
    await place.create([1, 2])
    await place.round()
    assert place.collector._pause() == 10.0
    place.collector._listing_seconds = 2.0
    assert place.collector._pause() == 40.0
    await place.lose([1])
    for pause in (10.0, 10.0, 5.0):
        await place.round()
        assert place.collector._pause() == pause
