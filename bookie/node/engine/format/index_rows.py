"""Rows of the index: one row per ledger, one row per file, and one row with the journal mark.

All integers are little endian. Every row has a CRC32C of its key and its content, because LMDB
has no checksums. The CRC covers the key, so that a row under another row's key fails the check.

======  ====  =========================================================================
ledger row
---------------------------------------------------------------------------------------
offset  size  meaning
======  ====  =========================================================================
0       4     CRC32C of the key and of everything after it
4       1     version, 1
5       1     flags: 1 fenced, 2 limbo, 4 key known, 8 deleted, 16 copies reclaimed
6       2     length of the key digest
8       2     length of the explicit LAC packet
10      2     zero
12      8     deleted at, milliseconds since 1970
20      8     highest LAC seen in any packet, -1 = none
28      8     lowest entry id that may be stored, -1 = none
36      8     highest entry id that may be stored, -1 = none
44      8     entries indexed; if deleted: lowest and highest journal that may hold entries
52      8     bytes of the entries indexed; if deleted: lowest and highest such entry log
60      …     key digest, explicit LAC packet
======  ====  =========================================================================

======  ====  =========================================================================
file row
---------------------------------------------------------------------------------------
0       4     CRC32C of the key and of everything after it
4       1     version, 1
5       1     kind (`FileKind`)
6       1     state (`FileState`)
7       1     zero
8       8     size in bytes as far as it is indexed
16      8     live bytes: the sizes of all slots that point into the file
======  ====  =========================================================================

======  ====  =========================================================================
mark
---------------------------------------------------------------------------------------
0       4     CRC32C of everything after it
4       4     file number
8       8     offset: everything before it is indexed
16      8     sequence of the last block before it
24      16    nonce of the file
======  ====  =========================================================================
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import NamedTuple

from bookie.entry.checksum import crc32c
from bookie.errors import ChecksumError, FormatError, NewerFormatError
from bookie.ids import MAX_ID, NO_ENTRY

_VERSION = 1
_CRC = struct.Struct("<I")
_LEDGER = struct.Struct("<BBHHHqqqqQQ")
_FILE = struct.Struct("<BBBBQQ")
_MARK = struct.Struct("<IQQ16s")
_LEDGER_KEY = struct.Struct(">Q")
_FILE_KEY = struct.Struct(">I")
LEDGER_KEY_SIZE_BYTES = _LEDGER_KEY.size

_FENCED, _LIMBO, _KEY_KNOWN, _DELETED, _RECLAIMED = 1, 2, 4, 8, 16


class FileState(enum.IntEnum):
    """The state of a file: an open file can still grow, a sealed file cannot."""

    OPEN = 0
    SEALED = 1


class HeldIn(NamedTuple):
    """For each kind of file, the range of file numbers that may hold a deleted ledger's entries."""

    journals: tuple[int, int] = (0, 0)
    """The lowest and highest journal number; (0, 0) if unknown, as in rows of an older version."""
    logs: tuple[int, int] = (0, 0)
    """The lowest and highest entry log number; (0, 0) if no log holds entries of the ledger."""


NOT_KNOWN = HeldIn()


@dataclass(frozen=True, slots=True)
class LedgerIndexRow:
    """The index's row of one ledger.

    `key_digest` is None until a client has sent the ledger's key.
    """

    fenced: bool = False
    limbo: bool = False
    deleted_at_ms: int | None = None
    key_digest: bytes | None = None
    lac_packet: bytes = b""
    max_lac: int = NO_ENTRY
    first_entry_id: int = NO_ENTRY
    last_entry_id: int = NO_ENTRY
    entries: int = 0
    payload_bytes: int = 0
    held_in: HeldIn = NOT_KNOWN
    """For a deleted ledger: the files that may hold its entries; its entry counts are 0."""
    reclaimed: bool = False
    """True if acknowledged entries were removed from this bookie.

    If an older version of the program writes the row again, the flag is lost.
    """

    def counting(self, entries: int, payload_bytes: int) -> LedgerIndexRow:
        """Return, quickly, a copy of the row with these counts and without `held_in`."""
        return LedgerIndexRow(
            self.fenced,
            self.limbo,
            self.deleted_at_ms,
            self.key_digest,
            self.lac_packet,
            self.max_lac,
            self.first_entry_id,
            self.last_entry_id,
            entries,
            payload_bytes,
            reclaimed=self.reclaimed,
        )


@dataclass(frozen=True, slots=True)
class FileRow:
    """The index's row of one journal or log file."""

    kind: int
    state: FileState
    size_bytes: int
    live_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in the journal: the index has all records before it. The mark never moves back."""

    file_number: int
    offset: int
    sequence: int
    nonce: bytes


def ledger_key(ledger_id: int) -> bytes:
    """Return the key of a ledger row: 8 bytes, big endian, so that rows are sorted by id."""
    return _LEDGER_KEY.pack(ledger_id)


def ledger_keys_above(after: int) -> bytes:
    """Return the lowest possible key of a ledger whose id is above `after`.

    If `after` is -1, the key is empty, so that a range from this key includes truncated keys.
    """
    return b"" if after == NO_ENTRY else ledger_key(after + 1)


def parse_ledger_key(key: bytes) -> int:
    """Return the ledger id in the key of a ledger row; raise FormatError for an invalid key."""
    ledger_id = _parse_key(_LEDGER_KEY, key)
    if ledger_id > MAX_ID:
        raise FormatError(f"a key of the index names the invalid ledger {ledger_id}")
    return ledger_id


def is_row(key: bytes, data: bytes) -> bool:
    """True if the checksum in `data` shows that `data` is the row of this key."""
    return len(data) >= _CRC.size and crc32c(data[4:], crc32c(key)) == _CRC.unpack_from(data)[0]


def file_key(file_number: int) -> bytes:
    """Return the key of a file row: 4 bytes, big endian."""
    return _FILE_KEY.pack(file_number)


def parse_file_key(key: bytes) -> int:
    """Return the file number in the key of a file row; raise FormatError for an invalid key."""
    return _parse_key(_FILE_KEY, key)


def encode_ledger_row(ledger_id: int, row: LedgerIndexRow) -> bytes:
    """Encode the row of a ledger."""
    key = row.key_digest or b""
    flags = (
        (_FENCED if row.fenced else 0)
        | (_LIMBO if row.limbo else 0)
        | (_KEY_KNOWN if row.key_digest is not None else 0)
        | (_DELETED if row.deleted_at_ms is not None else 0)
        | (_RECLAIMED if row.reclaimed else 0)
    )
    deleted = row.deleted_at_ms is not None
    body = (
        _LEDGER.pack(
            _VERSION,
            flags,
            len(key),
            len(row.lac_packet),
            0,
            row.deleted_at_ms or 0,
            row.max_lac,
            row.first_entry_id,
            row.last_entry_id,
            *(map(_packed, row.held_in) if deleted else (row.entries, row.payload_bytes)),
        )
        + key
        + row.lac_packet
    )
    return _with_crc(ledger_key(ledger_id), body)


def decode_ledger_row(ledger_id: int, data: bytes) -> LedgerIndexRow:
    """Decode the row of a ledger from `data`.

    Raises:
        ChecksumError: the row is damaged, or belongs to another ledger.
        FormatError: a newer version wrote the row, or its length is wrong.
    """
    body = _checked(ledger_key(ledger_id), data, "ledger")
    if len(body) < _LEDGER.size:
        raise FormatError("a ledger row of the index is too short")
    (version, flags, key_length, lac_length, _, deleted_at, max_lac, first, last, entries, size) = (
        _LEDGER.unpack_from(body)
    )
    _check_version(version, "ledger")
    end = _LEDGER.size + key_length + lac_length
    if len(body) != end:
        raise FormatError("a ledger row of the index has a wrong length")
    key = bytes(body[_LEDGER.size : _LEDGER.size + key_length])
    return LedgerIndexRow(
        fenced=bool(flags & _FENCED),
        limbo=bool(flags & _LIMBO),
        deleted_at_ms=deleted_at if flags & _DELETED else None,
        key_digest=key if flags & _KEY_KNOWN else None,
        lac_packet=bytes(body[_LEDGER.size + key_length : end]),
        max_lac=max_lac,
        first_entry_id=first,
        last_entry_id=last,
        entries=0 if flags & _DELETED else entries,
        payload_bytes=0 if flags & _DELETED else size,
        held_in=HeldIn(_unpacked(entries), _unpacked(size)) if flags & _DELETED else NOT_KNOWN,
        reclaimed=bool(flags & _RECLAIMED),
    )


def _packed(span: tuple[int, int]) -> int:
    return span[0] | span[1] << 32


def _unpacked(data: int) -> tuple[int, int]:
    return data & 0xFFFFFFFF, data >> 32


def encode_file_row(file_number: int, row: FileRow) -> bytes:
    """Encode the row of a file."""
    body = _FILE.pack(_VERSION, row.kind, row.state, 0, row.size_bytes, row.live_bytes)
    return _with_crc(file_key(file_number), body)


def decode_file_row(file_number: int, data: bytes) -> FileRow:
    """Decode the row of a file from `data`; raises like `decode_ledger_row`."""
    body = _checked(file_key(file_number), data, "file")
    if len(body) != _FILE.size:
        raise FormatError("a file row of the index has a wrong length")
    version, kind, state, _, size, live = _FILE.unpack(body)
    _check_version(version, "file")
    if state not in (FileState.OPEN, FileState.SEALED):
        raise FormatError("a file row of the index has an unknown state")
    return FileRow(kind, FileState(state), size, live)


def encode_mark(mark: Mark) -> bytes:
    """Encode the journal mark."""
    return _with_crc(b"", _MARK.pack(mark.file_number, mark.offset, mark.sequence, mark.nonce))


def decode_mark(data: bytes) -> Mark:
    """Decode the mark from `data`; raises like `decode_ledger_row`."""
    body = _checked(b"", data, "mark")
    if len(body) != _MARK.size:
        raise FormatError("the mark of the index has a wrong length")
    return Mark(*_MARK.unpack(body))


def _parse_key(layout: struct.Struct, key: bytes) -> int:
    if len(key) != layout.size:
        raise FormatError(f"a key of the index has {len(key)} bytes instead of {layout.size}")
    return int(layout.unpack(key)[0])


def _with_crc(key: bytes, body: bytes) -> bytes:
    return _CRC.pack(crc32c(body, crc32c(key))) + body


def _checked(key: bytes, data: bytes, kind: str) -> bytes:
    if not is_row(key, data):
        raise ChecksumError(f"a {kind} row of the index is damaged")
    return data[4:]


def _check_version(version: int, kind: str) -> None:
    if version != _VERSION:
        raise NewerFormatError(
            f"a {kind} row of the index has version {version}, newer than this one"
        )
