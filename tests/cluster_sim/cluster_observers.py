"""Sees what happens inside the product while a seed runs: events of bookies, and rare things.

It wraps a few methods of the real parts and changes nothing that they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from bookie.cluster import keys
from bookie.env import Outcome
from bookie.errors import FormatError
from bookie.ids import Status
from bookie.ledger.metadata import LedgerMetadata, LedgerState, decode
from bookie.ledger.write.writer import LedgerWriter
from bookie.ledger.write.writer_events import AddAnswered, WriterEffect, WriterEvent
from bookie.metadata.memory.tree import MemoryTree
from bookie.metadata.model import Operation, Put
from bookie.node.bookie import Bookie
from bookie.node.engine.admission import Admission
from bookie.node.engine.duplicates import DuplicateAdds
from bookie.node.engine.ledger_state import LocalLedger
from bookie.testing.simulation.disk import SimulatedFile
from bookie.testing.simulation.simulated_network import PROCESS
from bookie.wire.commands import AddCommand, ReadCommand, ReadReply, Reply
from tests.cluster_sim.lives_of_ids import LivesOfIds
from tests.ledger_history.ledger_events import BookieEvent, BookieEventKind, HistoryRecorder

SOMETIMES = {
    "change by writer": 50,
    "change during recovery": 5,
    "late answer of a replaced bookie": 10,
    "fence between accept and sync": 10,
    "lost CAS reply: success": 10,
    "lost CAS reply: conflict": 10,
    "session expired": 10,
    "wiped bookie returned": 10,
    "older bookie returned": 3,
    "competing recoveries": 10,
    "bookie killed": 10,
    "power cut": 10,
    "disk failed": 5,
    "connection reset": 20,
    "recovery closed a ledger": 100,
    "writer was fenced": 20,
    "power cut after a fence": 10,
    "deletion met by a writer": 10,
    "deletion met by a reader": 10,
    "force": 50,
    "add sent twice": 10,
    "late request of an old connection": 4,
    "id used again": 20,
    "another life refused": 20,
    "wrong password refused": 20,
    "wrong key refused": 20,
}
"""What `SOMETIMES_SEEDS` seeds together must reach, and how often at least."""

SOMETIMES_SEEDS = 200

_DENIALS = {Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER}


class ClusterObservers:
    """What was seen in one seed. Bookies' events go to `recorder`."""

    def __init__(
        self,
        counts: Counter[str],
        recorder: HistoryRecorder,
        on_fence: Callable[[str], None],
        lives: LivesOfIds,
    ) -> None:
        self.counts = counts
        self.recorder = recorder
        self.lives = lives
        self._on_fence = on_fence
        self._unsynced: dict[tuple[int, int], list[Outcome[Reply]]] = {}
        """By the identity of an admission, which is kept, and ledger."""
        self._kept: dict[int, Any] = {}
        self._metadata: dict[str, LedgerMetadata] = {}

    def answered(self, writer: LedgerWriter, event: WriterEvent) -> None:
        """A writer's machine is about to take `event`."""
        if isinstance(event, AddAnswered) and event.epoch != writer.epochs[event.slot]:
            self.counts["late answer of a replaced bookie"] += 1
        if isinstance(event, AddAnswered) and event.status is Status.FENCED:
            self.counts["writer was fenced"] += 1

    def saw(
        self,
        kind: BookieEventKind,
        ledger_id: int | None = None,
        *entry_ids: int,
        began: int = -1,
    ) -> None:
        """Something happened in the bookie that runs the current task, if its process lives."""
        process = PROCESS.get()
        if process.is_alive:
            for entry_id in entry_ids or (None,):
                self.recorder.bookie(
                    BookieEvent(
                        bookie_id=process.host,
                        kind=kind,
                        epoch=process.life,
                        ledger_id=ledger_id,
                        entry_id=entry_id,
                        began=began,
                    )
                )

    def added(
        self,
        admission: Any,
        command: AddCommand,
        outcome: Outcome[Reply],
    ) -> None:
        """A bookie accepted entries that are not durable yet."""
        assert command.batch is not None
        ledger_id = self._number(command)
        self.saw(BookieEventKind.ACCEPT, ledger_id, *command.batch.entry_ids().tolist())
        outcome.then(partial(self.add_answered, command))
        if not outcome.done():
            self._kept[id(admission)] = admission
            waiting = self._unsynced.setdefault((id(admission), ledger_id), [])
            waiting[:] = [item for item in waiting if not item.done()]
            waiting.append(outcome)

    def add_answered(self, command: AddCommand, reply: Reply) -> None:
        """A bookie answers an add."""
        assert command.batch is not None
        kind = BookieEventKind.ADD_ACK
        if command.recovery:
            kind = BookieEventKind.RECOVERY_ADD_ACK
        elif command.deferred_sync:
            kind = BookieEventKind.DEFERRED_ADD_ACK
        if reply.status is Status.OK:
            self.saw(kind, self._number(command), *command.batch.entry_ids().tolist())

    def _number(self, command: AddCommand | ReadCommand) -> int:
        return self.lives.of_key(command.ledger_id, command.master_key)

    def fenced(self, admission: Any, ledger_id: int) -> None:
        """A bookie is about to fence a ledger."""
        if any(not item.done() for item in self._unsynced.get((id(admission), ledger_id), ())):
            self.counts["fence between accept and sync"] += 1

    def fence_answered(self, ledger_id: int, reply: Reply) -> None:
        """A bookie answers a fence."""
        if reply.status is Status.OK:
            self.saw(BookieEventKind.FENCE_ACK, ledger_id)
            process = PROCESS.get()
            if process.is_alive:
                self._on_fence(process.host)

    def was_read(self, command: ReadCommand, reply: ReadReply, began: int) -> None:
        """A bookie answers a read; `began` is the number of the moment at which it was asked."""
        if not _DENIALS.isdisjoint({reply.status, reply.stopped_by}):
            denied = reply.next_entry_id if reply.status is Status.OK else command.first_entry_id
            kind = BookieEventKind.NO_SUCH_ENTRY
            if command.fence:
                kind = BookieEventKind.NO_SUCH_ENTRY_FENCING
            self.saw(kind, self._number(command), denied, began=began)

    def committed(self, operations: list[Operation]) -> None:
        """The metadata store did this."""
        for operation in operations:
            if isinstance(operation, Put) and operation.key.startswith(keys.LEDGERS):
                try:
                    found = decode(0, operation.value)
                except FormatError:
                    continue
                before = self._metadata.get(operation.key)
                self._metadata[operation.key] = found
                if before is not None and before.c_token == found.c_token:
                    self._compare(before, found)
                    continue
                self.counts["id used again"] += before is not None
                digits = filter(str.isdigit, operation.key.removeprefix(keys.LEDGERS))
                self.lives.made(int("".join(digits)), found)

    def _compare(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        same = before.fragments == after.fragments
        if before.state is LedgerState.IN_RECOVERY:
            if after.state is LedgerState.CLOSED:
                self.counts["recovery closed a ledger"] += 1
                if not same and len(after.fragments) >= len(before.fragments):
                    self.counts["change during recovery"] += 1
        elif before.state is LedgerState.OPEN and after.state is LedgerState.OPEN and not same:
            self.counts["change by writer"] += 1


@contextmanager
def observed(observers: ClusterObservers) -> Iterator[None]:
    """Count while the block lasts."""
    step, transact, sync = LedgerWriter.step, MemoryTree.transact, SimulatedFile.fdatasync

    def counted_step(self: LedgerWriter, event: WriterEvent) -> list[WriterEffect]:
        observers.answered(self, event)
        return step(self, event)

    def seen_sync(self: SimulatedFile, *, in_place: bool = False) -> None:
        is_journal = self.inode.path.endswith(".journal")  # cookies hold no entries
        if is_journal:
            observers.saw(BookieEventKind.SYNC_BEGIN)
        try:
            sync(self, in_place=in_place)
        except OSError:
            if is_journal:
                observers.saw(BookieEventKind.SYNC_ERROR)
            raise
        if is_journal:
            observers.saw(BookieEventKind.SYNC_END)

    def counted_transact(self: MemoryTree, operations: Any, session: bytes) -> Any:
        stats = transact(self, operations, session)
        observers.committed(list(operations))
        return stats

    with ExitStack() as stack:
        stack.enter_context(patch.object(LedgerWriter, "step", counted_step))
        stack.enter_context(patch.object(MemoryTree, "transact", counted_transact))
        stack.enter_context(patch.object(SimulatedFile, "fdatasync", seen_sync))
        stack.enter_context(_observed_adds(observers))
        stack.enter_context(_observed_requests(observers))
        yield


@contextmanager
def _observed_adds(observers: ClusterObservers) -> Iterator[None]:
    """Adds that bookies accept, and those that they were sent before."""
    add, add_again, compare = Admission.add, DuplicateAdds.add, DuplicateAdds._compare

    def counted_add(
        self: Any, state: LocalLedger, command: AddCommand, max_lac: int
    ) -> Outcome[Reply]:
        outcome = add(self, state, command, max_lac)
        observers.added(self, command, outcome)
        return outcome

    async def seen_add_again(
        self: DuplicateAdds, state: LocalLedger, command: AddCommand, max_lac: int
    ) -> Reply:
        reply = await add_again(self, state, command, max_lac)
        observers.add_answered(command, reply)
        return reply

    async def counted_compare(self: DuplicateAdds, *args: Any) -> tuple[bool, bool]:
        same, missing = await compare(self, *args)
        observers.counts["add sent twice"] += same and not missing
        return same, missing

    with ExitStack() as stack:
        stack.enter_context(patch.object(Admission, "add", counted_add))
        stack.enter_context(patch.object(DuplicateAdds, "add", seen_add_again))
        stack.enter_context(patch.object(DuplicateAdds, "_compare", counted_compare))
        yield


@contextmanager
def _observed_requests(observers: ClusterObservers) -> Iterator[None]:
    """Fences, deletions, forces and reads of bookies."""
    fence, delete, force = Admission.fence, Admission.delete, Bookie.force
    read, try_read = Bookie.read, Bookie.try_read

    def counted_fence(self: Any, state: LocalLedger, key: bytes) -> Outcome[Reply]:
        number = observers.lives.of_key(state.ledger_id, key)
        observers.fenced(self, number)
        outcome = fence(self, state, key)
        outcome.then(partial(observers.fence_answered, number))
        return outcome

    def seen_delete(self: Any, state: LocalLedger, deleted_at_ms: int) -> Outcome[Reply]:
        number = observers.lives.of_key(state.ledger_id, state.key_digest)
        observers.saw(BookieEventKind.LEDGER_DELETED, number)
        return delete(self, state, deleted_at_ms)

    async def seen_force(self: Bookie, ledger_id: int) -> Reply:
        began = observers.recorder.stamp()[0]
        reply = await force(self, ledger_id)
        if reply.status is Status.OK:
            observers.saw(BookieEventKind.FORCE_ACK, ledger_id, began=began)
        return reply

    async def seen_read(self: Bookie, command: ReadCommand) -> ReadReply:
        began = observers.recorder.stamp()[0]
        reply = await read(self, command)
        observers.was_read(command, reply, began)
        return reply

    def seen_try_read(self: Bookie, command: ReadCommand) -> ReadReply | None:
        reply = try_read(self, command)
        if reply is not None:
            observers.was_read(command, reply, observers.recorder.stamp()[0])
        return reply

    with ExitStack() as stack:
        stack.enter_context(patch.object(Admission, "fence", counted_fence))
        stack.enter_context(patch.object(Admission, "delete", seen_delete))
        stack.enter_context(patch.object(Bookie, "force", seen_force))
        stack.enter_context(patch.object(Bookie, "read", seen_read))
        stack.enter_context(patch.object(Bookie, "try_read", seen_try_read))
        yield
