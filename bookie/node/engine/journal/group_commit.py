"""The journal: one thread commits all queued requests as a group.

The thread writes one block with all queued requests, syncs the file once, and reports one
completion to the event loop. While the thread waits for the device, requests for the next block
gather in the queue. Requests are written in the order of submission, so a fence follows all earlier
requests.

The kind and the flag `synced` of a request decide when the request is complete:

=========  ================  =================================================================
kind       synced            complete when
=========  ================  =================================================================
APPEND     yes               the records are durable
APPEND     no                the records are written (readable, not durable)
FORCE      any               all requests submitted before this request are durable
BARRIER    any               as FORCE; the last request of its block; `mark` is the block's end
MARKER     any               as FORCE; a block is written after a sync, even without records
ROLL       any               as FORCE; later requests go into a new file, if there is room
=========  ================  =================================================================

Only an fdatasync of the file advances `durable_upto`. A failed write or sync is not repeated: the
thread ends, the engine stops answering, and the process exits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass, field

from bookie.config import StorageSettings
from bookie.env import Buffer, Environment, File, is_disk_full
from bookie.errors import BookieError, DiskFullError
from bookie.node.engine.files import BlockFile, SealedFile, create_file, file_name
from bookie.node.engine.format.blocks import (
    ALIGNMENTS_BYTES,
    BLOCK_HEADER_SIZE_BYTES,
    FILE_HEADER_SIZE_BYTES,
    FileHeader,
    FileKind,
    block_size_on_disk,
)
from bookie.node.engine.format.index_rows import Mark
from bookie.node.engine.format.records import LinkRecord, encode_link
from bookie.telemetry import Metrics

_LARGEST_ALIGNMENT_BYTES = 3 * max(ALIGNMENTS_BYTES)

_BESIDE_RECORDS_BYTES_MAX = 2 * _LARGEST_ALIGNMENT_BYTES
"""An upper bound of the room for a block without its records: header, link and padding of the
block, its idle marker and the spare room."""

BUFFERS_PER_BLOCK_MAX = 1000
"""The largest number of buffers of requests in a block. With header, link, padding and zeros, a
block has fewer buffers than IOV_MAX (1024), so one system call writes it."""

SMALL_FILES_BYTES = (16 * 1024 * 1024, 1024 * 1024, 64 * 1024)
"""The sizes of a new journal file to try, in this order, on a full device; fences need little
room."""


SMALL_BLOCK_BYTES_MAX = 16 * 1024
"""The size of the largest block behind which zeros are written; few larger blocks fit into them."""

_ZEROS = bytes(64 * 1024)


class RequestKind(enum.Enum):
    """The kinds of requests to the journal."""

    APPEND = enum.auto()
    FORCE = enum.auto()
    BARRIER = enum.auto()
    MARKER = enum.auto()
    ROLL = enum.auto()


_APPEND = RequestKind.APPEND


@dataclass(slots=True, eq=False)
class JournalRequest:
    """A request to append records, or to wait for durability.

    The event loop creates the request, and gets the request back when it is complete. From the
    submission to the completion, only the journal thread uses the request.
    """

    kind: RequestKind
    complete: Callable[[JournalRequest], None]
    """The event loop calls this once the request is done or refused."""
    buffers: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    records: int = 0
    synced: bool = True
    essential: bool = False
    """True if the request (a fence, a recovery add) may use the reserve of a full device."""
    introduces: bool = False
    """True if the request begins with the LEDGER record of its ledger."""
    submitted_at: float = 0.0
    file_number: int = 0
    offset: int = 0
    """The offset of the request's first record in the file."""
    mark: Mark | None = None
    """For a BARRIER, the end of its block; None for other kinds of requests."""
    error: BookieError | None = None
    """The error if the request was refused, or if the engine failed.

    No record of a refused request was written. If the engine failed, the records may have been
    written.
    """


@dataclass(slots=True, eq=False)
class BlockFigures:
    """Times and sizes of one block."""

    queue_seconds: float = 0.0
    """The time from the submission of the oldest request until the journal thread took it."""
    requests: int = 0
    record_bytes: int = 0
    write_seconds: float = 0.0
    written_bytes: int = 0
    sync_seconds: float | None = None
    """The total time of the syncs; None without a sync."""

    def note(self, metrics: Metrics, handback_seconds: float) -> None:
        """Update the metrics; the report took `handback_seconds` to reach the event loop."""
        metrics.journal_handback_seconds.observe(handback_seconds)
        metrics.journal_queue_seconds.observe(self.queue_seconds)
        metrics.journal_group_requests.observe(self.requests)
        metrics.journal_group_bytes.observe(self.record_bytes)
        if self.written_bytes:
            metrics.journal_write_seconds.observe(self.write_seconds)
            metrics.journal_bytes_total.inc(self.written_bytes)
        if self.sync_seconds is not None:
            metrics.journal_sync_seconds.observe(self.sync_seconds)


@dataclass(slots=True, eq=False)
class BlockDone:
    """Reports that a block is complete: its requests, and changes of the journal files."""

    requests: list[JournalRequest]
    finished_at: float
    file_number: int
    """The number of the current journal file; all journal files before it are durable."""
    durable_upto: int
    """The offset up to which the current journal file is durable."""
    rolled: tuple[SealedFile, ...] = ()
    """Journal files that were completed since the previous report: they get no more blocks."""
    created: tuple[tuple[int, str], ...] = ()
    """Number and path of each journal file that was created since the previous report."""
    figures: BlockFigures = field(default_factory=BlockFigures)
    """Times and sizes of the block, from which the event loop updates the metrics."""


@dataclass(slots=True, kw_only=True)
class _OpenJournal(BlockFile):
    path: str
    size_bytes: int
    """The allocated size in bytes; a write within this size needs no new space."""
    durable_upto: int = FILE_HEADER_SIZE_BYTES
    waits_for_first_block: bool = False
    """True from a roll until the first block in the new file; meanwhile the file keeps its room."""
    zeros_upto: int = 0
    """The offset up to which small blocks replace zeros that were written before."""
    synced_zeros_upto: int = 0
    in_place: bool = True
    """True if all blocks since the last sync replaced synced zeros."""

    def zeros_behind(self, end: int) -> bytes:
        """Return the zeros to write behind the next block, which ends at `end`.

        With each sync of a block in space that was never written, ext4 also commits its own
        journal, even if the space was allocated. A block that replaces zeros needs no such commit.
        So a small block in new space is written together with zeros for the next small blocks. The
        zeros double the written bytes of small blocks. Measured on ext4, 4 KiB a block: a sync
        takes 89 instead of 133 µs.
        """
        if end <= self.synced_zeros_upto:
            return b""
        self.in_place = False
        if end <= self.zeros_upto or end - self.end > SMALL_BLOCK_BYTES_MAX:
            return b""
        self.zeros_upto = min(end + len(_ZEROS), self.size_bytes)
        return _ZEROS[: self.zeros_upto - end]

    def sync(self) -> None:
        """Make all blocks durable."""
        self.file.fdatasync(in_place=self.in_place)
        self.durable_upto = self.end
        self.synced_zeros_upto = self.zeros_upto
        self.in_place = True


class JournalWriter:
    """Does the work of the journal thread; not thread-safe, so only that thread calls `handle`.

    `next_number` returns a new file number. `release_reserve` frees the space that is reserved for
    a full device. The journal thread calls both functions.
    """

    current: _OpenJournal
    """The journal file that gets the next block; `start` sets it."""

    def __init__(
        self,
        environment: Environment,
        settings: StorageSettings,
        next_number: Callable[[], int],
        release_reserve: Callable[[], None],
    ) -> None:
        self._env = environment
        self._settings = settings
        self._monotonic = environment.clock.monotonic
        self._next_number = next_number
        self._release_reserve = release_reserve
        self._link: bytes = b""
        self._rolled: list[SealedFile] = []
        self._created: list[tuple[int, str]] = []
        self._is_open = False
        self._figures = BlockFigures()
        """Times and sizes of the block that is being written."""

    def start(
        self, header: FileHeader, file: File, path: str, size_bytes: int, link: LinkRecord | None
    ) -> Mark:
        """Begin with a new journal file that has its final name; return the mark at its start.

        `size_bytes` of the file are allocated; the file grows up to `journal_file_bytes_max`. The
        first block will contain `link`, which names the preceding journal file.
        """
        self.current = _OpenJournal(file, header, path=path, size_bytes=size_bytes)
        self._is_open = True
        if link is not None:
            self._link = encode_link(*astuple(link))
        return Mark(header.number, FILE_HEADER_SIZE_BYTES, 0, header.nonce)

    def handle(self, items: list[JournalRequest], post: Callable[[BlockDone], None]) -> None:
        """Write all `items` in order, in as few blocks as the limits of a block allow."""
        if len(items) == 1:
            # Write a single append directly, because each step adds to its latency.
            self._commit(items, post)
            return
        block: list[JournalRequest] = []
        size, buffers = 0, 0
        for item in items:
            if block and (
                size + item.size_bytes > self._settings.block_bytes_max
                or buffers + len(item.buffers) > BUFFERS_PER_BLOCK_MAX
            ):
                self._commit(block, post)
                block, size, buffers = [], 0, 0
            block.append(item)
            size += item.size_bytes
            buffers += len(item.buffers)
            if item.kind is RequestKind.BARRIER:
                self._commit(block, post)
                block, size, buffers = [], 0, 0
        if block:
            self._commit(block, post)

    def close(self, *, in_order: bool = False) -> None:
        """Close the file and free its unused room; the worker must have ended.

        With `in_order`, the file is cut right after its last block, because the index records the
        orderly stop. Without `in_order`, some room stays after the last block. If this room were
        missing, a start would conclude that another file follows (see `_roll`).
        """
        if self._is_open:
            journal = self.current
            if journal.durable_upto == journal.end and not journal.waits_for_first_block:
                room = 0 if in_order else journal.header.alignment
                journal.file.truncate(max(journal.end, min(journal.end + room, journal.size_bytes)))
            journal.file.close()
            self._is_open = False

    def _commit(self, requests: list[JournalRequest], post: Callable[[BlockDone], None]) -> None:
        # Use one pass and few function calls, because each call delays a single append.
        self._figures = figures = BlockFigures(self._monotonic() - requests[0].submitted_at)
        size, synced, appends_only = _summary(requests)
        accepted = requests
        if size and not self._fits(size):
            accepted = self._make_room(requests)
            size, synced, appends_only = _summary(accepted)
        figures.requests, figures.record_bytes = len(accepted), size
        marker = not appends_only and self._takes_marker(accepted)
        if marker:
            self._sync()
        if size or marker:
            self._write(accepted, size)
        if synced:
            self._grow_ahead()
            self._sync()
        if not appends_only:
            self._carry_out(accepted)
        current = self.current
        done = BlockDone(
            requests,
            self._monotonic(),
            current.header.number,
            current.durable_upto,
            figures=figures,
        )
        if self._created:
            done.rolled, self._rolled = tuple(self._rolled), []
            done.created, self._created = tuple(self._created), []
        post(done)

    def _takes_marker(self, requests: list[JournalRequest]) -> bool:
        """True if a request asks for an idle marker, and the file has room for the marker."""
        journal = self.current
        needed = self._room_for(0) - journal.header.alignment
        return journal.end + needed <= journal.size_bytes and any(
            item.kind is RequestKind.MARKER for item in requests
        )

    def _carry_out(self, requests: list[JournalRequest]) -> None:
        """Complete the barriers and rolls in `requests`, whose block is durable."""
        journal = self.current
        for request in requests:
            if request.kind is RequestKind.BARRIER:
                request.mark = Mark(
                    journal.header.number, journal.end, journal.sequence, journal.header.nonce
                )
        if any(request.kind is RequestKind.ROLL for request in requests):
            # Without room for a new file, continue in the old file.
            with suppress(DiskFullError):
                self._roll(self._first_allocation(0))

    def _write(self, requests: list[JournalRequest], size: int) -> None:
        journal = self.current
        buffers: list[Buffer] = [self._link] if self._link else []
        records = len(buffers)
        position = journal.body_offset + len(self._link)
        for request in requests:
            request.file_number = journal.header.number
            request.offset = position
            position += request.size_bytes
            records += request.records
            buffers += request.buffers
        block = journal.encode(buffers, records, journal.durable_upto)
        hit, figures = self._env.failpoints.hit, self._figures
        hit("journal.before_write")
        began = self._monotonic()
        end = journal.end + block_size_on_disk(len(self._link) + size, journal.header.alignment)
        journal.write(block, journal.zeros_behind(end))
        figures.write_seconds += self._monotonic() - began
        hit("journal.after_write")
        figures.written_bytes += BLOCK_HEADER_SIZE_BYTES + len(self._link) + size
        self._link = b""
        journal.waits_for_first_block = False

    def _sync(self) -> None:
        journal = self.current
        if journal.durable_upto == journal.end:
            return
        hit = self._env.failpoints.hit
        hit("journal.before_sync")
        began = self._monotonic()
        journal.sync()
        took = self._monotonic() - began
        self._figures.sync_seconds = took + (self._figures.sync_seconds or 0.0)
        hit("journal.after_sync")

    def _make_room(self, requests: list[JournalRequest]) -> list[JournalRequest]:
        """Extend the file or begin a new file; return requests that fit, refuse other requests."""
        try:
            self._grow(requests)
        except DiskFullError as error:
            for request in requests:
                if request.size_bytes and not request.essential:
                    request.error = error
            essential = [request for request in requests if request.error is None]
            return self._make_room_from_reserve(essential)
        return requests

    def _make_room_from_reserve(self, requests: list[JournalRequest]) -> list[JournalRequest]:
        size = sum(request.size_bytes for request in requests)
        if not size or self._fits(size):
            return requests
        self._release_reserve()
        needed = sum(map(_size_on_disk_max, requests))
        full = DiskFullError("no room for a new journal file")
        for size in SMALL_FILES_BYTES:
            if FILE_HEADER_SIZE_BYTES + needed > size:
                break
            try:
                self._roll(size)
            except DiskFullError as error:
                full = error
            else:
                return requests
        for request in requests:
            if request.size_bytes:
                request.error = full
        return [request for request in requests if request.error is None]

    def _fits(self, size: int) -> bool:
        journal = self.current
        left = journal.size_bytes - journal.end
        return size + _BESIDE_RECORDS_BYTES_MAX <= left or self._room_for(size) <= left

    def _room_for(self, size: int) -> int:
        """Return the room for a block with `size` bytes of records, and for two small blocks.

        The first small block is an idle marker, which must always fit. The room for the second
        small block stays empty, and shows a later start that this file is the last file.
        """
        alignment = self.current.header.alignment
        return block_size_on_disk(size + len(self._link), alignment) + 2 * alignment

    def _grow(self, requests: list[JournalRequest]) -> None:
        """Allocate more space for the file, or begin a new file if this file has its full size.

        The file grows in steps, because other files cannot use allocated space. The new size is
        durable before a block uses the new space. So no crash can leave a file that ends inside a
        block, or right after its last block.

        Raises:
            DiskFullError: there is no room; the file is unchanged.
        """
        journal = self.current
        needed = self._room_for(sum(request.size_bytes for request in requests))
        limit = self._settings.journal_file_bytes_max
        if journal.end + needed > limit:
            self._roll(self._first_allocation(needed + _LARGEST_ALIGNMENT_BYTES))
            return
        step = self._settings.journal_allocate_bytes
        self._allocate(min(max(journal.size_bytes + step, journal.end + needed), limit))
        journal.sync()

    def _grow_ahead(self) -> None:
        """Allocate the next step early, so that the next sync also makes the file size durable."""
        journal = self.current
        limit = self._settings.journal_file_bytes_max
        wanted = journal.end + self._settings.block_bytes_max + _LARGEST_ALIGNMENT_BYTES
        if journal.size_bytes < min(wanted, limit) and journal.durable_upto < journal.end:
            # On a full device the file keeps its size; the file still has some room.
            with suppress(DiskFullError):
                step = self._settings.journal_allocate_bytes
                self._allocate(min(journal.size_bytes + step, limit))

    def _allocate(self, size: int) -> None:
        journal = self.current
        try:
            journal.file.allocate(journal.size_bytes, size - journal.size_bytes)
        except OSError as error:
            if not is_disk_full(error):
                raise
            journal.file.truncate(journal.size_bytes)
            raise DiskFullError("no room for the journal to grow") from error
        journal.size_bytes = size
        journal.in_place = False

    def _first_allocation(self, needed: int) -> int:
        """Return the initial size of a new file that has room for `needed` bytes of blocks.

        A block that is too large for a normal file gets a larger file, which holds only this block.
        """
        settings = self._settings
        step = min(settings.journal_allocate_bytes, settings.journal_file_bytes_max)
        return max(step, FILE_HEADER_SIZE_BYTES + needed)

    def _roll(self, size_bytes: int) -> None:
        """Begin a new file; the old file is durable before the new file gets a record.

        First the new file gets its final name. Then the old file is cut right after its last block,
        durably. So a later start knows that another file follows, even if that file was lost.
        """
        self._env.failpoints.hit("journal.before_roll")
        old = self.current
        number = self._next_number()
        header = FileHeader(FileKind.JOURNAL, number, self._env.clock.nonce(), old.header.alignment)
        directory = str(self._settings.journal_dir)
        file = create_file(self._env.disk, directory, header, size_bytes)
        self._env.failpoints.hit("journal.after_create")
        self._sync()
        # Free the allocated space that no block used.
        old.file.truncate(old.end)
        old.file.fdatasync()
        old.file.close()
        path = journal_path(directory, number)
        self.current = _OpenJournal(
            file,
            header,
            sequence=old.sequence,
            path=path,
            size_bytes=size_bytes,
            waits_for_first_block=True,
        )
        self._link = encode_link(old.header.number, old.header.nonce, old.end)
        self._rolled.append(SealedFile(old.header.number, FileKind.JOURNAL, old.end))
        self._created.append((number, path))
        self._env.failpoints.hit("journal.after_roll")


def _summary(requests: list[JournalRequest]) -> tuple[int, bool, bool]:
    """Return the total size of the records, "a sync is needed", and "all requests are appends"."""
    size, synced, appends_only = 0, False, True
    for request in requests:
        size += request.size_bytes
        synced = synced or request.synced
        appends_only = appends_only and request.kind is _APPEND
    return size, synced, appends_only


def _size_on_disk_max(request: JournalRequest) -> int:
    """Return an upper bound of the room for `request`, with header, link and padding."""
    return request.size_bytes + _LARGEST_ALIGNMENT_BYTES


def journal_path(directory: str, number: int) -> str:
    """Return the path of a journal file."""
    return f"{directory}/{file_name(FileKind.JOURNAL, number)}"
