"""The scrubber reads all indexed data, slowly and repeatedly, to find damage early.

One pass reads the files, in the order of their numbers, and the index. In files, the pass checks
the checksums of blocks and of request payloads, and the ids in packets. In the index, the pass
checks the checksums of pages and ledger rows, and that slots point inside their files. A pass
bypasses the page cache if the file system allows this. A pass reads at a limited rate, in steps of
a worker thread.

Damage that a pass finds is reported once and recorded in the index. The bookie is then in doubt.
The doubt ends when an integrity check finds that, by metadata, this bookie need not store any entry
in a damaged place. A later pass removes the record of the damage if the place is sound or the file
is gone. `Scrubber.settle` removes the record if the index no longer points into the damaged place.
So the record is removed after the damaged entries are copied back from other bookies, or after a
compaction removes the file. The scrubber does not verify the digests of entries; clients and the
integrity check verify digests.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import truediv
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from bookie.config import StorageSettings
from bookie.entry.checksum import crc32c
from bookie.env import Buffer, Environment, File, Pause
from bookie.errors import CorruptionError, DiskFullError
from bookie.node.engine.files import FileTable, read_header
from bookie.node.engine.format.arrays import Ids, distinct
from bookie.node.engine.format.blocks import FILE_HEADER_SIZE_BYTES, FileHeader
from bookie.node.engine.format.index_rows import FileState, decode_ledger_row, parse_ledger_key
from bookie.node.engine.format.pages import COLUMNS, SLOTS_PER_PAGE, decode_pages, parse_page_key
from bookie.node.engine.index.entry_index import INTEGRITY_IN_LIMBO, INTEGRITY_SOUND, META_INTEGRITY
from bookie.node.engine.index.page_reads import behind, some_of, sound_slots, values_of
from bookie.node.engine.integrity import Integrity
from bookie.node.engine.scan import BlockGroup, grouped, next_valid, runs
from bookie.telemetry import Metrics, event_log

R = TypeVar("R")

_log = event_log(__name__)

META_DAMAGE = b"damage/"
"""The ``meta`` prefix of damage records: the name holds file and offset, the value describes it."""
META_POSITION = b"scrubbed"
"""The place at which the next pass continues: file, offset, sequence number of the block before
it."""

_DAMAGE_KEY = struct.Struct(">IQ")
_POSITION = struct.Struct("<IQQ")
ALIGNMENT_BYTES = 4096
"""Reads that bypass the page cache begin and end at multiples of this number."""
STEP_BYTES = 1024 * 1024
"""The number of bytes to read at once; a step needs memory for these bytes and for one block."""
REMEMBER_BYTES = 64 * 1024 * 1024
"""The largest number of bytes that a pass reads again after a restart."""
NOW_BYTES_PER_SECOND = 64 * 1024 * 1024
"""The lowest rate of a pass that an operator requested."""
IDLE_SECONDS = 60.0
"""The pause between two passes; also the pause between checks while scrubbing is off."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One damaged place; in the index, `file` is 0 and `offset` is the CRC32C of the key."""

    file: int
    offset: int
    what: str
    end: int = 0
    """The end of the damaged bytes, in which entries may lie; 0 for a place without entries."""

    @property
    def key(self) -> tuple[int, int]:
        return self.file, self.offset


@dataclass(slots=True)
class ScrubReport:
    """The number of passes, and the files, bytes and pages read in the current or last pass."""

    passes: int = 0
    files: int = 0
    bytes: int = 0
    pages: int = 0


@dataclass(slots=True)
class _Step:
    """The bytes that one step read, and the damage that it found."""

    size_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    end: int = 0
    sequence: int = 0
    """The sequence number of the last block that was read."""


class Scrubber:
    """Makes scrub passes: its task runs in the event loop, its steps in a worker thread."""

    def __init__(
        self,
        environment: Environment,
        settings: StorageSettings,
        metrics: Metrics,
        files: FileTable,
        integrity: Integrity,
    ) -> None:
        self._env = environment
        self._settings = settings
        self._metrics = metrics
        self._index = integrity.index
        self._files = files
        self._integrity = integrity
        self._idle, self._rest, self._again = Pause(), Pause(), Pause()
        self._asked = False
        self._now = False
        self._read_since = 0
        self._ends: dict[int, int] = {}
        self._spans: dict[tuple[int, int], Finding] = {}
        """The findings in files that this process made or read again, so their ends are known."""
        self._without_entries: dict[tuple[int, int], int] = {}
        """The ends of damaged places to which the index does not point.

        The index will never point to these places, because new entries have new places. The damage
        may grow.
        """
        self.running = False
        self.report = ScrubReport()
        self.findings: dict[tuple[int, int], str] = {
            _DAMAGE_KEY.unpack(key): value.decode(errors="replace")
            for key, value in values_of(integrity.index.store, META_DAMAGE)
            if len(key) == _DAMAGE_KEY.size
        }

    @property
    def damage(self) -> frozenset[tuple[int, int, int]]:
        """The damaged places: file, offset and end; an unknown end is 0."""
        spans = self._spans
        return frozenset((*key, spans[key].end if key in spans else 0) for key in self.findings)

    # --- for operators -------------------------------------------------------------------

    def start(self) -> None:
        """Start a pass over all data now, at a rate of at least `NOW_BYTES_PER_SECOND`."""
        self._now = self._asked = True
        self._idle.end()
        self._rest.measure_again()

    @property
    def settings(self) -> StorageSettings:
        """The settings, which may be replaced at any time. If the rate was 0, a pass may begin."""
        return self._settings

    @settings.setter
    def settings(self, settings: StorageSettings) -> None:
        was_off, self._settings = not self._settings.scrub_bytes_per_second, settings
        self._rest.measure_again()
        if was_off and not self.running:
            self._idle.end()

    def status(self) -> dict[str, object]:
        """Return the damaged places and the report; `running` is True during a requested pass."""
        return {
            "needed": bool(self.findings),
            "running": self._now,
            "report": asdict(self.report) | {"damage": list(self.findings.values())},
        }

    # --- the task ------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Make passes until cancelled; a thread may then still complete the current step."""
        while True:
            self._asked = False
            self._idle.clear()
            if self._now or self._settings.scrub_bytes_per_second:
                await self.scrub()
                self._now = self._asked
            await self._idle.wait(lambda: IDLE_SECONDS)

    async def scrub(self) -> None:
        """Make one pass; continue an interrupted pass, except after a call of `start`.

        Raises:
            StorageFailedError: the index could not be written; the process must end.
        """
        resumed = b"" if self._now else await self._run(self._position)
        self.running = True
        passes = self.report.passes
        self.report = ScrubReport(passes)
        self._ends = {}
        number, offset, sequence = 0, 0, 0
        if len(resumed) == _POSITION.size:
            number, offset, sequence = _POSITION.unpack(resumed)
        try:
            for file in await self._run(self._file_numbers):
                if file < number:
                    continue
                at = (offset, sequence) if file == number else (FILE_HEADER_SIZE_BYTES, 0)
                await self._scrub_file(file, *at)
            await self._scrub_index()
            await self.settle()
            await self._forget([key for key in self.findings if not self._is_there(key[0])])
            await self._put({META_POSITION: b""})
            self.report.passes = passes + 1
            self._metrics.scrub_passes_total.inc()
        except (CorruptionError, OSError) as error:
            # A file row or the mark of the index is unreadable. Other damage is a finding, not an
            # error.
            _log.warning("scrub_stopped", reason=str(error))
        finally:
            self.running = False

    def _position(self) -> bytes:
        position: bytes = self._index.meta(META_POSITION) or b""
        return position

    def _file_numbers(self) -> list[int]:
        return [number for number in self._index.files() if self._is_there(number)]

    def _is_there(self, number: int) -> bool:
        return number == 0 or self._files.path(number) is not None

    async def _scrub_file(self, number: int, offset: int, sequence: int) -> None:
        """Check one file from `offset` on, up to its indexed size."""
        steps = self._file_steps(number, offset, sequence)
        found: set[tuple[int, int]] = set()
        while (step := await self._run(lambda: next(steps, None))) is not None:
            found |= {item.key for item in step.findings}
            self._ends[number] = max(step.end, self._ends.get(number, 0))
            await self._take(step)
            await self._remember(number, step)
        if offset == FILE_HEADER_SIZE_BYTES:
            known = [key for key in self.findings if key[0] == number and key not in found]
            await self._forget(known)
        self.report.files += 1

    def _file_steps(self, number: int, offset: int, sequence: int) -> Iterator[_Step]:
        row = self._index.files().get(number)
        mark = self._index.mark()
        path = self._files.path(number)
        if row is None or mark is None or path is None:
            return
        sealed = row.state is FileState.SEALED
        end = row.size_bytes if sealed else mark.offset if mark.file_number == number else 0
        try:
            file = _Uncached(self._env.disk.open(path))
        except FileNotFoundError:
            return
        try:
            yield from self._steps_of(number, file, offset, sequence, end)
        finally:
            file.close()

    def _steps_of(
        self, number: int, file: _Uncached, offset: int, sequence: int, end: int
    ) -> Iterator[_Step]:
        try:
            header = read_header(file)
        except (CorruptionError, OSError) as error:
            finding = Finding(number, 0, f"file {number}: {error}", end)
            yield _Step(FILE_HEADER_SIZE_BYTES, [finding])
            return
        while offset < end:
            step = _Step()
            try:
                for group in grouped(runs(file, header, offset, sequence, STEP_BYTES)):
                    step = _Step(group.end - offset, _check(number, group))
                    offset, sequence = group.end, group.sequence
                    step.end, step.sequence = offset, sequence
                    yield step
                    if offset >= end:
                        return
                if offset >= end or _is_blank(file, offset, end):
                    return
                what = f"file {number} is damaged at offset {offset}"
            except OSError as error:
                what = f"file {number} cannot be read at offset {offset}: {error}"
            following = _behind(file, header, offset, sequence)
            behind_it = end if following is None else following[0]
            step = _Step(0, [Finding(number, offset, what, behind_it)], offset, sequence)
            if following is None:
                yield step
                return
            step.size_bytes = following[0] - offset
            offset, sequence = step.end, step.sequence = following
            yield step

    async def _remember(self, number: int, step: _Step) -> None:
        self._read_since += step.size_bytes
        if self._read_since >= REMEMBER_BYTES and not self._now:
            self._read_since = 0
            await self._put({META_POSITION: _POSITION.pack(number, step.end, step.sequence)})

    async def _scrub_index(self) -> None:
        found: set[tuple[int, int]] = set()
        for read in (self._index_step, self._rows_step):
            start: bytes | None = b""
            while start is not None:
                step, start = await self._run(partial(read, start))
                found |= {item.key for item in step.findings}
                await self._take(step)
        # A damaged page or row becomes sound when a transaction writes the page or row again.
        await self._forget([key for key in self.findings if key[0] == 0 and key not in found])

    def _index_step(self, start: bytes) -> tuple[_Step, bytes | None]:
        """Check some index pages: each must be intact, and its slots must point inside files."""
        pairs, hidden = some_of(self._index.store, "locations", start)
        step = _Step(sum(len(value) for _, value in pairs))
        pages, damaged = sound_slots(pairs)
        self.report.pages += len(pairs)
        for key in damaged:
            what = f"page {key.hex()} of the index fails its checksum"
            step.findings.append(Finding(0, crc32c(key), what))
        for key in hidden:
            what = f"page {key.hex()} of the index is not found, though it is there"
            step.findings.append(Finding(0, crc32c(key), what))
        slots = pages.reshape(-1, 3)
        slots = slots[slots[:, 2] > 0]
        ends = slots[:, 1].astype(np.int64) + slots[:, 2]
        for number in distinct(slots[:, 0]).tolist():
            last = int(ends[slots[:, 0] == number].max())
            known = self._ends.get(number)
            if known is not None and last > known and self._is_sealed(number):
                what = f"the index points to {last} in file {number}, which ends at {known}"
                step.findings.append(Finding(number, known, what))
        return step, behind(pairs, start)

    def _rows_step(self, start: bytes) -> tuple[_Step, bytes | None]:
        """Check some rows of ledgers: each must be intact, and a look-up must find the row."""
        pairs, hidden = some_of(self._index.store, "ledgers", start)
        step = _Step(sum(len(value) for _, value in pairs))
        for key, value in pairs:
            try:
                decode_ledger_row(parse_ledger_key(key), value)
            except CorruptionError as error:
                step.findings.append(Finding(0, crc32c(key), f"{error} (key {key.hex()})"))
        for key in hidden:
            what = f"the ledger row {key.hex()} of the index is not found, though it is there"
            step.findings.append(Finding(0, crc32c(key), what))
        return step, behind(pairs, start)

    def _is_sealed(self, number: int) -> bool:
        row = self._index.files().get(number)
        return row is not None and row.state is FileState.SEALED

    # --- findings ------------------------------------------------------------------------

    async def _take(self, step: _Step) -> None:
        """Count the bytes of a step, report its new damage, and pause to limit the rate."""
        self.report.bytes += step.size_bytes
        self._metrics.scrub_bytes_total.inc(step.size_bytes)
        new = [item for item in step.findings if self._is_new(item)]
        self._spans |= {item.key: item for item in step.findings if item.end}
        alive = await self._with_entries(new)
        self._without_entries |= {item.key: item.end for item in new if item.key not in alive}
        for finding in new:
            if finding.key in alive:
                await self._report(finding.key, finding.what)
        await self._rest.wait(lambda: step.size_bytes / max(self._rate(), 1))

    def _is_new(self, finding: Finding) -> bool:
        key = finding.key
        known = self._spans.get(key)
        # The damage may have grown. The end of an earlier process's finding is unknown until this
        # process reads the place again.
        is_known = key in self.findings and (known is None or finding.end <= known.end)
        is_known = is_known or finding.end <= self._without_entries.get(key, -1)
        # A missing file was removed, not damaged.
        return not is_known and self._is_there(finding.file)

    async def settle(self) -> None:
        """Forget the findings in files if the index no longer points to their places.

        If an earlier process made a finding, its end is unknown, so its file is read again first.
        """
        files = {number for number, _ in self.findings.keys() - self._spans.keys() if number}
        for number in sorted(files):
            steps = self._file_steps(number, FILE_HEADER_SIZE_BYTES, 0)
            while (step := await self._run(partial(next, steps, None))) is not None:
                self._spans |= {item.key: item for item in step.findings if item.end}
                await self._again.wait(partial(truediv, step.size_bytes, NOW_BYTES_PER_SECOND))
        known = [self._spans[key] for key in self.findings if key in self._spans]
        alive = await self._with_entries(known)
        gone = {item.key: item.end for item in known if item.key not in alive}
        self._without_entries |= gone
        await self._forget([key for key in gone if key in self.findings])

    async def ids_in_damage(self, ledger_id: int, ids: Ids) -> Ids:
        """Return the ids in `ids` whose stored entries are in a damaged place.

        Raises:
            CorruptionError: a page of the index is damaged.
        """
        spans = [self._spans[key] for key in self.findings if key in self._spans]
        found = await self._run(partial(self._index.slots, ledger_id, ids)) if spans else None
        if found is None:
            return ids[:0]
        is_inside = _are_inside(found.slots[found.at, found.where], spans).any(axis=0)
        return ids[is_inside & found.present]

    async def entries_in_damage(self) -> AsyncIterator[tuple[int, Ids]]:
        """Yield the ids of the stored entries that are in damaged places.

        Each item is a ledger id, and entry ids from one index page of that ledger.

        Raises:
            CorruptionError: not all entries in damaged places can be found, because the index is
                damaged, or `settle` has not read a file again.
        """
        spans = [self._spans[key] for key in self.findings if key in self._spans]
        if len(spans) < len(self.findings):
            raise CorruptionError("a damaged place is known by its begin alone")
        start: bytes | None = b""
        while spans and start is not None:
            found, start = await self._run(partial(self._inside, spans, start))
            for one in found:
                yield one

    def _inside(
        self, spans: Sequence[Finding], start: bytes
    ) -> tuple[list[tuple[int, Ids]], bytes | None]:
        """Examine some pages; return their entries in damaged places, and the next page key."""
        pairs, hidden = some_of(self._index.store, "locations", start)
        following = behind(pairs, start)
        if hidden or (pairs and following is None):
            raise CorruptionError("a page of the index is not found, though it is there")
        slots = decode_pages(pairs)[1].reshape(-1, COLUMNS)
        is_inside = (slots[:, 2] > 0) & _are_inside(slots, spans).any(axis=0)
        found = []
        for at, entries in enumerate(is_inside.reshape(-1, SLOTS_PER_PAGE)):
            if entries.any():
                ledger_id, page = parse_page_key(pairs[at][0])
                ids = np.flatnonzero(entries).astype(np.int64) + page * SLOTS_PER_PAGE
                found.append((ledger_id, ids))
        return found, following

    async def _with_entries(self, findings: Sequence[Finding]) -> set[tuple[int, int]]:
        """Return the keys of the findings with a damaged place into which the index points.

        If an index page is damaged, the result contains the keys of all findings: the page may
        point anywhere.
        """
        alive = {item.key for item in findings if not item.end}
        left = [item for item in findings if item.end]
        start: bytes | None = b""
        while left and start is not None:
            found, start = await self._run(partial(self._pointed_at, left, start))
            alive |= found
            left = [item for item in left if item.key not in alive]
        return alive

    def _pointed_at(
        self, findings: Sequence[Finding], start: bytes
    ) -> tuple[set[tuple[int, int]], bytes | None]:
        """Examine some pages; return the findings to which they point, and the next page key."""
        pairs, hidden = some_of(self._index.store, "locations", start)
        pages, damaged = sound_slots(pairs)
        following = behind(pairs, start)
        if hidden or damaged or (pairs and following is None):
            return {item.key for item in findings}, None
        slots = pages.reshape(-1, 3)
        is_inside = _are_inside(slots[slots[:, 2] > 0], findings).any(axis=1)
        return {findings[at].key for at in np.flatnonzero(is_inside).tolist()}, following

    def _rate(self) -> int:
        rate = self._settings.scrub_bytes_per_second
        return max(rate, NOW_BYTES_PER_SECOND) if self._now else rate

    async def _report(self, key: tuple[int, int], what: str) -> None:
        self.findings[key] = what
        self._metrics.errors_total.labels("scrub").inc()
        _log.error("damage_found", found=what)
        values = {META_DAMAGE + _DAMAGE_KEY.pack(*key): what.encode()}
        if self._integrity.value == INTEGRITY_SOUND:
            # The verdict "in limbo" is enough for such damage. A read of a damaged entry is an
            # error, and a page with a damaged key is found next to its place. Only a damaged key in
            # a branch page hides more entries, until the next start.
            values[META_INTEGRITY] = INTEGRITY_IN_LIMBO
        await self._put(values)

    async def _forget(self, keys: list[tuple[int, int]]) -> None:
        """Remove findings whose places are sound now, or whose files are gone."""
        for key in keys:
            del self.findings[key]
        if keys:
            names = [META_DAMAGE + _DAMAGE_KEY.pack(*key) for key in keys]
            with suppress(DiskFullError):
                await self._integrity.forget(names)

    async def _put(self, values: dict[bytes, bytes]) -> None:
        with suppress(DiskFullError):
            await self._integrity.put(values)

    async def _run(self, function: Callable[[], R]) -> R:
        return await self._env.workers.run("scrub", function)


class _Uncached:
    """A file whose reads bypass the page cache, to see the bytes on the device."""

    def __init__(self, file: File) -> None:
        self._file = file

    def pread(self, size: int, offset: int) -> Buffer:
        """Read whole aligned pages, as the device requires; see `Readable.pread`."""
        start = offset // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        wanted = -(-(offset + size - start) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        data = self._file.pread_uncached(wanted, start)
        return memoryview(data)[offset - start : offset - start + size]

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


def _are_inside(slots: NDArray[np.uint32], findings: Sequence[Finding]) -> NDArray[np.bool_]:
    """Return a flag for each finding and slot: True if the slot's bytes overlap the damage."""
    begins = slots[:, 1].astype(np.int64)
    ends = begins + slots[:, 2]
    places = np.array([(one.file, one.offset, one.end) for one in findings], np.int64)
    file, offset, end = (column[:, np.newaxis] for column in places.reshape(-1, 3).T)
    inside: NDArray[np.bool_] = (slots[:, 0] == file) & (begins < end) & (ends > offset)
    return inside


def _check(number: int, group: BlockGroup) -> list[Finding]:
    """Return the damage inside blocks whose block checksums are correct."""
    first = int(group.places[0]) if len(group.places) else 0
    try:
        records = group.parse()
    except CorruptionError as error:
        what = f"file {number} holds no records at {first}: {error}"
        return [Finding(number, first, what, group.end)]
    findings = []
    body = group.body
    for start, size, crc in zip(
        records.payloads.tolist(),
        records.payload_sizes.tolist(),
        records.payload_crcs.tolist(),
        strict=True,
    ):
        if crc32c(body[start : start + size]) != crc:
            place = int(group.places_of(np.array([start]))[0])
            what = f"the payload at {place} of file {number} is not what its writer sent"
            findings.append(Finding(number, place, what, place + size))
    wrong = np.flatnonzero(
        (records.header_ledger_ids != records.ledger_ids)
        | (records.header_entry_ids != records.entry_ids)
    )
    if len(wrong):
        at = int(group.places_of(records.packets[wrong]).min())
        what = f"the packet at {at} of file {number} is not the entry that its record says"
        findings.append(Finding(number, at, what, group.end))
    return findings


def _behind(
    file: _Uncached, header: FileHeader, offset: int, sequence: int
) -> tuple[int, int] | None:
    """Return the offset of the next valid block after `offset`, and its sequence number minus 1."""
    try:
        found = next_valid(file, header, offset, sequence)
    except OSError:
        return None
    return None if found is None else (found.offset, found.header.sequence - 1)


def _is_blank(file: _Uncached, start: int, end: int) -> bool:
    """True if the range holds only zeros, so it is reserved room that no block ever used."""
    while start < end:
        data = file.pread(min(STEP_BYTES, end - start), start)
        if not len(data):
            return True
        if np.frombuffer(data, np.uint8).any():
            return False
        start += len(data)
    return True
