"""Boot: read the journal from the mark, keep what is there, and move it under the index's care.

What replay keeps is written anew, block by block and in order, into an entry log that is synced
before anything points into it: bytes that a crashed process left in the page cache may look written
and never have reached the device. One index transaction then registers the log, the slots, the
rows and the new mark; until it commits, a boot starts from the old files again.

`Replay` also rebuilds a lost index: then every file is read from its start, in number order, and
the locations are where the entries already stand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bookie.env import Environment, File
from bookie.errors import FormatError, NewerFormatError
from bookie.formats.batch import headers_of
from bookie.formats.blocks import (
    BLOCK_HEADER_SIZE_BYTES,
    FILE_HEADER_SIZE_BYTES,
    BlockHeader,
    FileHeader,
    FileKind,
    block_size_on_disk,
    body_crc,
    encode_block_header,
    padding,
)
from bookie.formats.index_rows import LedgerIndexRow, Mark
from bookie.formats.records import (
    DeletedRecord,
    EntriesRecord,
    FenceRecord,
    LacRecord,
    LedgerRecord,
    LimboRecord,
    LinkRecord,
    Record,
    encode_link,
    parse_records,
)
from bookie.formats.tail import Verdict, gather_evidence, judge
from bookie.storage.files import create_file, file_name, publish_file, read_header
from bookie.storage.index import SealedFile
from bookie.storage.journal import Predecessor
from bookie.storage.ledger_state import LedgerState
from bookie.storage.scan import ScannedBlock, blocks, later_headers, link_of, next_valid
from bookie.storage.write_cache import Generation, Run

LINK_RECORD_SIZE_BYTES = len(encode_link(0, bytes(16), 0))


@dataclass(slots=True)
class ReplayOutcome:
    """What replay found. The caller commits it, then opens the journal for new records."""

    states: dict[int, LedgerState] = field(default_factory=dict)
    generation: Generation = field(default_factory=Generation)
    sealed: list[SealedFile] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    """One sentence for each damaged region of something that was durable."""
    predecessor: Predecessor | None = None
    """The last journal file, for the link of the next one."""
    sequence: int = 0
    blocks: int = 0
    entries: int = 0
    logs: list[tuple[int, str]] = field(default_factory=list)
    """Entry logs that were written: number and path."""


class Replay:
    """Reads journal files into a `ReplayOutcome`. Blocking; runs once, before anything else."""

    def __init__(
        self,
        environment: Environment,
        load_row: Callable[[int], LedgerIndexRow | None],
        next_number: Callable[[], int],
        logs_directory: str,
        alignment: int,
        log_bytes_max: int,
    ) -> None:
        self._env = environment
        self._load_row = load_row
        self._log = _LogWriter(environment, next_number, logs_directory, alignment, log_bytes_max)
        self.outcome = ReplayOutcome()

    def replay(self, journals: list[tuple[int, str]], mark: Mark | None) -> ReplayOutcome:
        """Replay `journals` (number and path, ascending) from `mark` on, or from their start.

        Raises:
            NewerFormatError: a newer version wrote a file.
            FormatError: a file says that it is another one.
            DiskFullError: there is no room for the entry log; nothing was changed.
            OSError: the device failed.
        """
        open_files = [self._open(number, path) for number, path in journals]
        try:
            usable = [item for item in open_files if item is not None]
            self._check_chain(usable, mark)
            for index, (header, file, path) in enumerate(usable):
                following = usable[index + 1] if index + 1 < len(usable) else None
                self._replay_file(header, file, path, mark, following)
        finally:
            for item in open_files:
                if item is not None:
                    item[1].close()
        self._env.failpoints.hit("boot.after_log_written")
        self.outcome.logs = self._log.finish()
        self.outcome.sealed += self._log.sealed
        self._env.failpoints.hit("boot.after_log_renamed")
        return self.outcome

    def _check_chain(self, files: list[tuple[FileHeader, File, str]], mark: Mark | None) -> None:
        """Each file names the one before it: notice one that was lost or exchanged."""
        known = {header.number: header.nonce for header, _, _ in files}
        for header, file, path in files:
            link = link_of(file, header)
            if link is None or (mark is not None and link.predecessor_number < mark.file_number):
                continue
            if known.get(link.predecessor_number) != link.predecessor_nonce:
                self.outcome.corrupt.append(
                    f"{path} follows file {link.predecessor_number}, which is missing or another"
                )

    def rebuild(self, files: list[tuple[int, str]]) -> ReplayOutcome:
        """Collect the locations of everything in `files` where it stands; writes nothing."""
        for number, path in files:
            item = self._open(number, path)
            if item is None:
                continue
            header, file, _ = item
            try:
                end = FILE_HEADER_SIZE_BYTES
                for block in self._blocks_of(header, file, path, None, None):
                    self._apply(block, header.number, block.body_offset)
                    end = block.end
                self.outcome.sealed.append(SealedFile(number, header.kind, end))
                if header.kind is FileKind.JOURNAL:
                    self.outcome.predecessor = Predecessor(number, header.nonce, end)
            finally:
                file.close()
        return self.outcome

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
            # The name is given only after the header is durable, so this is damage.
            self.outcome.corrupt.append(f"{path}: {error}")
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
    ) -> None:
        end = FILE_HEADER_SIZE_BYTES
        if mark is not None and mark.file_number == header.number:
            end = mark.offset
        for block in self._blocks_of(header, file, path, mark, following):
            self._keep(block)
            end = block.end
        self.outcome.sealed.append(SealedFile(header.number, FileKind.JOURNAL, end))
        self.outcome.predecessor = Predecessor(header.number, header.nonce, end)

    def _blocks_of(
        self,
        header: FileHeader,
        file: File,
        path: str,
        mark: Mark | None,
        following: tuple[FileHeader, File, str] | None,
    ) -> Iterator[ScannedBlock]:
        """Valid blocks; damage to durable ones is noted and stepped over."""
        offset, sequence, mark_offset = FILE_HEADER_SIZE_BYTES, 0, None
        if mark is not None and mark.file_number == header.number:
            offset, sequence, mark_offset = mark.offset, mark.sequence, mark.offset
            if mark.nonce != header.nonce:
                self.outcome.corrupt.append(f"{path} is not the file that the mark names")
                offset, sequence, mark_offset = FILE_HEADER_SIZE_BYTES, 0, None
        if mark_offset is not None and file.size() < mark_offset:
            self.outcome.corrupt.append(f"{path} ends before the mark")
            return
        while True:
            for block in blocks(file, header, offset, sequence):
                offset, sequence = block.end, block.header.sequence
                self.outcome.sequence = max(self.outcome.sequence, sequence)
                self.outcome.blocks += 1
                yield block
            if not self._was_durable(header, file, offset, sequence, mark_offset, following):
                return
            self.outcome.corrupt.append(f"{path} is damaged at offset {offset}")
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
        )
        return judge(evidence).verdict is Verdict.CORRUPT

    def _keep(self, block: ScannedBlock) -> None:
        """Write the block's records to the log and remember where they are now."""
        body, skipped, records = block.body, 0, block.header.record_count
        if not records:
            return
        first = next(parse_records(memoryview(body), records), None)
        if first is not None and isinstance(first[1], LinkRecord):
            # The link says something about the journal file, not about its data.
            skipped = LINK_RECORD_SIZE_BYTES
            records -= 1
        if not records:
            return
        number, body_offset = self._log.write(body[skipped:] if skipped else body, records)
        self._apply(block, number, body_offset - skipped)

    def _apply(self, block: ScannedBlock, number: int, body_offset: int) -> None:
        for _, record in parse_records(memoryview(block.body), block.header.record_count):
            self._apply_record(record, number, body_offset)

    def _apply_record(self, record: Record, number: int, body_offset: int) -> None:
        if isinstance(record, LinkRecord):
            return
        if isinstance(record, EntriesRecord):
            self._apply_entries(record, number, body_offset)
            return
        state = self._state(record.ledger_id)
        match record:
            case LedgerRecord() | FenceRecord():
                if state.key_digest is None:
                    state.key_digest = record.key
                if isinstance(record, FenceRecord):
                    state.fenced = state.fence_durable = True
            case LacRecord():
                state.take_lac(record.packet)
            case DeletedRecord():
                state.deleted_at_ms = record.deleted_at_ms
            case LimboRecord():
                state.limbo = record.in_limbo
                state.fenced = state.fence_durable = state.fenced or record.in_limbo

    def _apply_entries(self, record: EntriesRecord, number: int, body_offset: int) -> None:
        state = self._state(record.batch.ledger_id)
        run = Run(record.batch)
        runs = self.outcome.generation.append(state.ledger_id, run)
        runs.written(run, number, body_offset + record.payload_offset)
        state.saw_entries(run.first, run.last)
        _, _, lacs, _ = headers_of(record.batch)
        state.max_lac = max(state.max_lac, int(lacs.max()))
        self.outcome.entries += record.batch.count

    def _state(self, ledger_id: int) -> LedgerState:
        state = self.outcome.states.get(ledger_id)
        if state is None:
            # An unknown ledger is created, never skipped: skipping would lose its entries.
            row: LedgerIndexRow | None = self._load_row(ledger_id)
            state = LedgerState(ledger_id, row)
            state.exists = state.journaled = True
            self.outcome.states[ledger_id] = state
        return state


def _names(link: LinkRecord, header: FileHeader) -> bool:
    return link.predecessor_number == header.number and link.predecessor_nonce == header.nonce


class _LogWriter:
    """Writes blocks into entry logs that get their names only once everything is synced."""

    def __init__(
        self,
        environment: Environment,
        next_number: Callable[[], int],
        directory: str,
        alignment: int,
        log_bytes_max: int,
    ) -> None:
        self._env = environment
        self._next_number = next_number
        self._directory = directory
        self._alignment = alignment
        self._log_bytes_max = log_bytes_max
        self._file: File | None = None
        self._header: FileHeader | None = None
        self._end = 0
        self._sequence = 0
        self._finished: list[tuple[FileHeader, int]] = []
        self.sealed: list[SealedFile] = []

    def write(self, body: bytes, records: int) -> tuple[int, int]:
        """Append one block; returns the file's number and where `body` begins in it."""
        size = block_size_on_disk(len(body), self._alignment)
        if self._file is None or self._end + size > self._log_bytes_max:
            self._next_file()
        assert self._file is not None
        assert self._header is not None
        self._sequence += 1
        nonce = self._header.nonce
        header = encode_block_header(
            nonce,
            BlockHeader(
                sequence=self._sequence,
                # The file is published only when all of it is durable.
                durable_upto=self._end,
                body_length=len(body),
                record_count=records,
                body_crc=body_crc(nonce, self._sequence, [body]),
            ),
        )
        tail = padding(BLOCK_HEADER_SIZE_BYTES + len(body), self._alignment)
        self._file.pwritev([header, body, tail], self._end)
        where = self._end + BLOCK_HEADER_SIZE_BYTES
        self._end += size
        return self._header.number, where

    def finish(self) -> list[tuple[int, str]]:
        """Sync and publish everything; returns numbers and paths."""
        self._close_file()
        logs = []
        for header, end in self._finished:
            publish_file(self._env.disk, self._directory, header)
            self.sealed.append(SealedFile(header.number, FileKind.ENTRY_LOG, end))
            path = os.path.join(self._directory, file_name(header.kind, header.number))
            logs.append((header.number, path))
        return logs

    def _next_file(self) -> None:
        self._close_file()
        self._header = FileHeader(
            FileKind.ENTRY_LOG, self._next_number(), self._env.clock.nonce(), self._alignment
        )
        self._file = create_file(self._env.disk, self._directory, self._header, 0, publish=False)
        self._end = FILE_HEADER_SIZE_BYTES
        self._sequence = 0

    def _close_file(self) -> None:
        if self._file is not None and self._header is not None:
            self._file.fdatasync()
            self._file.close()
            self._finished.append((self._header, self._end))
            self._file = None
