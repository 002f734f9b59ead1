"""The model test is worth something: an engine that is broken in one place does not pass it.

Each breakage is one that a careless change could make. The model runs without shrinking until it
fails. It needs only the examples that the model test has by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from bookie.errors import BookieError
from bookie.ids import Status
from bookie.node.engine import memtable
from bookie.node.engine.admission import Admission, Waiter
from bookie.node.engine.boot import replay_batch
from bookie.node.engine.checkpoint import Checkpointer
from bookie.node.engine.duplicates import DuplicateAdds
from bookie.node.engine.format.index_rows import Mark
from bookie.node.engine.format.records import (
    DeletedRecord,
    FenceRecord,
    LacRecord,
    LimboRecord,
    Record,
)
from bookie.node.engine.index import entry_index
from bookie.node.engine.journal.group_commit import JournalWriter
from bookie.node.engine.ledger_state import LocalLedger
from bookie.node.engine.memtable import LocationTable
from bookie.wire.commands import Reply
from tests.property.node.engine.test_bookie_model import EXAMPLES, STEPS, BookieModel
from tests.unit.node.engine.faulty_disk import Call, FaultyFile

pytestmark = pytest.mark.model

Break = Callable[[pytest.MonkeyPatch], None]


def the_oldest_copy_wins(patch: pytest.MonkeyPatch) -> None:
    """Instead of the newest, where an id comes twice."""
    merge = memtable.merge_tables

    def reversed_merge(tables: list[LocationTable]) -> LocationTable:
        return merge([table.at(slice(None, None, -1)) for table in reversed(tables)])

    newest_of_each = replay_batch.newest_of_each

    def oldest_of_each(
        ledger_ids: npt.NDArray[np.int64], table: LocationTable
    ) -> tuple[npt.NDArray[np.int64], LocationTable]:
        backwards = slice(None, None, -1)
        return newest_of_each(ledger_ids[backwards], table.at(backwards))

    patch.setattr(memtable, "merge_tables", reversed_merge)
    patch.setattr(replay_batch, "newest_of_each", oldest_of_each)


def forget_at_replay(*kinds: type[Record]) -> Break:
    """Records of these kinds are read and not applied."""

    def breakage(patch: pytest.MonkeyPatch) -> None:
        apply = replay_batch.ReplayBatch._apply

        def forgetful(self: replay_batch.ReplayBatch, record: replay_batch.StateRecord) -> None:
            if not isinstance(record, kinds):
                apply(self, record)

        patch.setattr(replay_batch.ReplayBatch, "_apply", forgetful)

    return breakage


def nothing_is_synced(patch: pytest.MonkeyPatch) -> None:
    """The journal believes in a sync that the device never made."""

    def pretend(self: JournalWriter) -> None:
        file = self.current.file
        assert isinstance(file, FaultyFile)
        file._disk.called(Call("fdatasync", file.path))
        self.current.durable_upto = self.current.end

    patch.setattr(JournalWriter, "_sync", pretend)


def a_force_waits_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """Deferred adds count as durable."""

    def force(self: Admission) -> Waiter:
        return Waiter.of(Reply(Status.OK))

    patch.setattr(Admission, "force", force)


def deleted_pages_stay(patch: pytest.MonkeyPatch) -> None:
    """Space of deleted ledgers is never given back."""
    patch.setattr(entry_index, "delete_pages", lambda txn, slots, files: ([], False))


def the_mark_is_taken_late(patch: pytest.MonkeyPatch) -> None:
    """Behind adds that are not in the memtable."""
    mark_of = Checkpointer._mark_of

    async def late(self: Checkpointer, immutable: Any) -> Mark:
        await mark_of(self, immutable)
        await self._admission.force()
        another = self._swap()
        # Only its mark: the memtable that was swapped is put back.
        self._immutable, self._admission.memtable = immutable, another.memtable
        self._dirty = another.dirty
        await asyncio.wait([another.passed])
        assert another.barrier.mark is not None
        return another.barrier.mark

    patch.setattr(Checkpointer, "_mark_of", late)


def the_mark_is_one_block_ahead(patch: pytest.MonkeyPatch) -> None:
    """An error by one."""
    mark_of = Checkpointer._mark_of

    async def ahead(self: Checkpointer, immutable: Any) -> Mark:
        mark = await mark_of(self, immutable)
        return replace(mark, offset=mark.offset + 512, sequence=mark.sequence + 1)

    patch.setattr(Checkpointer, "_mark_of", ahead)


def duplicates_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Any stored bytes count as equal."""

    async def equal(self: DuplicateAdds, *_: object) -> tuple[bool, bool]:
        return True, False

    patch.setattr(DuplicateAdds, "_compare", equal)


def fences_stop_nobody(patch: pytest.MonkeyPatch) -> None:
    """Plain adds into fenced ledgers."""
    refusal = Admission.refusal

    def lenient(self: Admission, state: LocalLedger, key: bytes, *, recovery: bool) -> Reply | None:
        found = refusal(self, state, key, recovery=recovery)
        return None if found is not None and found.status is Status.FENCED else found

    patch.setattr(Admission, "refusal", lenient)


def bounds_are_not_widened(patch: pytest.MonkeyPatch) -> None:
    """The highest id of a ledger is forgotten, and with it that bytes must be compared."""
    patch.setattr(LocalLedger, "saw_entries", lambda self, first, last: None)


def the_last_lac_wins(patch: pytest.MonkeyPatch) -> None:
    """Instead of the highest."""

    def take(self: LocalLedger, packet: bytes) -> None:
        self.lac_packet = packet

    patch.setattr(LocalLedger, "take_lac", take)


BREAKAGES: list[Break] = [
    the_oldest_copy_wins,
    forget_at_replay(FenceRecord),
    forget_at_replay(DeletedRecord),
    forget_at_replay(LimboRecord),
    forget_at_replay(LacRecord),
    nothing_is_synced,
    a_force_waits_for_nothing,
    deleted_pages_stay,
    the_mark_is_taken_late,
    the_mark_is_one_block_ahead,
    duplicates_are_not_compared,
    fences_stop_nobody,
    bounds_are_not_widened,
    the_last_lac_wins,
]
NAMES = [
    f"{number}-{breakage.__qualname__.partition('.')[0]}"
    for number, breakage in enumerate(BREAKAGES)
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("breakage", BREAKAGES, ids=NAMES)
def test_a_broken_engine_does_not_pass(breakage: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model notices something, in the examples of an ordinary run."""
    breakage(monkeypatch)
    with pytest.raises((AssertionError, BookieError, BaseExceptionGroup, TimeoutError)):
        run_state_machine_as_test(
            BookieModel,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
