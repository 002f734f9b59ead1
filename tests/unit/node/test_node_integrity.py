"""Limbo from its beginning to its end: who enters it, who leaves it, and when the doubt is over."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.cluster.layout import read_layout
from bookie.errors import MetadataUnavailableError
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerMetadata, LedgerState, encode
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from bookie.node.engine.index.entry_index import INTEGRITY_IN_LIMBO, INTEGRITY_SOUND, META_INTEGRITY
from bookie.node.start import StartedBookie
from tests.unit.node.engine.machine import KEY, Machine, batch, until
from tests.unit.node.node_room import add, add_command, add_unnamed, ids_of, read
from tests.unit.node.started_bookie import metadata, stamped, started

NO_SUCH_ENTRY, UNKNOWN = Status.NO_SUCH_ENTRY, Status.UNKNOWN_LEDGER_STATE
OPEN, CLOSED = LedgerState.OPEN, LedgerState.CLOSED


@pytest.fixture(autouse=True, name="joined")
async def _joined(machine: Machine, store: MetadataStore) -> None:
    await stamped(machine, store)


async def test_what_has_lost_nothing_leaves_limbo_by_itself(
    machine: Machine, store: MetadataStore
) -> None:
    """A lost index was made again: closed ledgers are whole, and when all are the doubt is over."""
    manager = LedgerManager(store)
    await manager.create(metadata(1, CLOSED, ("b1",), last=299))
    await manager.create(metadata(2, CLOSED, ("b2", "b1", "b3"), last=99, write_quorum=2))
    await manager.create(metadata(3, CLOSED, ("b2",), ("b1",), ("b2",), last=250))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(300))
        await add(one.bookie, 2, [i for i in range(100) if i % 3 in (0, 1)])
        await add(one.bookie, 3, range(100, 200))
    shutil.rmtree(machine.index)
    async with started(machine, store) as after:
        await until(lambda: after.check.report)
        report = after.check.report
        assert report is not None
        assert not after.engine.needs_integrity_check
        assert (report.ledgers, report.released, report.whole) == (3, 3, True)
        assert report.problems == ()
        assert (await read(after.bookie, 1, 300, 300)).status is NO_SUCH_ENTRY
        assert machine.metrics.integrity_check_needed._value.get() == 0
        assert gauges(machine) == (0, 0)
    async with started(machine, store) as again:
        assert not again.engine.needs_integrity_check
        assert not (await again.engine.load(1)).limbo


async def test_what_is_missing_keeps_a_ledger_in_limbo(
    machine: Machine, store: MetadataStore
) -> None:
    """Present entries are served, the others are unknown, and the report counts them."""
    manager = LedgerManager(store)
    await manager.create(metadata(1, CLOSED, ("b1", "b2", "b3"), last=29, write_quorum=2))
    await manager.create(metadata(2, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await add(one.bookie, 1, [i for i in range(18) if i % 3 in (0, 2)])
        await add(one.bookie, 2, range(10))
    shutil.rmtree(machine.index)
    async with started(machine, store) as after:
        report = await after.check.check()
        assert (report.ledgers, report.incomplete, report.missing_entries) == (2, 1, 8)
        assert report.problems == ("ledger 1: 8 entries are missing (the first is 18)",)
        assert after.engine.needs_integrity_check
        assert ids_of(await read(after.bookie, 1, 2, 3)) == [2, 3]
        assert (await read(after.bookie, 1, 18, 18)).status is UNKNOWN
        assert (await read(after.bookie, 2, 18, 18)).status is NO_SUCH_ENTRY
        # As a repair would: the missing ones come back, by recovery adds.
        ids = [i for i in range(18, 30) if i % 3 in (0, 2)]
        assert (await add(after.bookie, 1, ids, recovery=True)).status is Status.OK
        assert (await after.check.check()).whole
    async with started(machine, store) as again:
        assert not again.engine.needs_integrity_check


async def test_what_cannot_be_read_keeps_a_ledger_in_limbo(
    machine: Machine, store: MetadataStore
) -> None:
    """The check finds a payload that does not match its digest; a reader would be too late."""
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        for entry_id in range(10):
            await add(one.bookie, 1, [entry_id])
        state = await one.engine.load(1)
        assert (await one.engine.set_limbo(state, in_limbo=True)).status is Status.OK
        path = machine.journals()[-1]
        data = bytearray(path.read_bytes())
        data[data.index(b"1/4/0:")] ^= 1
        path.write_bytes(data)
        report = await one.check.check()
        assert (report.incomplete, report.unreadable_entries) == (1, 1)
        assert report.problems == ("ledger 1: 0 entries are missing, 1 cannot be read",)
        assert state.limbo


async def test_an_open_ledger_waits_for_its_end(machine: Machine, store: MetadataStore) -> None:
    """Its next recovery decides where that is, without this bookie's word."""
    manager = LedgerManager(store)
    created = await manager.create(metadata(1, OPEN, ("b1", "b2"), write_quorum=2))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(5))
    shutil.rmtree(machine.index)
    async with started(machine, store) as after:
        report = await after.check.check()
        assert (report.waiting, report.problems) == (1, ("ledger 1 is not closed",))
        assert (await add_unnamed(after.bookie, 1, [5])).status is UNKNOWN
        await manager.write(created.value.closed(4, 100), created.version)
        after.check.start()
        await until(lambda: not after.engine.needs_integrity_check)
        assert (await read(after.bookie, 1, 5, 5)).status is NO_SUCH_ENTRY
        # The fence that its recovery left may be lost, and limbo keeps nobody out any more.
        assert (await add_unnamed(after.bookie, 1, [5])).status is Status.FENCED


async def test_an_unnamed_writer_is_let_in_where_nothing_is_lost(
    machine: Machine, store: MetadataStore
) -> None:
    """Limbo refuses it what is new; recovery goes on, and so do other ledgers."""
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",)))
    async with started(machine, store):
        pass
    shutil.rmtree(machine.index)
    async with started(machine, store) as after:
        for _ in range(2):  # before and after the ledger's state is in memory
            assert (await add_unnamed(after.bookie, 1, [0])).status is UNKNOWN
            assert (await add_unnamed(after.bookie, 2, [0])).status is Status.OK
        assert (await add(after.bookie, 1, [0], recovery=True)).status is Status.OK
        outcome = after.bookie.add_unnamed(add_command(batch(1, [1]), recovery=True))
        assert (await outcome).status is Status.OK


async def test_a_ledger_made_after_the_loss_is_not_suspected(
    machine: Machine, store: MetadataStore
) -> None:
    """Not even by another start while the doubt about the others goes on."""
    manager = LedgerManager(store)
    await manager.create(metadata(1, OPEN, ("b1",)))
    async with started(machine, store):
        pass
    shutil.rmtree(machine.index)
    async with started(machine, store):
        await manager.create(metadata(2, OPEN, ("b1",)))
    for first in (0, 3):
        async with started(machine, store) as after:
            assert after.engine.needs_integrity_check
            assert (await add(after.bookie, 2, range(first, first + 3))).status is Status.OK
            assert (await read(after.bookie, 2, first + 3, first + 3)).status is NO_SUCH_ENTRY
            assert (await add_unnamed(after.bookie, 1, [0])).status is UNKNOWN


async def test_an_older_fragment_makes_doubt_and_no_fence(
    machine: Machine, store: MetadataStore
) -> None:
    """The writer went on elsewhere and may come back; that it may was not this bookie's to say."""
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",), ("b2",)))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(5))
    shutil.rmtree(machine.index)
    for entry_id in (100, 101):
        async with started(machine, store) as after:
            assert (await read(after.bookie, 1, 50, 50)).status is UNKNOWN
            assert (await add(after.bookie, 1, [entry_id])).status is Status.OK
            killed = machine.killed(str(entry_id))
        # The cookies name the directories, so the bookie comes back to the same place.
        shutil.rmtree(machine.root)
        shutil.move(killed.root, machine.root)


async def test_a_closed_ledger_that_names_this_bookie_after_a_loss_is_denied(
    machine: Machine, store: MetadataStore
) -> None:
    """A recovery that wrote here before the loss cannot close it: the incarnation changed."""
    manager = LedgerManager(store)
    await manager.create(metadata(1, CLOSED, ("b1",), last=0))
    async with started(machine, store):
        pass
    shutil.rmtree(machine.index)
    async with started(machine, store) as after:
        await manager.create(metadata(2, CLOSED, ("b1", "b2"), last=5, write_quorum=2))
        assert (await after.check.check()).incomplete == 2
        assert (await read(after.bookie, 1, 0, 0)).status is UNKNOWN
        assert (await read(after.bookie, 2, 0, 0)).status is Status.NO_SUCH_LEDGER


async def test_ledgers_that_are_gone_or_elsewhere_do_not_prolong_the_doubt(
    machine: Machine, store: MetadataStore
) -> None:
    """Nobody asks this bookie about them."""
    manager = LedgerManager(store)
    first = await manager.create(metadata(1, OPEN, ("b1",)))
    second = await manager.create(metadata(2, CLOSED, ("b1",), last=3))
    async with started(machine, store) as one:
        await add(one.bookie, 1, [0])
    shutil.rmtree(machine.index)
    async with started(machine, store) as after:
        await manager.delete(1, first.version)
        moved = replace(second.value, fragments=metadata(2, OPEN, ("b2",)).fragments)
        await manager.write(moved, second.version)
        assert (await after.check.check()).whole
        assert not (await after.engine.load(2)).limbo
        assert (await after.engine.load(1)).limbo


async def test_a_ledger_with_unreadable_metadata_is_denied_nothing(
    machine: Machine, store: MetadataStore
) -> None:
    """It may name this bookie. It keeps neither the start nor a check from its end."""
    manager = LedgerManager(store)
    await manager.create(metadata(1, CLOSED, ("b1",), last=2))
    damaged = await manager.create(metadata(2, CLOSED, ("b1",), last=3))
    key = (await read_layout(store)).key(2)
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(3))
        await add(one.bookie, 2, range(3))
    shutil.rmtree(machine.index)
    await store.put(key, b"damaged")
    for _ in range(2):
        async with started(machine, store) as after:
            assert (await read(after.bookie, 2, 9, 9)).status is UNKNOWN
            assert ids_of(await read(after.bookie, 2, 0, 2)) == [0, 1, 2]
            report = await after.check.check()
            assert (report.damaged_metadata, report.whole) == (1, False)
            assert not (await after.engine.load(1)).limbo
            assert (await after.engine.load(2)).limbo
            assert after.engine.needs_integrity_check
    await store.put(key, encode(damaged.value))
    async with started(machine, store) as after:
        await add(after.bookie, 2, [3])
        assert (await after.check.check()).whole
        assert not (await after.engine.load(2)).limbo


async def test_a_lone_ledger_with_unreadable_metadata_keeps_the_doubt(
    machine: Machine, store: MetadataStore
) -> None:
    """No readable ledger names the bookie."""
    await LedgerManager(store).create(metadata(2, CLOSED, ("b1",), last=3))
    async with started(machine, store):
        pass
    shutil.rmtree(machine.index)
    await store.put((await read_layout(store)).key(2), b"damaged")
    async with started(machine, store) as after:
        assert after.engine.needs_integrity_check
        assert (await read(after.bookie, 2, 0, 0)).status is UNKNOWN


class Unreliable(LedgerManager):
    """A metadata store that can be cut off."""

    away = False

    def list_readable(
        self, on_damaged: Callable[[int], object], after: int = -1
    ) -> AsyncIterator[Versioned[LedgerMetadata]]:
        """The ledgers, unless it is cut off."""
        if self.away:
            raise MetadataUnavailableError("the metadata store does not answer")
        return super().list_readable(on_damaged, after)


async def test_without_the_metadata_store_the_doubt_goes_on(
    machine: Machine, store: MetadataStore
) -> None:
    """And the bookie serves."""
    manager = Unreliable(store)
    await manager.create(metadata(1, CLOSED, ("b1",), last=4))
    async with started(machine, store, manager) as one:
        await add(one.bookie, 1, range(5))
        state = await one.engine.load(1)
        await one.engine.set_limbo(state, in_limbo=True)
        manager.away = True
        with pytest.raises(MetadataUnavailableError):
            await one.check.check()
        assert "could not be finished" in one.check.unfinished
        one.check.start()
        await until(lambda: not one.check._asked)
        assert ids_of(await read(one.bookie, 1, 0, 9)) == list(range(5))
        manager.away = False
        one.check.start()
        await until(lambda: not state.limbo)
        await until(lambda: one.check.whole)
        manager.away = True
        with pytest.raises(MetadataUnavailableError):
            await one.check.check()
        assert one.check.status()["whole"] is False, "what was so then may be otherwise now"


async def test_what_is_missing_on_a_sound_bookie_is_doubt(
    machine: Machine, store: MetadataStore
) -> None:
    """It is not whole, and the next start knows; it is over when the entries have come back.

    It never had them. So it denies them, and nothing enters limbo.
    """
    manager = LedgerManager(store)
    await manager.create(metadata(1, CLOSED, ("b1",), last=9))
    await manager.create(metadata(2, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(7))
        await add(one.bookie, 2, range(10))
        assert one.engine.integrity.value == INTEGRITY_SOUND
        assert not one.check.whole, "nobody has looked"
        report = await one.check.check()
        assert (report.missing_entries, report.whole, one.check.whole) == (3, False, False)
        assert one.check.status()["whole"] is False
        assert one.engine.integrity.value == INTEGRITY_IN_LIMBO
        assert gauges(machine) == (3, 0)
        assert (await read(one.bookie, 1, 7, 7)).status is NO_SUCH_ENTRY
    async with started(machine, store) as after:
        assert after.engine.needs_integrity_check
        await until(lambda: after.check.report is not None)
        assert after.check.status()["whole"] is False
        assert gauges(machine) == (3, 0)
        assert (await add(after.bookie, 1, range(7, 10), recovery=True)).status is Status.OK
        assert (await after.check.check()).whole
        assert after.check.whole
        assert gauges(machine) == (0, 0)
    async with started(machine, store) as again:
        assert not again.engine.needs_integrity_check


async def test_a_closed_fragment_of_an_open_ledger_is_checked(
    machine: Machine, store: MetadataStore
) -> None:
    """The end of the ledger is open, the part before its last fragment is known."""
    await LedgerManager(store).create(metadata(1, OPEN, ("b1",), ("b2",)))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(98))
        for _ in range(2):
            report = await one.check.check()
            assert (report.incomplete, report.missing_entries, report.whole) == (1, 2, False)
            assert one.engine.integrity.value == INTEGRITY_IN_LIMBO
            assert gauges(machine) == (2, 0)
        assert (await add(one.bookie, 1, [98, 99], recovery=True)).status is Status.OK
        report = await one.check.check()
        assert (report.waiting, report.missing_entries, report.whole) == (0, 0, True)


ALL = ("b1", "b2", "b3")
MISSED = (*range(40), *range(60, 105))
"""Of a ledger whose second fragment begins at 100: b1 was away for twenty entries."""


@asynccontextmanager
async def away_for_a_while(machine: Machine, store: MetadataStore) -> AsyncIterator[StartedBookie]:
    """b1 in doubt about ledger 1, after a loss, lacks some of ledger 2, which was made later."""
    manager = LedgerManager(store)
    await manager.create(metadata(1, OPEN, ("b1",)))
    async with started(machine, store):
        pass
    shutil.rmtree(machine.index)
    async with started(machine, store) as one:
        await until(lambda: one.check.report)
        await manager.create(metadata(2, OPEN, ALL, ALL, write_quorum=3))
        await add(one.bookie, 2, MISSED)
        yield one


async def test_what_a_bookie_missed_in_an_open_ledger_is_denied(
    machine: Machine, store: MetadataStore
) -> None:
    """It never acknowledged that. Its denials must count, or a second doubt stops a recovery."""
    async with away_for_a_while(machine, store):
        pass
    for _ in range(2):
        async with started(machine, store) as after:
            report = await after.check.check()
            assert (report.incomplete, report.missing_entries, report.waiting) == (1, 20, 1)
            assert after.engine.needs_integrity_check
            assert gauges(machine) == (20, 1)
            fenced = await after.bookie.fence(2, KEY)
            assert (fenced.status, fenced.fenced) == (Status.OK, True)
            assert (await read(after.bookie, 2, 105, 105)).status is NO_SUCH_ENTRY
            assert (await read(after.bookie, 2, 40, 40)).status is NO_SUCH_ENTRY
            assert (await read(after.bookie, 1, 0, 0)).status is UNKNOWN


async def test_a_ledger_that_a_bookie_never_heard_of_is_denied(
    machine: Machine, store: MetadataStore
) -> None:
    """It was made after the loss, while the bookie was away."""
    async with away_for_a_while(machine, store):
        await LedgerManager(store).create(metadata(3, OPEN, ALL, ALL, write_quorum=3))
    async with started(machine, store) as after:
        assert (await after.check.check()).missing_entries == 120
        assert (await read(after.bookie, 3, 100, 100)).status is Status.NO_SUCH_LEDGER


async def test_a_known_loss_denies_nothing_that_was_missed_before(
    machine: Machine, store: MetadataStore
) -> None:
    """The next loss may have taken entries of each ledger, whatever was missing before it."""
    async with away_for_a_while(machine, store) as one:
        assert (await one.check.check()).missing_entries == 20
    shutil.rmtree(machine.index)
    async with started(machine, store) as after:
        await after.check.check()
        assert gauges(machine) == (20, 2)
        assert (await after.bookie.fence(2, KEY)).status is UNKNOWN
        assert (await read(after.bookie, 2, 105, 105)).status is UNKNOWN


async def test_what_damage_may_have_taken_is_unknown(tmp_path: Path, store: MetadataStore) -> None:
    """Also in an open ledger. The scrubber's own passes are off: they would find no damage."""
    machine = Machine(tmp_path / "m", changes={"scrub_bytes_per_second": 0})
    async with away_for_a_while(machine, store) as one:
        await one.engine.scrubber._report((3, 0), "a block is damaged")
        await one.check.check()
        assert gauges(machine) == (20, 2)
        assert (await read(one.bookie, 2, 105, 105)).status is UNKNOWN


async def test_what_was_deleted_here_by_mistake_is_unknown(
    machine: Machine, store: MetadataStore
) -> None:
    """The metadata store names the ledger again: its entries were acknowledged, and are gone."""
    async with away_for_a_while(machine, store) as one:
        await one.engine.delete(await one.engine.load(2), 1)
    async with started(machine, store) as after:
        assert (await after.check.check()).missing_entries == 100
        assert (await read(after.bookie, 2, 104, 104)).status is UNKNOWN


async def test_limbo_is_counted_as_it_comes_and_goes(
    machine: Machine, store: MetadataStore
) -> None:
    """Not what a check found: what is missing or waits is another number."""
    async with started(machine, store) as one:
        for ledger_id in (1, 2, 3):
            await add(one.bookie, ledger_id, [0])
            state = await one.engine.load(ledger_id)
            await one.engine.set_limbo(state, in_limbo=True)
            await one.engine.set_limbo(state, in_limbo=True)
        # The count is complete when the index has been listed, beside this.
        await until(lambda: gauges(machine) == (0, 3))
        await one.engine.set_limbo(await one.engine.load(2), in_limbo=False)
        await one.engine.delete(await one.engine.load(3), 1)
        assert gauges(machine) == (0, 1)
    async with started(machine, store) as after:
        await until(lambda: gauges(machine) == (0, 1))
        await after.engine.set_limbo(await after.engine.load(1), in_limbo=False)
        assert gauges(machine) == (0, 0)


def gauges(machine: Machine) -> tuple[float | None, float | None]:
    """Missing entries and ledgers in limbo, as Prometheus hears of them."""
    value = machine.metrics.registry.get_sample_value
    return value("bookie_missing_entries"), value("bookie_limbo_ledgers")


async def test_damage_found_while_a_doubt_ends_begins_it_again(
    tmp_path: Path, store: MetadataStore
) -> None:
    """The scrubber saw the old doubt, and so noted none of its own.

    Its own passes are off: they would find that file 3 is gone, and forget the finding.
    """
    machine = Machine(tmp_path / "m", changes={"scrub_bytes_per_second": 0})
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(10))
        integrity = one.engine.integrity
        ends = integrity.set

        async def found_meanwhile(value: bytes) -> None:
            if value == INTEGRITY_SOUND:
                one.engine.scrubber.findings[3, 0] = "a block is damaged"
            await ends(value)

        with pytest.MonkeyPatch.context() as patch:
            # Before the doubt begins: the bookie's own check may be the one that ends it.
            patch.setattr(integrity, "set", found_meanwhile)
            await integrity.set(INTEGRITY_IN_LIMBO)
            report = await one.check.check()
        assert not report.whole
        assert integrity.value == INTEGRITY_IN_LIMBO


async def test_a_finding_keeps_the_doubt_at_every_moment(
    tmp_path: Path, store: MetadataStore
) -> None:
    """The index stays doubtful while a check finds all ledgers whole.

    The scrubber's own passes are off: they would forget a finding in a file that is gone.
    """
    machine = Machine(tmp_path / "m", changes={"scrub_bytes_per_second": 0})
    await LedgerManager(store).create(metadata(1, CLOSED, ("b1",), last=9))
    async with started(machine, store) as one:
        await add(one.bookie, 1, range(10))
        assert (await one.check.check()).whole
        await one.engine.scrubber._report((3, 0), "a block is damaged")
    seen: list[bytes] = []
    async with started(machine, store) as after:
        assert after.engine.scrubber.findings == {(3, 0): "a block is damaged"}
        assert after.engine.needs_integrity_check
        write = after.engine._booted.index.put_meta

        def noted(values: dict[bytes, bytes]) -> None:
            seen.extend(values[name] for name in values.keys() & {META_INTEGRITY})
            write(values)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(after.engine._booted.index, "put_meta", noted)
            report = await after.check.check()
        assert (report.incomplete, report.waiting, report.whole) == (0, 0, False)
    assert INTEGRITY_SOUND not in seen, "a crash after that write would have ended the doubt"
    async with started(machine, store) as again:
        assert again.engine.needs_integrity_check
