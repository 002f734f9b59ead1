"""A checkpoint moves all changes since the last checkpoint from memory into the index.

In a running engine, only checkpoints move the mark. A checkpoint has these steps:

1. One synchronous section replaces the memtable by a new one, and queues a barrier request in the
   journal after all accepted requests.
2. The journal syncs the barrier's block; the mark is the end of that block.
3. After the sync, the checkpoint copies the rows of changed ledgers from memory. A row that is
   newer than the mark is harmless; a row that is older than the mark would lose data.
4. One index transaction writes slots, rows, file statistics and the mark.
5. The old memtable is dropped; a reader that still uses the old memtable can finish its read.
6. Sealed files before the mark's file that have no live bytes are renamed, then freed in steps
   (`file_removal`).

If the device is full at step 4, the transaction changes nothing and the memtable is kept. The next
checkpoint tries step 4 again. The bookie refuses new entries while the device is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bookie.env import Environment
from bookie.errors import CorruptionError, DiskFullError
from bookie.node.engine.admission import Admission
from bookie.node.engine.file_removal import Removal
from bookie.node.engine.files import FileTable, SealedFile
from bookie.node.engine.format.index_rows import LedgerIndexRow, Mark
from bookie.node.engine.index.entry_index import CheckpointChange, CommitResult, Index, LedgerChange
from bookie.node.engine.index.reclaimed_entries import RemovedEntries
from bookie.node.engine.index.relocation import Relocation
from bookie.node.engine.journal.group_commit import JournalRequest, RequestKind
from bookie.node.engine.ledger_state import LocalLedger
from bookie.node.engine.memtable import Memtable
from bookie.telemetry import Metrics

RELOCATED_ENTRIES = 2048
"""A transaction of `relocate` ends after this many entries, because it blocks other threads."""

MEMTABLES_FULL = 2
"""During a checkpoint, adds wait if the new memtable has `entries_due` times this many entries."""

PAUSE_SECONDS_MAX = 0.1
"""The longest pause after a transaction of `relocate`.

Up to this limit, a pause lasts as long as the transaction before it.
"""


@dataclass(slots=True)
class _Immutable:
    """A memtable that a checkpoint writes into the index, with its journal barrier request."""

    memtable: Memtable
    dirty: dict[int, LocalLedger]
    barrier: JournalRequest
    passed: asyncio.Future[None]
    """Done once the journal has completed the barrier."""
    sealed: list[SealedFile] = field(default_factory=list)


class Checkpointer:
    """Makes checkpoints; owns the immutable memtable and the sets of changed ledgers."""

    def __init__(
        self,
        environment: Environment,
        metrics: Metrics,
        admission: Admission,
        index: Index,
        files: FileTable,
        dead_files: tuple[int, ...],
        removal: Removal,
        release_reserve: Callable[[], None],
        entries_due: int,
    ) -> None:
        self._env = environment
        self._metrics = metrics
        self._admission = admission
        admission.mark_dirty = self.mark_dirty
        self._index = index
        self._files = files
        self.removal = removal
        self._release_reserve = release_reserve
        self._immutable: _Immutable | None = None
        self._dirty: dict[int, LocalLedger] = {}
        self._sealed: list[SealedFile] = []
        self._dead = list(dead_files)
        self._removed: list[int] = []
        self._lock = asyncio.Lock()
        self._entries_max = MEMTABLES_FULL * entries_due
        self.moved = asyncio.Event()
        """An event, set if the older memtable is indexed, a device is full or the engine failed."""
        self._removing: dict[int, asyncio.Event] = {}
        """Maps a ledger id to an event, set when the transaction that removes its entries ended."""
        self.more_to_do = bool(dead_files)
        """True if the next checkpoint has work to do even if no new entries arrive."""

    def mark_dirty(self, state: LocalLedger) -> None:
        self._dirty[state.ledger_id] = state

    def is_dirty(self, ledger_id: int) -> bool:
        """True if the index lacks a change of this ledger."""
        return ledger_id in self._dirty or (
            self._immutable is not None and ledger_id in self._immutable.dirty
        )

    def dirty_states(self) -> list[LocalLedger]:
        """Return the states of ledgers with changes that the index lacks; newest changes last."""
        # Copy the reference: compaction calls this in a thread, and a checkpoint may end meanwhile.
        immutable = self._immutable
        older = immutable.dirty if immutable is not None else {}
        return list({**older, **self._dirty}.values())

    @property
    def is_full(self) -> bool:
        """True if the memtable is full and the last checkpoint has not ended yet."""
        return self._immutable is not None and self._admission.memtable.entries >= self._entries_max

    @property
    def has_changes(self) -> bool:
        """True if a checkpoint would change the index, or would remove a file."""
        return bool(self._dirty) or self._immutable is not None or self.more_to_do

    @property
    def has_deletions(self) -> bool:
        """True if a ledger was deleted and the index does not know the deletion yet."""
        return any(state.deleted for state in self.dirty_states())

    @property
    def has_dead_files(self) -> bool:
        """True if some files that the start found without live bytes are still to be removed."""
        return bool(self._dead)

    def memtables(self) -> tuple[Memtable, ...]:
        """Return the memtables whose changes are not in the index yet, oldest first."""
        if self._immutable is None:
            return (self._admission.memtable,)
        return (self._immutable.memtable, self._admission.memtable)

    def sealed(self, file: SealedFile) -> None:
        self._sealed.append(file)

    async def run(self) -> None:
        """Make one checkpoint; concurrent calls run one after the other.

        After a cancelled run, the next run continues with the same memtable.

        Raises:
            DiskFullError: the index has no room; no data was lost. The next run tries again.
            CorruptionError: a page that had to be changed is damaged; the index was not changed.
            OSError: the device failed; the process must end.
        """
        async with self._lock:
            await self._run({})

    async def run_last(self, meta: dict[bytes, bytes]) -> None:
        """Write both memtables and the values `meta` into the index; raises like `run`."""
        async with self._lock:
            if self._immutable is not None:
                await self._run({})
            await self._run(meta)

    async def _run(self, meta: dict[bytes, bytes]) -> None:
        with self._metrics.checkpoint_seconds.time():
            await self._make(meta)
        self._metrics.checkpoints_total.inc()

    async def _make(self, meta: dict[bytes, bytes]) -> None:
        immutable = self._immutable or self._swap()
        mark = await self._mark_of(immutable)
        rows = {ledger_id: state.row() for ledger_id, state in immutable.dirty.items()}
        newest = self._admission.journal_file
        self._env.failpoints.hit("checkpoint.before_commit")
        removed = list(self._removed)
        commit = partial(self._commit, immutable, mark, rows, removed, meta, newest)
        committed = await self._in_index(commit)
        self._env.failpoints.hit("checkpoint.after_commit")
        self._index.cached_pages.forget([*immutable.dirty, *committed.thinned])
        self._immutable = None
        self.moved.set()
        for ledger_id, (entries, size) in committed.counts.items():
            state = immutable.dirty[ledger_id]
            state.entries, state.payload_bytes = entries, size
        del self._removed[: len(removed)]
        self._metrics.index_pages_total.inc(committed.pages)
        await self._remove_dead(committed, "checkpoint.before_unlink")
        self.more_to_do = bool(self._removed) or committed.deletions_left

    async def delete_pages(self) -> None:
        """Remove a limited number of pages of the ledgers that the index lists as deleted.

        Files that have lost their last live bytes are removed, too. The mark does not move. Raises
        like `run`.
        """
        async with self._lock:
            removed = list(self._removed)
            committed = await self._in_index(partial(self._commit_deletions, removed))
            # A read that began before the deletion may have cached some of these pages again.
            self._index.cached_pages.forget(committed.thinned)
            del self._removed[: len(removed)]
            await self._remove_dead(committed, "checkpoint.before_unlink")
            self.more_to_do = bool(self._removed) or committed.deletions_left

    def _commit_deletions(self, removed: list[int]) -> CommitResult:
        mark = self._index.mark()
        if mark is None:
            raise CorruptionError("the index has lost its mark")
        return self._index.commit(CheckpointChange(mark, removed_files=removed))

    async def _in_index(self, commit: Callable[[], CommitResult]) -> CommitResult:
        """Commit in the index thread; if the device is full, free the reserve for a retry."""
        try:
            return await self._env.workers.run("index", self._timed, commit)
        except DiskFullError:
            self._release_reserve()
            raise

    def _timed(self, commit: Callable[[], CommitResult]) -> CommitResult:
        with self._metrics.index_commit_seconds.time():
            return commit()

    def _swap(self) -> _Immutable:
        """Step 1: swap the memtable; from now on, adds go to a new memtable."""
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def complete(request: JournalRequest) -> None:
            # Take the sealed files here, because the task that awaits the barrier may be cancelled.
            immutable.sealed, self._sealed = self._sealed, []
            passed.set_result(None)

        barrier = JournalRequest(RequestKind.BARRIER, complete)
        immutable = _Immutable(self._admission.memtable, self._dirty, barrier, passed)
        self._immutable = immutable
        self._admission.memtable = Memtable()
        self._dirty = {}
        self._admission.submit(barrier)
        self._env.failpoints.hit("checkpoint.after_swap")
        return immutable

    async def _mark_of(self, immutable: _Immutable) -> Mark:
        """Step 2: wait for the memtable's barrier, and return its mark; the call is repeatable."""
        await asyncio.wait([immutable.passed])
        if immutable.barrier.error is not None:
            raise immutable.barrier.error
        assert immutable.barrier.mark is not None
        self._env.failpoints.hit("checkpoint.after_barrier")
        return immutable.barrier.mark

    def _commit(
        self,
        immutable: _Immutable,
        mark: Mark,
        rows: dict[int, LedgerIndexRow],
        removed: list[int],
        meta: dict[bytes, bytes],
        newest_journal: int,
    ) -> CommitResult:
        """Step 4: commit in the index thread, safely: the immutable memtable never changes."""
        changes = [
            LedgerChange(ledger_id, row, immutable.memtable.table_of(ledger_id))
            for ledger_id, row in rows.items()
        ]
        change = CheckpointChange(
            mark=mark,
            ledgers=changes,
            sealed=immutable.sealed,
            removed_files=removed,
            meta=meta,
            newest_journal=newest_journal,
        )
        return self._index.commit(change)

    async def relocate(self, change: Relocation) -> None:
        """Point the index to copies of entries in a new log; remove files without live bytes.

        A relocation and a checkpoint never run at the same time, because both change the same index
        pages. Many entries need several transactions, with pauses between transactions. If the call
        stops between two transactions, the index still points to the old places of the remaining
        entries. If the device is full at the first transaction, the new log is removed. Raises like
        `run`.
        """
        clock = self._env.clock.monotonic
        async with self._lock:
            # Add the file before the commit: a look-up right after the commit reads the log.
            self._files.add(change.number, change.path)
            *parts, last = change.parts(RELOCATED_ENTRIES)
            for part in parts:
                began = clock()
                await self._relocate(part, is_first=part is parts[0], is_last=False)
                await asyncio.sleep(min(clock() - began, PAUSE_SECONDS_MAX))
            committed = await self._relocate(last, is_first=not parts, is_last=True)
            await self._remove_dead(committed, "compaction.before_unlink")
            self.more_to_do = self.more_to_do or bool(self._removed)

    async def _relocate(self, part: Relocation, *, is_first: bool, is_last: bool) -> CommitResult:
        run, failpoints = self._env.workers.run, self._env.failpoints
        failpoints.hit("compaction.before_commit")
        try:
            commit = partial(self._index.relocate, part, is_last=is_last)
            committed = await run("index", self._timed, commit)
        except DiskFullError:
            if is_first:
                self._files.remove(part.number)
                await run("index", self._env.disk.unlink, part.path)
            raise
        self._index.cached_pages.forget(entries.ledger_id for entries in part.moved)
        failpoints.hit("compaction.after_commit")
        self._metrics.index_pages_total.inc(committed.pages)
        return committed

    async def remove_entries(
        self, state: LocalLedger, may_go: Callable[[], bool]
    ) -> RemovedEntries | None:
        """Remove some entries of a ledger from the index, durably; None if no removal is allowed.

        A removal is allowed only if `may_go` returns True and the ledger is not deleted. The index
        must also have all changes of the ledger, so that no replay restores the removed entries. A
        listing of the ledger that begins during the removal waits until the removal ends
        (`settled`). Raises like `run`.
        """
        async with self._lock:
            if self.is_dirty(state.ledger_id) or state.deleted or not may_go():
                return None
            # Set the flag now: a checkpoint may write this state's row before the next removal.
            state.reclaimed = True
            # If the removal ends without a result (cancelled), the counts must not include removed
            # entries. The next checkpoint of the ledger counts its entries again.
            state.entries = state.payload_bytes = 0
            ended = self._removing[state.ledger_id] = asyncio.Event()
            try:
                # Even if the caller is cancelled, wait until the transaction ends: the caller may
                # hold a lock.
                removed = await self._env.workers.run_through(
                    "index", self._index.remove_entries, state.ledger_id
                )
            except DiskFullError:
                self._release_reserve()
                raise
            finally:
                del self._removing[state.ledger_id]
                ended.set()
                self._index.cached_pages.forget([state.ledger_id])
            state.entries, state.payload_bytes = removed.row.entries, removed.row.payload_bytes
            if not self.is_dirty(state.ledger_id):
                state.first_entry_id = removed.row.first_entry_id
                state.last_entry_id = removed.row.last_entry_id
            self.more_to_do = True  # some files may have no live bytes now
            return removed

    async def settled(self, ledger_id: int) -> None:
        """Wait until no transaction removes entries of the ledger from the index."""
        while (removing := self._removing.get(ledger_id)) is not None:
            await removing.wait()

    async def _remove_dead(self, committed: CommitResult, failpoint: str) -> None:
        """Step 6: remove dead files; the next transaction removes their rows from the index."""
        self._dead = [number for number in committed.dead_files if number not in self._removed]
        if not self._dead:
            return
        self._env.failpoints.hit(failpoint)
        paths = []
        for number in self._dead:
            path = self._files.path(number)
            self._files.remove(number)
            self._removed.append(number)
            if path is not None:
                paths.append(path)
        self._dead = []
        await self.removal.take(paths)
