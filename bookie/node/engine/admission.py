"""Accepts or refuses each add, fence or LAC in one synchronous section, which reads only memory.

For an add, the section checks the ledger's key, deletion and fence, and the bookie's read-only
mode. An accepted batch goes into the memtable, where readers see it, and into the journal's queue.
The section contains no await. Fences use the same queue as adds. So in the journal, the record of a
fence follows the records of all adds that were accepted before the fence.

Source: rules R1 to R4 of bookie-local linearization. An add that was accepted before a fence may be
acknowledged after the fence, because every later fencing read sees that add. An add that repeats
stored entries with equal bytes is acknowledged once the stored entries are durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bookie.env import Failpoints, Outcome
from bookie.errors import BookieError, DiskFullError
from bookie.ids import Status
from bookie.node.engine.format.records import (
    encode_deleted,
    encode_entries_head,
    encode_fence,
    encode_lac,
    encode_ledger,
    encode_limbo,
)
from bookie.node.engine.journal.group_commit import JournalRequest, RequestKind
from bookie.node.engine.ledger_state import LimboCount, LocalLedger
from bookie.node.engine.memtable import LedgerRuns, Memtable, Run
from bookie.wire.commands import AddCommand, Reply

Waiter = Outcome[Reply]
"""Use this alias only in annotations: `Waiter()` is several times slower than `Outcome()`."""

OK = Reply(Status.OK)
FENCED = Reply(Status.FENCED, "the ledger is fenced: another client took it over")
DELETED = Reply(Status.FENCED, "the ledger was deleted")
UNAUTHORIZED = Reply(
    Status.UNAUTHORIZED,
    "the key is not that of the ledger that this bookie knows by this id: the id was used twice",
)
READ_ONLY = Reply(Status.READ_ONLY, "the bookie takes no new entries")


@dataclass(slots=True)
class Admission:
    """Accepts requests in synchronous sections; holds the engine parts that these sections use."""

    submit: Callable[[JournalRequest], None]
    submit_with_next: Callable[[JournalRequest], None]
    """Queues a request, in order; the journal thread gets it along with the next request."""
    failpoints: Failpoints
    memtable: Memtable
    mark_dirty: Callable[[LocalLedger], None] = field(init=False)
    """The function that records that a ledger changed; the checkpointer sets this attribute."""
    journal_file: int = -1
    """The number of the newest journal file that the event loop knows; a newer file may exist."""
    read_only_reasons: set[str] = field(default_factory=set)
    """Reasons to refuse new entries; empty if the bookie accepts new entries."""
    limbo: LimboCount = field(default_factory=LimboCount)

    def refusal(self, state: LocalLedger, key: bytes, *, recovery: bool) -> Reply | None:
        """Return the reply that refuses an add, None if allowed; entry bytes are not checked."""
        # Check the key first: a request with another key means another ledger. The fence and the
        # deletion in `state` do not apply to that ledger.
        if not state.accepts_key(key):
            return UNAUTHORIZED
        if state.deleted_at_ms is not None:
            return DELETED
        if not recovery:
            if state.fenced:
                return FENCED
            if self.read_only_reasons:
                return READ_ONLY
        return None

    def add(self, state: LocalLedger, command: AddCommand, max_lac: int) -> Waiter:
        """Accept the batch: readers see it at once; the waiter gets OK once the batch is durable.

        With `deferred_sync`, the waiter of a plain add (not a recovery add) gets OK once the batch
        is written, before it is synced. Before this call, the caller must check `refusal`, and must
        compare the batch with stored bytes. Between these checks and this call there must be no
        await.
        """
        batch, lac_packet, recovery = command.batch, command.lac_packet, command.recovery
        assert batch is not None
        if batch.first_entry_id <= state.last_entry_id:
            state.comparisons += 1
        run = Run(batch)
        request = self._request(state, command.master_key)
        head = encode_entries_head(batch, command.payload_crc32c, recovery)
        payload_delta = request.size_bytes + len(head)
        self._put(request, head, batch.payload)
        if lac_packet:
            self._put(request, encode_lac(state.ledger_id, lac_packet))
            state.take_lac(lac_packet)
        request.synced = recovery or not command.deferred_sync
        request.essential = recovery
        runs = self.memtable.append(state.ledger_id, run)
        state.saw_entries(run.first, run.last)
        state.max_lac = max(state.max_lac, max_lac)
        self.mark_dirty(state)
        waiter: Waiter = Outcome()
        request.complete = _AddDone(runs, run, payload_delta, waiter, self, state)
        self.submit(request)
        return waiter

    def publish_lac(self, state: LocalLedger, packet: bytes, key: bytes) -> None:
        """Store an explicit LAC in memory now, and in the next journal block, without a sync."""
        request = self._request(state, key)
        self._put(request, encode_lac(state.ledger_id, packet))
        request.synced = False
        request.complete = partial(_introduced, state)
        state.take_lac(packet)
        self.mark_dirty(state)
        self.submit_with_next(request)

    def fence(self, state: LocalLedger, key: bytes) -> Waiter:
        """Fence a ledger, even an unknown one; the waiter gets OK once the fence is durable."""
        if state.fenced and state.fence_durable:
            return Waiter.of(OK)
        waiter: Waiter = Outcome()

        def fenced_before(done: JournalRequest) -> None:
            error = done.error
            if error is None and not state.fence_durable:
                error = DiskFullError("the journal had no room for the fence")
            _resolve(waiter, error)

        def fence_done(done: JournalRequest) -> None:
            state.fence_queued = False
            if done.error is None:
                _introduced(state, done)
                state.fence_durable = True
                self.failpoints.hit("fence.before_ack")
            _resolve(waiter, done.error)

        if state.fence_queued:
            # The record of an earlier fence is already in the queue. The outcome of that record is
            # known when this FORCE request is done.
            self.submit(JournalRequest(RequestKind.FORCE, fenced_before))
            return waiter
        request = self._request(state, key, essential=True)
        self._put(request, encode_fence(state.ledger_id, state.key_digest or b""))
        state.fenced = state.fence_queued = True
        self.mark_dirty(state)
        request.complete = fence_done
        self.submit(request)
        return waiter

    def delete(self, state: LocalLedger, deleted_at_ms: int) -> Waiter:
        """Delete the ledger's entries; the waiter gets OK once the deletion is durable."""
        request = self._request(state, None, essential=True)
        self._put(request, encode_deleted(state.ledger_id, deleted_at_ms))
        if not state.deleted:
            self.limbo.changed(state.ledger_id, before=state.limbo, now=False)
        state.deleted_at_ms = deleted_at_ms
        self.mark_dirty(state)
        return self._submit_and_wait(request, state)

    def set_limbo(self, state: LocalLedger, *, in_limbo: bool, fence: bool = True) -> Waiter:
        """Put a ledger in limbo, or take it out of limbo; the waiter gets OK once this is durable.

        With `fence`, a ledger that enters limbo is also fenced.
        """
        request = self._request(state, None, essential=True)
        self._put(request, encode_limbo(state.ledger_id, in_limbo, fence))
        if not state.deleted:
            self.limbo.changed(state.ledger_id, before=state.limbo, now=in_limbo)
        state.limbo = in_limbo
        if in_limbo and fence:
            state.fenced = True
        self.mark_dirty(state)
        return self._submit_and_wait(request, state)

    def force(self) -> Waiter:
        """Return a waiter that gets OK once all requests accepted so far are durable."""
        return self._submit_and_wait(JournalRequest(RequestKind.FORCE, _ignore))

    def _submit_and_wait(self, request: JournalRequest, state: LocalLedger | None = None) -> Waiter:
        waiter: Waiter = Outcome()

        def complete(done: JournalRequest) -> None:
            if state is not None:
                _introduced(state, done)
            _resolve(waiter, done.error)

        request.complete = complete
        self.submit(request)
        return waiter

    def _request(
        self, state: LocalLedger, key: bytes | None, *, essential: bool = False
    ) -> JournalRequest:
        """Make a journal request, which adds the ledger's key if the current file lacks the key.

        Each journal file records the keys of all ledgers in it, because a rebuild of the index may
        find only some of the files.
        """
        request = JournalRequest(RequestKind.APPEND, _ignore, essential=essential)
        state.exists = True
        if key is not None and state.key_digest is None:
            state.adopt_key(key)
            state.introduced_in = 0
        if state.key_digest is not None and state.introduced_in != self.journal_file:
            request.introduces = True
            self._put(request, encode_ledger(state.ledger_id, state.key_digest))
        return request

    def introduce(self, state: LocalLedger) -> None:
        """Queue the ledger's key for the current journal file; the next block contains the key."""
        state.introduced_in = 0
        request = self._request(state, None)
        if request.introduces:
            request.synced = False
            request.complete = partial(_introduced, state)
            self.submit_with_next(request)

    def _put(self, request: JournalRequest, head: bytes, *rest: bytes | memoryview) -> None:
        request.buffers += (head, *rest)
        request.size_bytes += len(head) + sum(map(len, rest))
        request.records += 1


@dataclass(slots=True, eq=False)
class _AddDone:
    """Completes one add: records the file offset of the entries, then settles the waiter."""

    runs: LedgerRuns
    run: Run
    delta: int
    waiter: Waiter
    admission: Admission
    state: LocalLedger

    def __call__(self, request: JournalRequest) -> None:
        if request.error is not None:
            self.runs.refused(self.run)
            # The journal refused these bytes. An add that was compared with them must be compared
            # again.
            self.state.comparisons += 1
        else:
            state = self.state
            if request.introduces:
                state.introduced_in = request.file_number
            self.runs.written(self.run, request.file_number, request.offset + self.delta)
            if 0 < state.introduced_in < request.file_number:
                # The add was accepted before this file began, so the file lacks the ledger's key.
                self.admission.introduce(state)
            self.admission.failpoints.hit("add.before_ack")
        _resolve(self.waiter, request.error)


def _introduced(state: LocalLedger, request: JournalRequest) -> None:
    """Record that the journal file has the ledger's key, if `request` wrote the key."""
    if request.introduces and request.error is None:
        state.introduced_in = request.file_number


def _ignore(request: JournalRequest) -> None: ...


def _resolve(waiter: Waiter, error: BookieError | None) -> None:
    waiter.settle(OK if error is None else Reply(error.status, str(error)))
