"""Records are the content of a block's body.

A record is an 8-byte header {type u8, flags u8, reserved u16, length u32} and `length` bytes of
body. All numbers are little endian; ids are i64 and never negative.

==== ============== ============================================================
type name           body
==== ============== ============================================================
1    ENTRIES        ledger id, first entry id, count u32, CRC-32C of the payload u32,
                    payload length u32, reserved u32, sizes u32[count],
                    steps i64[count-1] unless flag CONTIGUOUS (1) is set, payload.
                    Flag RECOVERY (2): a recovery add, which replaces stored entries
2    LEDGER         ledger id, key length u16, key. Each file that has records of a
                    ledger with a known key has this record
3    FENCE          ledger id, key length u16, key. Also records the key
4    LAC            ledger id, packet length u16, explicit-LAC packet
5    DELETED        ledger id, deletion time in ms since 1970 i64
6    LINK           predecessor's file number u64, nonce 16 bytes, end offset u64.
                    First record of a file's first block, if the file has a predecessor.
                    An entry log names the newest file whose records it may hold, end 0
7    LIMBO          ledger id. The ledger enters limbo: entries may be missing here,
                    so the bookie gives no negative answers. The ledger is fenced
8    UNLIMBO        ledger id. The ledger leaves limbo
9    LIMBO_UNFENCED ledger id. As LIMBO, but this record does not fence the ledger
==== ============== ============================================================

A record has no CRC of its own: the block's CRC covers all records. The payload CRC in an ENTRIES
record came with the add request, so this CRC protects the entries end to end.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bookie.entry.batch import EntryBatch
from bookie.errors import BadRequestError, FormatError, NewerFormatError
from bookie.node.engine.format.blocks import NONCE_SIZE_BYTES

RECORD_HEADER_SIZE_BYTES = 8
_CONTIGUOUS = 1
_RECOVERY = 2

_HEADER = struct.Struct("<BBHI")
_ENTRIES = struct.Struct("<qqIIII")
_ENTRIES_WITH_HEADER = struct.Struct("<BBHIqqIIII")
_U32 = struct.Struct("<I")
_KEYED = struct.Struct("<qH")
_DELETED = struct.Struct("<qq")
_LINK = struct.Struct(f"<Q{NONCE_SIZE_BYTES}sQ")
_LEDGER_ID = struct.Struct("<q")


class RecordType(enum.IntEnum):
    """The first byte of a record."""

    ENTRIES = 1
    LEDGER = 2
    FENCE = 3
    LAC = 4
    DELETED = 5
    LINK = 6
    LIMBO = 7
    UNLIMBO = 8
    LIMBO_UNFENCED = 9


@dataclass(frozen=True, slots=True, eq=False)
class EntriesRecord:
    """The entries that one add request contained."""

    batch: EntryBatch
    """The arrays and the payload of the batch are views of the block's body."""
    payload_crc32c: int
    recovery: bool
    payload_offset: int
    """The offset of the payload in the block's body, in bytes."""


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """Records the key of a ledger, in each file that has records of the ledger."""

    ledger_id: int
    key: bytes


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """Records that a ledger was fenced, perhaps a ledger that this bookie never saw before."""

    ledger_id: int
    key: bytes


@dataclass(frozen=True, slots=True)
class LacRecord:
    """Records an explicit LAC that a writer sent."""

    ledger_id: int
    packet: bytes


@dataclass(frozen=True, slots=True)
class DeletedRecord:
    """Records that a ledger was deleted."""

    ledger_id: int
    deleted_at_ms: int


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """Names the preceding file, and the offset where that file ends."""

    predecessor_number: int
    predecessor_nonce: bytes
    predecessor_end: int


@dataclass(frozen=True, slots=True)
class LimboRecord:
    """Records that a ledger was put in limbo, or (`in_limbo` false) taken out of limbo."""

    ledger_id: int
    in_limbo: bool
    fences: bool = True
    """True if entering limbo also fenced the ledger; unused when the ledger leaves limbo."""


Record = (
    EntriesRecord
    | LedgerRecord
    | FenceRecord
    | LacRecord
    | DeletedRecord
    | LinkRecord
    | LimboRecord
)


def encode_entries_head(batch: EntryBatch, payload_crc32c: int, recovery: bool) -> bytes:
    """Encode an ENTRIES record without its payload; the caller appends `batch.payload`.

    The caller has checked the bounds of the batch.
    """
    flags = _RECOVERY if recovery else 0
    steps = b""
    if batch.steps is None:
        flags |= _CONTIGUOUS
    else:
        steps = batch.steps.astype("<i8", copy=False).tobytes()
    count = len(batch.sizes)
    payload_length = len(batch.payload)
    # A single entry needs no size array: its size is the payload's size.
    one = count == 1
    sizes = _U32.pack(payload_length) if one else batch.sizes.astype("<u4", copy=False).tobytes()
    return b"".join(
        (
            _ENTRIES_WITH_HEADER.pack(
                RecordType.ENTRIES,
                flags,
                0,
                _ENTRIES.size + 4 * count + len(steps) + payload_length,
                batch.ledger_id,
                batch.first_entry_id,
                count,
                payload_crc32c,
                payload_length,
                0,
            ),
            sizes,
            steps,
        )
    )


def encode_ledger(ledger_id: int, key: bytes) -> bytes:
    """Encode a LEDGER record."""
    return _encode(RecordType.LEDGER, _KEYED.pack(ledger_id, len(key)) + key)


def encode_fence(ledger_id: int, key: bytes) -> bytes:
    """Encode a FENCE record."""
    return _encode(RecordType.FENCE, _KEYED.pack(ledger_id, len(key)) + key)


def encode_lac(ledger_id: int, packet: bytes) -> bytes:
    """Encode a LAC record."""
    return _encode(RecordType.LAC, _KEYED.pack(ledger_id, len(packet)) + packet)


def encode_deleted(ledger_id: int, deleted_at_ms: int) -> bytes:
    """Encode a DELETED record; the time is in milliseconds since 1970."""
    return _encode(RecordType.DELETED, _DELETED.pack(ledger_id, deleted_at_ms))


def encode_link(number: int, nonce: bytes, end: int) -> bytes:
    """Encode a LINK record: number, nonce and end offset of the preceding file."""
    assert len(nonce) == NONCE_SIZE_BYTES
    return _encode(RecordType.LINK, _LINK.pack(number, nonce, end))


def encode_limbo(ledger_id: int, in_limbo: bool, fences: bool = True) -> bytes:
    """Encode UNLIMBO if `in_limbo` is false, LIMBO if `fences` is true, else LIMBO_UNFENCED."""
    kind = RecordType.UNLIMBO
    if in_limbo:
        kind = RecordType.LIMBO if fences else RecordType.LIMBO_UNFENCED
    return _encode(kind, _LEDGER_ID.pack(ledger_id))


def parse_records(body: memoryview, count: int) -> Iterator[tuple[int, Record]]:
    """Yield the records of a body, each with its offset; the caller has checked the block's CRC.

    Entries are views of `body`, so no bytes are copied.

    Raises:
        FormatError: (while iterating) a record has an unknown type or flag, a length out of bounds
            or inconsistent numbers, or the count of records is wrong.
    """
    at = 0
    for _ in range(count):
        record, end = _parse(body, at)
        yield at, record
        at = end
    if at != len(body):
        raise FormatError(f"{count} records end at {at}, their block has {len(body)} bytes")


def parse_record_at(body: memoryview, at: int) -> Record:
    """Parse the record at offset `at` of a block's body; raises like `parse_records`."""
    return _parse(body, at)[0]


def _parse(body: memoryview, at: int) -> tuple[Record, int]:
    """Parse the record at offset `at`; return the record and the offset where it ends."""
    size = len(body)
    if at + RECORD_HEADER_SIZE_BYTES > size:
        raise FormatError(f"a record header at {at} lies outside its block of {size} bytes")
    kind, flags, reserved, length = _HEADER.unpack_from(body, at)
    start = at + RECORD_HEADER_SIZE_BYTES
    end = start + length
    if end > size:
        raise FormatError(f"a record at {at} ends outside its block of {size} bytes")
    if reserved:
        raise NewerFormatError(f"a record at {at} was written by a newer version")
    if kind == RecordType.ENTRIES:
        return _parse_entries(body, start, end, flags), end
    record = None if flags else _parse_plain(kind, body[start:end])
    if record is None:
        raise FormatError(
            f"a record at {at} has type {kind} with flags {flags}, which this version does not know"
        )
    return record, end


def _encode(kind: RecordType, body: bytes) -> bytes:
    return _HEADER.pack(kind, 0, 0, len(body)) + body


def _parse_entries(body: memoryview, start: int, end: int, flags: int) -> EntriesRecord:
    if flags & ~(_CONTIGUOUS | _RECOVERY):
        raise FormatError(f"entries have flags {flags}, which this version does not know")
    sizes_at = start + _ENTRIES.size
    if sizes_at > end:
        raise FormatError("an entries record is shorter than its own header")
    ledger_id, first_entry_id, count, payload_crc32c, payload_length, reserved = (
        _ENTRIES.unpack_from(body, start)
    )
    if reserved:
        raise NewerFormatError("an entries record was written by a newer version")
    steps_at = sizes_at + 4 * count
    contiguous = bool(flags & _CONTIGUOUS)
    payload_at = steps_at if contiguous else steps_at + 8 * max(count - 1, 0)
    if payload_at + payload_length != end:
        raise FormatError(
            f"{count} entries with {payload_length} bytes do not fill a record of {end - start}"
        )
    steps = None
    if not contiguous:
        steps = np.frombuffer(body[steps_at:payload_at], dtype="<i8")
    sizes = np.frombuffer(body[sizes_at:steps_at], dtype="<u4")
    batch = EntryBatch(ledger_id, first_entry_id, steps, sizes, body[payload_at:end])
    try:
        batch.check_bounds()
    except BadRequestError as error:
        raise FormatError(f"an entries record does not add up: {error}") from error
    return EntriesRecord(batch, payload_crc32c, bool(flags & _RECOVERY), payload_at)


def _parse_keyed(body: memoryview) -> tuple[int, bytes]:
    if len(body) < _KEYED.size:
        raise FormatError(f"a record of {len(body)} bytes is too short for its type")
    ledger_id, length = _KEYED.unpack_from(body)
    if len(body) != _KEYED.size + length:
        raise FormatError(f"a record with {length} bytes of content has a body of {len(body)}")
    return _checked(ledger_id), bytes(body[_KEYED.size :])


def _parse_plain(kind: int, body: memoryview) -> Record | None:
    """Parse a record without entries; return None if its type is unknown."""
    match kind:
        case RecordType.LEDGER:
            return LedgerRecord(*_parse_keyed(body))
        case RecordType.FENCE:
            return FenceRecord(*_parse_keyed(body))
        case RecordType.LAC:
            return LacRecord(*_parse_keyed(body))
        case RecordType.DELETED:
            ledger_id, deleted_at_ms = _DELETED.unpack(_sized(body, _DELETED.size))
            return DeletedRecord(_checked(ledger_id), deleted_at_ms)
        case RecordType.LINK:
            return LinkRecord(*_LINK.unpack(_sized(body, _LINK.size)))
        case RecordType.LIMBO | RecordType.LIMBO_UNFENCED | RecordType.UNLIMBO:
            ledger_id = _checked(_LEDGER_ID.unpack(_sized(body, _LEDGER_ID.size))[0])
            return LimboRecord(
                ledger_id, kind != RecordType.UNLIMBO, kind != RecordType.LIMBO_UNFENCED
            )
        case _:
            return None


def _sized(body: memoryview, size: int) -> memoryview:
    if len(body) != size:
        raise FormatError(f"a record of {len(body)} bytes should have {size}")
    return body


def _checked(ledger_id: int) -> int:
    if ledger_id < 0:
        raise FormatError(f"a record names ledger {ledger_id}")
    return ledger_id
