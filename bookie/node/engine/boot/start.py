"""Starts the engine: reads the files of the last process and builds the engine's state.

This order makes a start safe:

1. Temporary files are removed.
2. Index and journals are synced and dropped from the page cache, so that later reads come from the
   device.
3. The index is opened, or rebuilt from the files if the index is lost or damaged.
4. The journal is replayed from the mark.
5. A new journal file is created.
6. One transaction commits the results of all steps.

After a crash before the commit in step 6, the next start does the same work again. Before a start,
the caller must lock the directories and check the cookies.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from bookie.config import StorageSettings
from bookie.env import Environment, is_disk_full
from bookie.errors import (
    ConfigurationError,
    CookieError,
    CorruptionError,
    DiskFullError,
    NewerFormatError,
    StorageFailedError,
)
from bookie.node.engine.boot.replay import Replay, ReplayOutcome
from bookie.node.engine.boot.replay_batch import ReplayBatch
from bookie.node.engine.directories import Directories
from bookie.node.engine.files import (
    TEMPORARY_SUFFIX,
    FileTable,
    SealedFile,
    file_name,
    parse_file_name,
)
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES, FileHeader, FileKind
from bookie.node.engine.format.index_rows import FileRow, FileState, Mark
from bookie.node.engine.index.entry_index import (
    INDEX_FORMAT_VERSION,
    INTEGRITY_SUSPECT,
    META_BOOKIE,
    META_BOOT_ID,
    META_CLEAN,
    META_FORMAT,
    META_INSTANCE,
    META_INTEGRITY,
    META_MISSING_FILES,
    CheckpointChange,
    CommitResult,
    Index,
)
from bookie.node.engine.index.opening import open_index
from bookie.node.engine.index.page_reads import first_ledger_with_pages
from bookie.node.engine.journal.first_file import create_first_journal, remove_unused
from bookie.node.engine.journal.group_commit import JournalWriter
from bookie.node.engine.ledger_state import LocalLedger, highest_id

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of the data: a bookie and its cluster instance."""

    bookie_id: str
    instance_id: str
    stamped_before: bool = False
    """True if the cookies existed before this start; then an index must exist, too."""


@dataclass(frozen=True, slots=True)
class BootReport:
    """The findings of a start, which the engine writes to the event log."""

    clean: bool
    """True if the last process stopped in an orderly way."""
    operating_system_crashed: bool
    rebuilt: bool
    blocks: int
    entries: int
    seconds: float
    corrupt: tuple[str, ...]
    """One sentence for each damaged part of durable data."""


@dataclass(frozen=True, slots=True)
class Booted:
    """The parts that a start hands to the engine."""

    index: Index
    files: FileTable
    next_number: Callable[[], int]
    writer: JournalWriter
    states: dict[int, LocalLedger]
    indexed_max: int
    """A ledger id: every ledger above it that has a row or pages in the index is in `states`."""
    dead_files: tuple[int, ...]
    report: BootReport


class Boot:
    """Starts the engine once; `run` blocks, so the caller calls it in a worker thread."""

    def __init__(
        self,
        environment: Environment,
        settings: StorageSettings,
        directories: Directories,
        identity: Identity,
        advance: Callable[[int], None] = lambda size: None,
    ) -> None:
        """`advance` is called after each read of a file, with the number of bytes read."""
        self._env = environment
        self._settings = settings
        self._dirs = directories
        self._identity = identity
        self._advance = advance
        self._corrupt: list[str] = []
        self._missing: list[bytes] = []
        """Numbers of missing files that had live bytes, even if their loss was already known."""
        self._clean = False
        self._next_number: Callable[[], int] = itertools.count(1).__next__

    def run(self) -> Booted:
        """Start the engine; a start that fails loses no data.

        Raises:
            FormatError: a newer version wrote a file (`NewerFormatError`), or the number in a
                file's header differs from the number in its name.
            CookieError: the index belongs to another bookie or cluster.
            ConfigurationError: the device is full.
            StorageFailedError: a disk failed.
        """
        try:
            return self._run()
        except (OSError, DiskFullError) as error:
            if is_disk_full(error):
                raise ConfigurationError(self._full(error)) from error
            raise StorageFailedError(f"a disk failed during the start: {error}") from error

    def _full(self, error: Exception) -> str:
        rooms = (
            f"{self._env.disk.usage(root).free_bytes >> 20} MiB are free in {root}"
            for root in self._dirs.roots()
        )
        return f"a device is full, the bookie cannot start: {error} ({', '.join(rooms)})"

    def _run(self) -> Booted:
        started = self._env.clock.monotonic()
        self._remove_temporary()
        index, rebuilt = self._open_index()
        try:
            try:
                return self._start_from(index, started, rebuilt=rebuilt)
            except CorruptionError:
                # If a page of the index is damaged, rebuild the index from the files.
                try:
                    index.verify_pages()
                except CorruptionError as error:
                    index.close()
                    index = self._new_index(error)
                    return self._start_from(index, started, rebuilt=True)
                raise
        except BaseException:
            index.close()
            raise

    def _start_from(self, index: Index, started: float, *, rebuilt: bool) -> Booted:
        if rebuilt:
            # Remove all content that an interrupted rebuild may have left.
            index.clear()
        clean = self._clean = index.meta(META_CLEAN) == b"1" and not rebuilt
        before = index.meta(META_BOOT_ID)
        os_crashed = before not in (None, self._env.clock.boot_id().encode())
        crashed = not clean and (os_crashed or self._dirs.was_failed())
        if not rebuilt and (crashed or self._has_strange_files(index)):
            index.verify_pages()
        return self._start(index, started, clean=clean, os_crashed=os_crashed, rebuilt=rebuilt)

    def _start(
        self, index: Index, started: float, *, clean: bool, os_crashed: bool, rebuilt: bool
    ) -> Booted:
        self._check_identity(index)
        rows = index.files()
        journals, logs = self._files_on_disk()
        mark = index.mark()
        # The index may have lost the row of the file that the mark names, and that file's location.
        highest = max([mark.file_number if mark else 0, *rows, *journals, *logs])
        self._next_number = itertools.count(highest + 1).__next__
        if not rebuilt:
            remove_unused(self._env.disk, journals, mark)
        outcome = self._outcome(index, rows, journals, logs, rebuilt=rebuilt)
        # Read rows and files again: each batch that the replay committed added rows and logs.
        rows = index.files()
        journals, logs = self._files_on_disk()
        # Look at rows and pages: a ledger with pages may have lost its row.
        paged = partial(first_ledger_with_pages, index.store)
        indexed_max = max(highest_id(index.first_ledger_above), highest_id(paged))
        integrity = INTEGRITY_SUSPECT if self._corrupt or rebuilt else index.integrity()
        if self._corrupt:
            # Store this before a new journal file is created: a later start may miss the damage.
            self._with_reserve(lambda: index.put_meta({META_INTEGRITY: integrity}))
        writer, mark = self._new_journal(outcome)
        removed = [number for number in rows if number not in journals and number not in logs]
        self._env.failpoints.hit("boot.before_commit")
        change = CheckpointChange(
            mark=mark,
            ledgers=outcome.batch.changes(),
            sealed=[*outcome.sealed, *self._forgotten(rows, journals, outcome)],
            removed_files=[number for number in removed if rows[number].live_bytes == 0],
            meta={
                META_BOOKIE: self._identity.bookie_id.encode(),
                META_INSTANCE: self._identity.instance_id.encode(),
                META_CLEAN: b"0",
                META_BOOT_ID: self._env.clock.boot_id().encode(),
                META_INTEGRITY: integrity,
                META_MISSING_FILES: b" ".join(self._missing),
            },
        )
        committed = self._commit_last(index, change, writer)
        self._env.failpoints.hit("boot.after_commit")
        for state in outcome.batch.states.values():
            state.entries, state.payload_bytes = committed.counts[state.ledger_id]
        self._give_back(outcome, journals)
        self._dirs.clear_failed()
        self._dirs.make_reserve()
        files = FileTable(self._env.disk)
        for number, path in [*journals.items(), *logs.items()]:
            files.add(number, path)
        files.add(mark.file_number, writer.current.path)
        report = BootReport(
            clean=clean,
            operating_system_crashed=os_crashed,
            rebuilt=rebuilt,
            blocks=outcome.blocks,
            entries=outcome.entries,
            seconds=self._env.clock.monotonic() - started,
            corrupt=tuple(dict.fromkeys(self._corrupt)),
        )
        return Booted(
            index,
            files,
            self._next_number,
            writer,
            outcome.batch.states,
            indexed_max,
            committed.dead_files,
            report,
        )

    def _has_strange_files(self, index: Index) -> bool:
        """True if the index lacks the row of a log, or of a journal file with data before the mark.

        A file without a row normally has no live entries, and the start removes the file. But if an
        index page points into a file without a row, the row was lost. So if this function returns
        True, the start checks all index pages before it removes files.
        """
        rows, mark = index.files(), index.mark()
        journals, logs = self._files_on_disk()
        known = 0 if mark is None else mark.file_number + (mark.offset > FILE_HEADER_SIZE_BYTES)
        below = (number for number in journals if number < known)
        return any(number not in rows for number in itertools.chain(logs, below))

    def _remove_temporary(self) -> None:
        for directory in (self._dirs.journal, self._dirs.logs):
            for name in self._env.disk.names(directory):
                if name.endswith(TEMPORARY_SUFFIX) and not name.startswith("COOKIE"):
                    self._env.disk.unlink(os.path.join(directory, name))

    def _open_index(self) -> tuple[Index, bool]:
        """Open the index; return the index, and True if the index has to be rebuilt."""
        trusted = self._dirs.take_stopped()
        data = os.path.join(self._dirs.index, "data.mdb")
        if "data.mdb" in self._env.disk.names(self._dirs.index):
            file = self._env.disk.open(data, writable=True)
            file.drop_cache()
            file.close()
        try:
            index = self._try_open(trusted=trusted)
        except CorruptionError as error:
            return self._new_index(error), True
        try:
            if index.check_format():
                if index.mark() is None and index.files():
                    raise CorruptionError("the index has files and no mark")
                return index, False
        except NewerFormatError:
            index.close()
            raise
        except CorruptionError as error:
            index.close()
            return self._new_index(error), True
        journals, logs = self._files_on_disk()
        if journals or logs:
            return index, True
        if self._identity.stamped_before:
            self._corrupt.append(f"the index in {self._dirs.index} and all files are gone")
            return index, True
        # Store the format: at a later start, an index without a format counts as lost.
        index.put_meta({META_FORMAT: str(INDEX_FORMAT_VERSION).encode()})
        return index, False

    def _new_index(self, error: CorruptionError) -> Index:
        """Open a new empty index; keep the damaged index for inspection."""
        self._corrupt.append(str(error))
        self._dirs.set_index_aside(f"damaged-{self._env.clock.now_ms()}")
        return self._try_open()

    def _try_open(self, *, trusted: bool = False) -> Index:
        return open_index(self._env, self._settings, self._dirs, trusted=trusted)

    def _check_identity(self, index: Index) -> None:
        for name, ours in (
            (META_BOOKIE, self._identity.bookie_id),
            (META_INSTANCE, self._identity.instance_id),
        ):
            found = index.meta(name)
            if found is not None and found != ours.encode():
                owner = found.decode(errors="replace")
                raise CookieError(
                    f"the index in {self._dirs.index} belongs to {owner!r}, not to {ours!r}"
                )

    def _files_on_disk(self) -> tuple[dict[int, str], dict[int, str]]:
        found: dict[FileKind, dict[int, str]] = {FileKind.JOURNAL: {}, FileKind.ENTRY_LOG: {}}
        for directory in (self._dirs.journal, self._dirs.logs):
            for name in self._env.disk.names(directory):
                parsed = parse_file_name(name)
                if parsed is not None:
                    found[parsed[0]][parsed[1]] = os.path.join(directory, name)
        return (
            dict(sorted(found[FileKind.JOURNAL].items())),
            dict(sorted(found[FileKind.ENTRY_LOG].items())),
        )

    def _outcome(
        self,
        index: Index,
        rows: dict[int, FileRow],
        journals: dict[int, str],
        logs: dict[int, str],
        *,
        rebuilt: bool,
    ) -> ReplayOutcome:
        if rebuilt:
            return self._replay(index).rebuild(sorted([*journals.items(), *logs.items()]))
        self._remove_unknown_logs(rows, logs)
        self._missing, known = [], []
        if index.integrity() != INTEGRITY_SUSPECT:
            # If the loss of a file is known, the ledgers of that file are already in limbo, or they
            # are complete without the file.
            known = (index.meta(META_MISSING_FILES) or b"").split()
        for number, row in rows.items():
            if row.live_bytes and number not in journals and number not in logs:
                self._missing.append(b"%d" % number)
                if b"%d" % number not in known:
                    self._corrupt.append(
                        f"file {number} is missing, with {row.live_bytes} live bytes"
                    )
        mark = index.mark()
        if mark is not None and mark.file_number not in journals:
            self._corrupt.append(f"the journal file {mark.file_number} of the mark is missing")
        try:
            return self._replay_from_mark(index, journals)
        except (DiskFullError, OSError) as error:
            if not is_disk_full(error):
                raise
            self._dirs.release_reserve()
            self._remove_temporary()
            self._remove_unknown_logs(index.files(), self._files_on_disk()[1])
            return self._replay_from_mark(index, journals)

    def _remove_unknown_logs(self, rows: dict[int, FileRow], logs: dict[int, str]) -> None:
        """Remove logs without a row, on disk and in `logs`: no transaction committed them."""
        for number in [number for number in logs if number not in rows]:
            # No index page points into this file, see `_has_strange_files`.
            self._env.disk.unlink(logs.pop(number))

    def _replay_from_mark(self, index: Index, journals: dict[int, str]) -> ReplayOutcome:
        """Replay the journal from the index's mark on; each committed batch moves the mark."""
        mark = index.mark()
        wanted = [
            (number, path)
            for number, path in journals.items()
            if mark is None or number >= mark.file_number
        ]
        return self._replay(index).replay(wanted, mark, clean=self._clean)

    def _replay(self, index: Index) -> Replay:
        return Replay(
            self._env,
            index.rows_of,
            self._next_number,
            self._dirs.logs,
            self._settings,
            partial(self._commit_batch, index),
            self._corrupt,
            self._advance,
        )

    def _commit_batch(
        self, index: Index, batch: ReplayBatch, sealed: list[SealedFile], mark: Mark | None
    ) -> None:
        """Commit one batch of a long replay (with a mark) or of a rebuild (without a mark)."""
        self._env.failpoints.hit("boot.before_commit")
        meta = {META_CLEAN: b"0"}
        if self._corrupt or mark is None:
            # Store the verdict "suspect" now: a later start will not read the damaged part again.
            meta[META_INTEGRITY] = INTEGRITY_SUSPECT
        change = CheckpointChange(mark, batch.changes(), sealed, meta=meta)
        self._with_reserve(lambda: index.commit(change))
        self._env.failpoints.hit("boot.after_commit")

    def _forgotten(
        self, rows: dict[int, FileRow], journals: dict[int, str], outcome: ReplayOutcome
    ) -> list[SealedFile]:
        """Return the journals before the mark that are still to be sealed in the index."""
        replayed = {item.number for item in outcome.sealed}
        return [
            SealedFile(number, FileKind.JOURNAL, self._size_of(path))
            for number, path in journals.items()
            if number not in replayed
            and (number not in rows or rows[number].state is FileState.OPEN)
        ]

    def _size_of(self, path: str) -> int:
        with closing(self._env.disk.open(path)) as file:
            return file.size()

    def _new_journal(self, outcome: ReplayOutcome) -> tuple[JournalWriter, Mark]:
        number = self._next_number()
        header = FileHeader(
            FileKind.JOURNAL, number, self._env.clock.nonce(), self._settings.block_alignment_bytes
        )
        file, size = create_first_journal(self._env.disk, self._settings, self._dirs, header)
        writer = JournalWriter(
            self._env, self._settings, self._next_number, self._dirs.release_reserve
        )
        path = os.path.join(self._dirs.journal, file_name(FileKind.JOURNAL, number))
        return writer, writer.start(header, file, path, size, outcome.predecessor)

    def _commit_last(
        self, index: Index, change: CheckpointChange, w: JournalWriter
    ) -> CommitResult:
        try:
            return self._with_reserve(lambda: index.commit(change))
        except DiskFullError:
            # The index does not know the new journal file yet: remove it. The next start creates
            # another file.
            w.close()
            self._env.disk.unlink(w.current.path)
            raise

    def _with_reserve(self, commit: Callable[[], T]) -> T:
        try:
            return commit()
        except DiskFullError:
            self._dirs.release_reserve()
            return commit()

    def _give_back(self, outcome: ReplayOutcome, journals: dict[int, str]) -> None:
        """Cut off the reserved room of sealed journals; after damage, keep the room as evidence."""
        if self._corrupt:
            return
        for sealed in outcome.sealed:
            path = journals.get(sealed.number)
            if path is not None and sealed.size_bytes >= FILE_HEADER_SIZE_BYTES:
                with closing(self._env.disk.open(path, writable=True)) as file:
                    if file.size() > sealed.size_bytes:
                        file.truncate(sealed.size_bytes)
