"""Writes the log of a compaction: entries sorted by ledger and id, in large records.

The log is an entry log like the log that a start writes. The log's first record is a LINK to the
newest file from which the log took entries. A rebuild reads the log right after the file that the
LINK names. Journals with numbers between this file and the log may hold newer copies of entries, so
they are read later. The log also records the ledgers' keys, fences, limbo, explicit LACs and
deletions.

A log gets its final name once all of its content is durable. A start removes a log that has no row
in the index.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from bookie.entry.batch import EntryBatch, batch_of
from bookie.entry.checksum import crc32c
from bookie.env import Buffer, Disk, Environment, is_disk_full
from bookie.errors import DiskFullError, FormatError
from bookie.node.engine.entry_log import state_records
from bookie.node.engine.files import (
    TEMPORARY_SUFFIX,
    BlockFile,
    create_file,
    file_name,
    publish_file,
    read_header,
)
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES, FileHeader, FileKind
from bookie.node.engine.format.index_rows import LedgerIndexRow
from bookie.node.engine.format.records import encode_entries_head, encode_link
from bookie.node.engine.index.relocation import MovedEntries, Relocation
from bookie.node.engine.reclaim.live_scan import LiveEntries, gather
from bookie.node.engine.scan import link_of

RECORD_PAYLOAD_BYTES_MAX = 1024 * 1024
RECORD_ENTRIES_MAX = 16 * 1024
BLOCK_BYTES = 1024 * 1024
"""A block ends with the record that reaches this size; one step writes one block."""

BLOCKS_PER_SYNC = 2
"""The number of blocks between two syncs of the log; one long sync would delay the journal's
syncs."""

STATE_BYTES_MAX = 192
"""An upper bound of the bytes of `state_records` for one ledger, without its LAC packet."""

_NO_NONCE = bytes(16)


@dataclass(frozen=True, slots=True)
class LiveScan:
    """Live entries and ledger rows for one log, found by scans of some files."""

    order: int
    """The number of the newest file from which entries were taken."""
    live: Sequence[LiveEntries]
    rows: Sequence[tuple[int, LedgerIndexRow]]
    """Ids and rows of the ledgers whose state must survive the removal of the old files."""

    @property
    def size_bytes_max(self) -> int:
        """An upper bound of the log's size, in bytes."""
        payload = sum(len(item.batch.payload) + 12 * item.batch.count for item in self.live)
        states = sum(STATE_BYTES_MAX + len(row.lac_packet) for _, row in self.rows)
        return FILE_HEADER_SIZE_BYTES + (payload + states + 256 * len(self.live)) * 33 // 32 + 65536


class CompactionLog:
    """Writes one log: `steps` does the work, then `relocation` is the change for the index."""

    def __init__(
        self, environment: Environment, directory: str, number: int, alignment: int
    ) -> None:
        self._env = environment
        self._directory = directory
        self._header = FileHeader(FileKind.ENTRY_LOG, number, environment.clock.nonce(), alignment)
        self._size_bytes = 0
        self._body: list[Buffer] = []
        self._body_bytes = 0
        self._records = 0
        self._moved: list[MovedEntries] = []
        self._deleted: list[int] = []

    @property
    def path(self) -> str:
        return os.path.join(self._directory, file_name(FileKind.ENTRY_LOG, self._header.number))

    @property
    def relocation(self) -> Relocation:
        """The change of the index; complete once all steps are done."""
        number, path = self._header.number, self.path
        return Relocation(number, path, self._size_bytes, self._moved, self._deleted)

    def steps(self, scanned: LiveScan) -> Generator[int, None, None]:
        """Write, sync and publish the log; yield the number of written bytes after each step.

        Each step blocks. If the generator fails, or is closed before the log is published, the
        generator removes the file.

        Raises:
            DiskFullError: there is no room for the log.
            OSError: the device failed.
        """
        disk = self._env.disk
        self._env.failpoints.hit("compaction.before_write")
        file = create_file(
            disk, self._directory, self._header, scanned.size_bytes_max, publish=False
        )
        published = False
        try:
            written = BlockFile(file, self._header)
            for blocks, size in enumerate(self._blocks(written, scanned), 1):
                if blocks % BLOCKS_PER_SYNC == 0:
                    file.fdatasync()
                yield size
            self._size_bytes = written.end
            file.truncate(written.end)
            file.fdatasync()
            self._env.failpoints.hit("compaction.after_log_written")
            publish_file(disk, self._directory, self._header)
            published = True
            self._env.failpoints.hit("compaction.after_log_renamed")
        except OSError as error:
            if is_disk_full(error):
                raise DiskFullError("no room for the log of a compaction") from error
            raise
        finally:
            file.close()
            if not published:
                disk.unlink(self.path + TEMPORARY_SUFFIX)

    def _blocks(self, file: BlockFile, scanned: LiveScan) -> Iterator[int]:
        self._add([encode_link(scanned.order, _NO_NONCE, 0)], 1)
        for ledger_id, row in scanned.rows:
            if row.deleted_at_ms is not None:
                self._deleted.append(ledger_id)
            records = state_records(ledger_id, row)
            self._add(records, len(records))
            if self._body_bytes >= BLOCK_BYTES:
                yield self._write(file)
        for batch, files, places in sorted_batches(scanned.live):
            self._entries(batch, files, places, file.body_offset)
            if self._body_bytes >= BLOCK_BYTES:
                yield self._write(file)
        if self._body:
            yield self._write(file)

    def _entries(
        self, batch: EntryBatch, files: np.ndarray, places: np.ndarray, body_offset: int
    ) -> None:
        head = encode_entries_head(batch, crc32c(batch.payload), recovery=False)
        sizes = np.asarray(batch.sizes, np.uint32)
        begin = body_offset + self._body_bytes + len(head)
        offsets = np.cumsum(sizes, dtype=np.int64) - sizes + begin
        self._moved.append(
            MovedEntries(
                batch.ledger_id, batch.entry_ids(), files, places, sizes, offsets.astype(np.uint32)
            )
        )
        self._add([head, batch.payload], 1)

    def _add(self, buffers: Sequence[Buffer], records: int) -> None:
        self._body += buffers
        self._body_bytes += sum(map(len, buffers))
        self._records += records

    def _write(self, file: BlockFile) -> int:
        # The whole block counts as durable, because the log gets its name only after a sync.
        size = file.write(file.encode(self._body, self._records, file.end))
        self._body, self._body_bytes, self._records = [], 0, 0
        return size


def sorted_batches(
    live: Iterable[LiveEntries],
) -> Iterator[tuple[EntryBatch, np.ndarray, np.ndarray]]:
    """Yield a batch for each record, sorted by ledger and id, with the entries' old places.

    The id ranges of the items in `live` may overlap, but no id is in two items.
    """
    ordered = sorted(live, key=lambda item: (item.batch.ledger_id, item.batch.first_entry_id))
    at = 0
    while at < len(ordered):
        end, size = at + 1, len(ordered[at].batch.payload)
        last = ordered[at].batch.last_entry_id
        while end < len(ordered) and ordered[end].batch.ledger_id == ordered[at].batch.ledger_id:
            batch = ordered[end].batch
            if batch.first_entry_id > last and size + len(batch.payload) > RECORD_PAYLOAD_BYTES_MAX:
                break
            last, size = max(last, batch.last_entry_id), size + len(batch.payload)
            end += 1
        yield from _records(ordered[at:end])
        at = end


def _records(items: list[LiveEntries]) -> Iterator[tuple[EntryBatch, np.ndarray, np.ndarray]]:
    """Merge the items of one ledger into one batch, and cut it into records."""
    ids = np.concatenate([item.batch.entry_ids() for item in items])
    files = np.concatenate([np.full(item.batch.count, item.file, np.uint32) for item in items])
    places = np.concatenate([item.offsets for item in items])
    sizes = np.concatenate([np.asarray(item.batch.sizes, np.uint32) for item in items])
    payload: bytes | memoryview = items[0].batch.payload
    if len(items) > 1:
        payload = b"".join([item.batch.payload for item in items])
    if not bool((ids[1:] > ids[:-1]).all()):
        order = np.argsort(ids, kind="stable")
        starts = np.cumsum(sizes, dtype=np.int64) - sizes
        payload = gather(payload, starts[order], sizes[order])
        ids, files, places, sizes = ids[order], files[order], places[order], sizes[order]
    whole = batch_of(items[0].batch.ledger_id, ids, sizes, payload)
    start = 0
    for batch in whole.split(RECORD_ENTRIES_MAX, RECORD_PAYLOAD_BYTES_MAX):
        part = slice(start, start + batch.count)
        yield batch, files[part], places[part]
        start += batch.count


def order_of(disk: Disk, number: int, path: str) -> int:
    """Return the number of the newest file whose entries this file holds.

    For an entry log, this is the file that its LINK names; otherwise it is the file itself.
    """
    with closing(disk.open(path)) as file:
        try:
            header = read_header(file)
            link = link_of(file, header) if header.kind is FileKind.ENTRY_LOG else None
        except FormatError:
            # The header or LINK is damaged: the scan of the file will report that.
            link = None
    return number if link is None else link.predecessor_number
