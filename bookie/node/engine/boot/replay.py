"""Replays the journal at a start: puts the journal's records after the mark into the index.

Replay copies the records, in order, into a new entry log, because journal bytes in the page cache
may never have reached the device. Replay syncs the log before the index points into the log. One
index transaction then registers the log, the slots, the rows and the new mark. If the process
crashes before this transaction commits, the next start replays the old files again.

Replay commits a long journal in batches, to limit memory. After a crash between two batches, the
mark is in the middle of the journal, like the mark of a checkpoint.

`Replay` also rebuilds a lost index. The rebuild reads all files completely, beginning with the file
that has the oldest records, and copies no entries. The batches of a rebuild set no mark, so after a
crash the next start rebuilds the index again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from bookie.config import StorageSettings
from bookie.env import Environment, File
from bookie.errors import FormatError, NewerFormatError
from bookie.node.engine.boot.replay_batch import LoadRows, ReplayBatch
from bookie.node.engine.entry_log import EntryLogWriter, state_records
from bookie.node.engine.files import SealedFile, read_header
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES, FileHeader, FileKind
from bookie.node.engine.format.index_rows import Mark
from bookie.node.engine.format.records import LinkRecord
from bookie.node.engine.format.tail import Verdict, evaluate, gather_evidence
from bookie.node.engine.scan import (
    BlockGroup,
    BlockRun,
    grouped,
    later_headers,
    left_by_no_crash,
    link_of,
    next_valid,
    runs,
)

LEDGERS_A_BLOCK = 10_000
"""The largest number of ledger states in one block of a log; a state takes about 100 bytes."""

CommitBatch = Callable[[ReplayBatch, list[SealedFile], Mark | None], None]
"""Commits a batch, the files that were read to their end, and the mark (None in a rebuild)."""


@dataclass(slots=True)
class ReplayOutcome:
    """The result of a replay.

    The caller of the replay commits this result before the new journal takes records.
    """

    batch: ReplayBatch
    """The last batch of records, which is not committed yet."""
    sealed: list[SealedFile] = field(default_factory=list)
    predecessor: LinkRecord | None = None
    """The LINK record for the next journal file: number, nonce and end of the last journal file."""
    blocks: int = 0
    entries: int = 0


class Replay:
    """Reads journal files into a `ReplayOutcome`, once, in a thread, before the engine starts.

    For each damaged region of durable data, `Replay` adds a sentence to `corrupt`. After each read,
    `Replay` calls `advance` with the number of bytes read.
    """

    def __init__(
        self,
        environment: Environment,
        load_rows: LoadRows,
        next_number: Callable[[], int],
        logs_directory: str,
        settings: StorageSettings,
        commit: CommitBatch,
        corrupt: list[str],
        advance: Callable[[int], None],
    ) -> None:
        self._env = environment
        self._load_rows = load_rows
        self._next_number = next_number
        self._logs_directory = logs_directory
        self._settings = settings
        self._commit = commit
        self._corrupt = corrupt
        self._advance = advance
        self._log = self._new_log(None)
        self._batch = self._new_batch()
        self.outcome = ReplayOutcome(self._batch)

    def _new_batch(self) -> ReplayBatch:
        return ReplayBatch(self._load_rows, self._settings.checkpoint_entries)

    def _new_log(self, newest: FileHeader | None) -> EntryLogWriter:
        return EntryLogWriter(
            self._env,
            self._next_number,
            self._logs_directory,
            self._settings.block_alignment_bytes,
            self._settings.journal_file_bytes_max,
            None if newest is None else (newest.number, newest.nonce),
        )

    def replay(
        self, journals: list[tuple[int, str]], mark: Mark | None, *, clean: bool
    ) -> ReplayOutcome:
        """Replay `journals` (number and path, ascending) from `mark`, or from the start if None.

        After a `clean` stop, the last journal file ends directly after its last block. After any
        other stop, the last journal file must have room for another block. If that file has no
        room, it was cut, or a later journal file existed and is now missing.

        Raises:
            NewerFormatError: a newer version wrote a file.
            FormatError: the header of a file names another file.
            DiskFullError: there is no room for the entry log.
            OSError: the device failed.
        """
        open_files = [self._open(number, path) for number, path in journals]
        try:
            usable = [item for item in open_files if item is not None]
            self._log = self._new_log(usable[-1][0] if usable else None)
            self._check_chain(usable, mark)
            for index, (header, file, path) in enumerate(usable):
                following = usable[index + 1] if index + 1 < len(usable) else None
                room_after = following is None and not clean
                self._replay_file(header, file, path, mark, following, room_after=room_after)
        finally:
            for item in open_files:
                if item is not None:
                    item[1].close()
        self._publish_logs()
        return self._finish()

    def _check_chain(self, files: list[tuple[FileHeader, File, str]], mark: Mark | None) -> None:
        """Find lost or exchanged journal files: the LINK in each file names the previous file."""
        known = {header.number: header.nonce for header, _, _ in files}
        for header, file, path in files:
            link = link_of(file, header)
            if link is None or (mark is not None and link.predecessor_number < mark.file_number):
                continue
            if known.get(link.predecessor_number) != link.predecessor_nonce:
                self._corrupt.append(
                    f"{path} follows file {link.predecessor_number}, which is missing or exchanged"
                )

    def rebuild(self, files: list[tuple[int, str]]) -> ReplayOutcome:
        """Collect the locations of all records in `files`, without copying them.

        The file with the oldest records is read first, see `_in_order`.

        Raises:
            NewerFormatError: a newer version wrote a file.
            FormatError: the header of a file names another file.
            OSError: the device failed.
        """
        for header, path in self._in_order(files):
            file = self._env.disk.open(path)
            try:
                end = FILE_HEADER_SIZE_BYTES
                for group in grouped(
                    self._blocks_of(header, file, path, None, None, room_after=False)
                ):
                    if group.records:
                        parsed = group.parse()
                        places = group.places_of(parsed.packets)
                        self._batch.take(parsed, header.number, places)
                    self._advance(group.end - end)
                    end = group.end
                    if self._batch.is_full:
                        self._commit_batch(None)
                self._advance(file.size() - end)
                self.outcome.sealed.append(SealedFile(header.number, header.kind, end))
                if header.kind is FileKind.JOURNAL:
                    self.outcome.predecessor = LinkRecord(header.number, header.nonce, end)
            finally:
                file.forget(0, 0)
                file.close()
        return self._finish()

    def _in_order(self, files: list[tuple[int, str]]) -> list[tuple[FileHeader, str]]:
        """Return the files, ordered from the oldest records to the newest.

        Journals are ordered by number. A log comes after the newest file from which its records
        were copied, even if that file is gone. The log's own number shows when the log was written,
        but not the age of its records.
        """
        found = []
        for number, path in files:
            item = self._open(number, path)
            if item is None:
                continue
            header, file, _ = item
            place = number
            with closing(file):
                if header.kind is FileKind.ENTRY_LOG:
                    link = link_of(file, header)
                    place = number if link is None else link.predecessor_number
            found.append((place, number, header, path))
        return [(header, path) for _, _, header, path in sorted(found, key=lambda item: item[:2])]

    def _open(self, number: int, path: str) -> tuple[FileHeader, File, str] | None:
        file = self._env.disk.open(path)
        file.drop_cache()
        try:
            header = read_header(file)
        except NewerFormatError:
            file.close()
            raise
        except FormatError as error:
            file.close()
            # The header was durable before the file got this name, so a bad header means damage.
            self._corrupt.append(f"{path}: {error}")
            return None
        if header.number != number:
            file.close()
            raise FormatError(f"{path} says that it is file {header.number}")
        return header, file, path

    def _replay_file(
        self,
        header: FileHeader,
        file: File,
        path: str,
        mark: Mark | None,
        following: tuple[FileHeader, File, str] | None,
        *,
        room_after: bool,
    ) -> None:
        end = FILE_HEADER_SIZE_BYTES
        if mark is not None and mark.file_number == header.number:
            end = mark.offset
        found = self._blocks_of(header, file, path, mark, following, room_after=room_after)
        for group in grouped(found):
            self._keep(group)
            self._advance(group.end - end)
            end = group.end
            if self._batch.is_full:
                sequence = group.sequence
                self._commit_batch(Mark(header.number, end, sequence, header.nonce))
        self.outcome.sealed.append(SealedFile(header.number, FileKind.JOURNAL, end))
        self.outcome.predecessor = LinkRecord(header.number, header.nonce, end)

    def _blocks_of(
        self,
        header: FileHeader,
        file: File,
        path: str,
        mark: Mark | None,
        following: tuple[FileHeader, File, str] | None,
        *,
        room_after: bool,
    ) -> Iterator[BlockRun]:
        """Yield the valid blocks of a file; skip and report damaged blocks that were once durable.

        `room_after` is True for the last journal file after a stop that was not clean: this file
        must end with reserved room.
        """
        offset, sequence, mark_offset = FILE_HEADER_SIZE_BYTES, 0, None
        if mark is not None and mark.file_number == header.number:
            offset, sequence, mark_offset = mark.offset, mark.sequence, mark.offset
            if mark.nonce != header.nonce:
                self._corrupt.append(f"{path} is not the file that the mark names")
                offset, sequence, mark_offset = FILE_HEADER_SIZE_BYTES, 0, None
        if mark_offset is not None and file.size() < mark_offset:
            self._corrupt.append(f"{path} ends before the mark")
            return
        while True:
            for run in runs(file, header, offset, sequence):
                offset, sequence = run.end, run.sequence
                self.outcome.blocks += len(run)
                yield run
            strange = left_by_no_crash(file, header, offset, sequence, room_after=room_after)
            if not self._was_durable(
                header, file, offset, sequence, mark_offset, following, strange
            ):
                return
            what = "is damaged"
            if room_after and file.size() < offset + header.alignment:
                what = "was cut, or the file after it is missing,"
            self._corrupt.append(f"{path} {what} at offset {offset}")
            found = next_valid(file, header, offset, sequence)
            if found is None:
                return
            offset, sequence = found.offset, found.header.sequence - 1

    def _was_durable(
        self,
        header: FileHeader,
        file: File,
        invalid_at: int,
        sequence: int,
        mark_offset: int | None,
        following: tuple[FileHeader, File, str] | None,
        strange: bool,
    ) -> bool:
        later = max(
            (found.durable_upto for _, found in later_headers(file, header, invalid_at, sequence)),
            default=None,
        )
        successor_end = None
        if following is not None:
            link = link_of(following[1], following[0])
            if link is not None and _names(link, header):
                successor_end = link.predecessor_end
        evidence = gather_evidence(
            invalid_at,
            mark_offset=mark_offset,
            later_durable_upto=later,
            successor_end=successor_end,
            left_by_no_crash=strange,
        )
        return evaluate(evidence).verdict is Verdict.CORRUPT

    def _keep(self, group: BlockGroup) -> None:
        """Write the group's records to the log, and add their new places to the batch."""
        if not group.records:
            return
        parsed = group.parse()
        number, where = self._log.write(group.body, group.records)
        self._batch.take(parsed, number, parsed.packets + where)

    def _commit_batch(self, mark: Mark | None) -> None:
        """Commit the records read so far, to limit memory."""
        self._publish_logs()
        self._commit(self._batch, self.outcome.sealed, mark)
        self.outcome.entries += self._batch.entries
        self._batch = self._new_batch()

    def _keep_states(self) -> None:
        """Write the states of the log's ledgers into the log, because a rebuild needs these states.

        The only record of a ledger's key may be before the mark, in a file that the bookie will
        soon remove.
        """
        if not self._log.holds_anything:
            return
        states = self._batch.known_states()
        for start in range(0, len(states), LEDGERS_A_BLOCK):
            records = [
                record
                for state in states[start : start + LEDGERS_A_BLOCK]
                for record in state_records(state.ledger_id, state.row())
            ]
            if records:
                self._log.write(b"".join(records), len(records))

    def _publish_logs(self) -> None:
        self._keep_states()
        self._log.sync()
        self._env.failpoints.hit("boot.after_log_written")
        self.outcome.sealed += [sealed for sealed, _ in self._log.publish()]
        self._env.failpoints.hit("boot.after_log_renamed")

    def _finish(self) -> ReplayOutcome:
        self.outcome.batch = self._batch
        self.outcome.entries += self._batch.entries
        return self.outcome


def _names(link: LinkRecord, header: FileHeader) -> bool:
    return link.predecessor_number == header.number and link.predecessor_nonce == header.nonce
