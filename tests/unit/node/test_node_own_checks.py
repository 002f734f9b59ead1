"""Checks that nobody asked for: what a bookie without doubt notices by itself, and at what cost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from bookie.config import NodeSettings
from bookie.errors import MetadataUnavailableError
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from bookie.node import integrity_check
from bookie.node.engine.index.entry_index import INTEGRITY_SOUND
from bookie.node.engine.ledger_state import LocalLedger
from bookie.node.holdings import holdings
from bookie.node.integrity_check import IntegrityCheck, _is_counted
from tests.unit.node.engine.machine import Machine, until
from tests.unit.node.node_room import add, read
from tests.unit.node.started_bookie import metadata, stamped, started

OPEN, CLOSED = LedgerState.OPEN, LedgerState.CLOSED
SOON = NodeSettings(integrity_check_interval_seconds=0.001, integrity_check_repeat_seconds=0.001)


@pytest.fixture(autouse=True, name="joined")
async def _joined(machine: Machine, store: MetadataStore) -> None:
    await stamped(machine, store)


def missing(machine: Machine) -> float | None:
    """Missing entries, as Prometheus hears of them."""
    return machine.metrics.registry.get_sample_value("bookie_missing_entries")


def settle_by(
    patch: pytest.MonkeyPatch, check: IntegrityCheck, work: Callable[[], Awaitable[object]]
) -> list[float]:
    """Do some work in place of the pause before entries count as missing; its lengths."""
    pauses: list[float] = []

    async def wait(seconds: Callable[[], float]) -> bool:
        if seconds() == integrity_check.SETTLE_SECONDS:
            pauses.append(seconds())
            await work()
        return False

    patch.setattr(check._pace, "wait", wait)
    return pauses


async def nothing() -> None:
    """The bookie waits for entries in vain."""


async def test_what_was_missed_is_noticed_and_forgotten_without_asking(
    machine: Machine, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was away for three entries. Nothing enters limbo, and a copy puts all right."""
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1", "b2"), last=9, write_quorum=2))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(7))
    monkeypatch.setattr(integrity_check, "SETTLE_SECONDS", 0.01)
    async with started(machine, store) as after:
        assert missing(machine) == 0
        after.check.settings = SOON
        await until(lambda: missing(machine) == 3)
        assert after.engine.needs_integrity_check
        assert after.engine.ledgers_in_limbo == 0
        assert (await read(after.bookie, 1, 7, 7)).status is Status.NO_SUCH_ENTRY
        assert (await add(after.bookie, 1, range(7, 10), recovery=True)).status is Status.OK
        await until(lambda: after.engine.integrity.value == INTEGRITY_SOUND)
        await until(lambda: after.check.whole)
        assert missing(machine) == 0


@pytest.mark.parametrize("in_limbo", [False, True])
async def test_a_repair_is_noticed_long_before_the_next_check(
    machine: Machine, store: MetadataStore, in_limbo: bool
) -> None:
    """The checks have become rare by then. The ledgers that lacked something are few."""
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        state = await one.engine.load(1)
        if in_limbo:
            await one.engine.set_limbo(state, in_limbo=True)
        await one.check.check()
        assert state.limbo is in_limbo
        assert missing(machine) == 10
        await add(one.bookie, 1, range(10), recovery=True)
        assert await one.check._is_filled()
        one.check.settings = replace_settings(integrity_check_interval_seconds=0.001)
        await until(lambda: missing(machine) == 0)
        assert not state.limbo
        assert not await one.check._is_filled(), "nothing was missing"


async def test_a_deletion_ends_the_doubt_about_its_ledger_at_once(
    machine: Machine, store: MetadataStore
) -> None:
    """The next look by itself is a minute away. The garbage collector says what it deleted."""
    manager = LedgerManager(store)
    created = await manager.create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(7))
        await one.check.check()
        assert missing(machine) == 3
        await manager.delete(1, created.version)
        assert (await one.garbage.round()).deleted == 1
        await until(lambda: missing(machine) == 0 and not one.check.needed)


def replace_settings(**changes: float) -> NodeSettings:
    """Defaults but for these."""
    return NodeSettings.model_validate(changes)


async def test_entries_on_their_way_are_not_missing(
    machine: Machine, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is closed once the two other bookies have them."""
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(7))
        pauses = settle_by(monkeypatch, one.check, lambda: add(one.bookie, 1, range(7, 10)))
        report = await one.check._check(is_asked=False)
        assert (report.ledgers, report.missing_entries, report.whole) == (1, 0, True)
        assert pauses == [integrity_check.SETTLE_SECONDS]
        assert one.engine.integrity.value == INTEGRITY_SOUND


async def test_a_ledger_that_is_deleted_or_moved_meanwhile_misses_nothing(
    machine: Machine, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing is old before it is read to its end."""
    manager = LedgerManager(store)
    first = await manager.create(metadata(1, CLOSED, ("b1",), last=9))
    second = await manager.create(metadata(2, CLOSED, ("b1",), last=9))

    async def change() -> None:
        await manager.delete(1, first.version)
        moved = replace(second.value, fragments=(Fragment(0, ("b2",)),))
        await manager.write(moved, second.version)

    async with started(machine, store) as one:
        pauses = settle_by(monkeypatch, one.check, change)
        report = await one.check._check(is_asked=False)
        assert (report.ledgers, report.missing_entries, report.whole) == (0, 0, True)
        assert len(pauses) == 1


async def test_an_open_ledger_misses_nothing_of_its_last_fragment(
    machine: Machine, store: MetadataStore
) -> None:
    """Nobody knows its end. The part before the last fragment is known."""
    manager = LedgerManager(store)
    await manager.create(metadata(1, OPEN, ("b1",)))
    await manager.create(metadata(2, LedgerState.IN_RECOVERY, ("b2",), ("b1",)))
    async with started(machine, store) as one:
        report = await one.check._check(is_asked=False)
        assert (report.ledgers, report.whole) == (2, True)


async def test_a_check_by_itself_lists_only_what_rows_leave_open(
    machine: Machine, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row counts the entries of a billion ids. One that was asked for reads the index."""
    manager = LedgerManager(store)
    await manager.create(metadata(1, CLOSED, ("b1",), last=9))
    await manager.create(metadata(2, CLOSED, ("b1",), ("b1",), last=150))
    await manager.create(metadata(3, CLOSED, ("b1",), ("b2",), last=150))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(10))
        await add(one.bookie, 2, range(151))
        await add(one.bookie, 3, range(103))  # some more than were confirmed
        await one.engine.checkpoint()
        listed: list[int] = []
        entry_ranges = one.engine.entry_ranges

        def seen(state: LocalLedger, first: int, last: int) -> object:
            listed.append(state.ledger_id)
            return entry_ranges(state, first, last)

        monkeypatch.setattr(one.engine, "entry_ranges", seen)
        assert (await one.check._check(is_asked=False)).whole
        assert listed == [3]
        listed.clear()
        assert (await one.check.check()).whole
        assert listed == [1, 2, 2, 3]


def test_a_row_proves_that_nothing_is_missing_only_if_it_can() -> None:
    """Bounds within one run of ids, and enough entries."""
    closed = metadata(1, CLOSED, ("b1", "b2", "b3"), last=29, write_quorum=2)
    held = list(holdings(closed, "b1"))
    state = LocalLedger(1, None)
    assert not _is_counted(state, held)
    assert _is_counted(state, [])
    state.first_entry_id, state.last_entry_id, state.entries = 0, 29, 20
    assert _is_counted(state, held)
    state.entries = 19
    assert not _is_counted(state, held)
    state.entries = 21
    assert not _is_counted(state, held), "one of them is not owed, and may stand for another"
    state.last_entry_id, state.entries = 30, 20
    assert not _is_counted(state, held), "one of them may lie behind the end"
    state.deleted_at_ms = 1
    assert not _is_counted(state, [])


async def test_copies_of_a_larger_quorum_hide_no_missing_entry(
    machine: Machine, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write quorum was 3. The bookie keeps what it does not owe any more, which rows count."""
    closed = metadata(1, CLOSED, ("b1", "b2", "b3"), last=29, write_quorum=2)
    await LedgerManager(store).create(closed)
    (held,) = holdings(closed, "b1")
    lacking = held.stripe.next_id(10)
    async with started(machine, store) as one:
        await add(one.bookie, 1, [i for i in range(30) if i != lacking])
        await one.engine.checkpoint()
        assert not one.check.needed
        settle_by(monkeypatch, one.check, nothing)
        report = await one.check._check(is_asked=False)
        assert report.problems == (f"ledger 1: 1 entries are missing (the first is {lacking})",)


async def test_damaged_metadata_hides_no_other_ledger(
    machine: Machine, store: MetadataStore
) -> None:
    """Nobody knows whose that ledger is: no doubt begins, and nothing is said to be whole."""
    manager = LedgerManager(store)
    for ledger_id in (1, 2, 3):
        await manager.create(metadata(ledger_id, CLOSED, ("b1",), last=0))
    key = await manager._key(2)
    await store.put(key, b"rubbish")
    async with started(machine, store) as one:
        for ledger_id in (1, 3):
            await add(one.bookie, ledger_id, [0])
        report = await one.check.check()
        assert (report.ledgers, report.damaged_metadata, report.whole) == (2, 1, False)
        assert report.problems == ("the metadata of ledger 2 is damaged",)
        assert not one.engine.needs_integrity_check
        await manager.create(metadata(4, CLOSED, ("b1",), last=0))
        assert (await one.check.check()).missing_entries == 1
        await add(one.bookie, 4, [0])
        assert (await one.check.check()).missing_entries == 0
        assert one.engine.needs_integrity_check, "a doubt outlasts the damage"


async def test_a_slow_listing_has_every_ledger_once(
    machine: Machine, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made in pieces, with rests, and the store keeps no listing open meanwhile."""
    monkeypatch.setattr(integrity_check, "LEDGERS_AT_ONCE", 2)
    manager = LedgerManager(store)
    for ledger_id in range(6):
        await manager.create(metadata(ledger_id, CLOSED, ("b1",), last=0))
    async with started(machine, store) as one:
        for ledger_id in range(6):
            await add(one.bookie, ledger_id, [0])
        rests: list[float] = []

        async def wait(seconds: Callable[[], float]) -> bool:
            rests.append(seconds())
            return False

        monkeypatch.setattr(one.check._pace, "wait", wait)
        report = await one.check._check(is_asked=False)
        assert (report.ledgers, report.whole) == (6, True)
        assert rests == [2 / 200] * 3
        assert (await one.check.check()).ledgers == 6
        assert len(rests) == 3, "an operator waits"


class AwayFor(LedgerManager):
    """A metadata store that does not answer some listings."""

    refusals = 0

    def list_readable(
        self, on_damaged: Callable[[int], object], after: int = -1
    ) -> AsyncIterator[Versioned[LedgerMetadata]]:
        """The ledgers, or no answer."""
        if self.refusals:
            self.refusals -= 1
            raise MetadataUnavailableError("the metadata store does not answer")
        return super().list_readable(on_damaged, after)


async def test_a_check_that_failed_is_repeated_soon(machine: Machine, store: MetadataStore) -> None:
    """Not in an hour. And its age tells that it failed."""
    manager = AwayFor(store)
    manager.refusals = 3
    async with started(machine, store, manager) as one:
        age = machine.metrics.registry.get_sample_value
        before = age("bookie_integrity_check_age_seconds")
        one.check.settings = replace_settings(integrity_check_interval_seconds=0.001)
        await until(lambda: one.check.whole)
        assert manager.refusals == 0
        assert before is not None
        assert before >= 0


async def test_bookies_that_start_together_do_not_check_together(
    machine: Machine, store: MetadataStore
) -> None:
    """Each waits for a random part of the interval."""
    async with started(machine, store) as one:
        shares = {one.check._random_share() for _ in range(20)}
        assert len(shares) == 20
        assert all(0 <= share < 1 for share in shares)
        assert one.check.report is None, "not at once"
