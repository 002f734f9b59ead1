"""A packet: an entry as it is sent and stored.

====== ===== ==================================================================
offset bytes meaning (numbers are signed 64-bit, big endian)
====== ===== ==================================================================
0      8     ledger id
8      8     entry id
16     8     last add confirmed (LAC) that the writer knew: -1 … entry id - 1
24     8     length: the payload bytes of the ledger's entries up to and including this entry
32     0-20  digest of the header and the payload (see :mod:`bookie.entry.digest`)
…      …     payload, as the user gave it
====== ===== ==================================================================

An explicit LAC packet has 16 bytes, which are the ledger id and the LAC, followed by their digest.

Only a packet with a verified digest proves an entry, a LAC or a ledger's length. When a bookie
stores or returns entries, it checks only headers. Clients and the bookie's integrity check verify
digests.

Source: Apache BookKeeper's ``DigestManager``, whose packets have the same bytes.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from bookie.entry.batch import PACKET_HEADER_SIZE_BYTES, EntryBatch, Ids, gather_prefixes
from bookie.entry.digest import BytesLike, Digester
from bookie.errors import BadRequestError, ChecksumError, FormatError

HEADER_SIZE_BYTES = PACKET_HEADER_SIZE_BYTES
LAC_HEADER_SIZE_BYTES = 16
LAC_PACKET_SIZE_BYTES_MAX = LAC_HEADER_SIZE_BYTES + 20

_HEADER = struct.Struct(">qqqq")
_LAC_HEADER = struct.Struct(">qq")
_HEADER_DTYPE = np.dtype((np.void, HEADER_SIZE_BYTES))
_PACK_BY_NUMPY_FROM = 28
_VERIFY_BY_NUMPY_FROM = 16
# From this number of entries on, numpy (30-50 µs a batch) takes less time than one `struct` call
# per entry (measured).
_PACK_BY_ROWS_UP_TO_BYTES = 512
# If payloads have equal sizes up to this limit, copying them into a table is faster than joining
# them with their prefixes.


class SharedPrefix(NamedTuple):
    """A prefix that the payloads at positions `first` … `end` - 1 of a batch share."""

    prefix: bytes
    first: int
    end: int


def common_size(shared: Sequence[SharedPrefix], count: int) -> int | None:
    """Return the size of the prefixes if all `count` payloads have a prefix of equal size.

    The result is None if sizes differ, or if a payload has no prefix. The result is also None if
    the size is not a multiple of 4, which `crcs_of_rows` requires. If the result is None, use
    `with_prefixes`.
    """
    size = len(shared[0].prefix)
    if size % 4 or any(len(prefix) != size for prefix, _, _ in shared):
        return None
    return size if sum(end - first for _, first, end in shared) == count else None


def write_prefixes(table: NDArray[np.uint8], shared: Sequence[SharedPrefix]) -> None:
    """Write each payload's prefix into its row of `table`; a row has the size of a prefix."""
    for prefix, first, end in shared:
        table[first:end] = np.frombuffer(prefix, np.uint8)


def with_prefixes(
    payloads: Sequence[BytesLike], shared: Sequence[SharedPrefix]
) -> Sequence[BytesLike]:
    """Return the payloads, each with its prefix in front."""
    whole = list(payloads)
    for prefix, first, end in shared:
        whole[first:end] = [prefix + payload for payload in whole[first:end]]
    return whole


class PacketHeader(NamedTuple):
    """The four numbers at the start of a packet."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int


class Entry(NamedTuple):
    """A verified entry: a tuple, because a reader creates many entries and tuples are fast."""

    entry_id: int
    payload: bytes


class Entries(Sequence[Entry]):
    """Verified entries of one ledger, ascending by id; an `Entry` is created at each access.

    Creating an `Entry` for every entry at once would take more time than the checks of the digests.
    """

    __slots__ = ("_batch", "_prefix_size", "ids", "payloads")

    def __init__(
        self,
        ids: Sequence[int],
        payloads: list[bytes],
        batch: EntryBatch | None = None,
        prefix_size: int = 0,
    ) -> None:
        """`batch` holds the packets of the entries; each payload follows `prefix_size` bytes."""
        self.ids = ids
        self.payloads = payloads
        """The payloads as the user gave them, one for each id."""
        self._batch = batch
        self._prefix_size = prefix_size

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Entries:
        """Convert a list of at least one entry to `Entries`; return `Entries` unchanged."""
        if isinstance(entries, Entries):
            return entries
        ids, payloads = zip(*entries, strict=True)
        return cls(ids, list(payloads))

    def located(self) -> tuple[BytesLike, Ids, Ids]:
        """Return a buffer with all payloads, and arrays with each payload's start and end."""
        batch = self._batch
        if batch is None:
            sizes = np.array(list(map(len, self.payloads)), np.int64)
            ends = np.cumsum(sizes)
            return b"".join(self.payloads), ends - sizes, ends
        offsets = batch.offsets()
        return batch.payload, offsets[:-1] + self._prefix_size, offsets[1:]

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Entry]:
        # The constructor of `Entry` is Python code, and takes twice as long as `tuple.__new__`.
        pairs = zip(self.ids, self.payloads, strict=True)
        return map(tuple.__new__, repeat(Entry), pairs)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> Entries: ...

    def __getitem__(self, index: int | slice) -> Entry | Entries:
        if isinstance(index, slice):
            return Entries(self.ids[index], self.payloads[index])
        return Entry(self.ids[index], self.payloads[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return f"Entries({list(self)!r})"


class Lac(NamedTuple):
    """The content of an explicit LAC packet."""

    ledger_id: int
    last_add_confirmed: int


def parse_header(packet: BytesLike) -> PacketHeader:
    """Return the header of a packet, without verifying the digest.

    Raises:
        FormatError: the packet is shorter than a header.
    """
    if len(packet) < HEADER_SIZE_BYTES:
        raise FormatError(f"a packet of {len(packet)} bytes is shorter than its header")
    return PacketHeader._make(_HEADER.unpack_from(packet))


def pack_batch(
    ledger_id: int,
    first_entry_id: int,
    last_add_confirmed: int,
    length_before: int,
    payloads: Sequence[BytesLike],
    digester: Digester,
    shared: Sequence[SharedPrefix] = (),
) -> EntryBatch:
    """Make the packets of consecutive entries, which all have the same LAC.

    Args:
        ledger_id: the id of the ledger.
        first_entry_id: id of the first payload; the other ids follow without gaps.
        last_add_confirmed: the LAC in every packet: -1 … `first_entry_id` - 1.
        length_before: payload bytes of the ledger before the first of these entries.
        payloads: the payloads, at least one; the items of a memoryview must be single bytes.
        digester: the digester of the ledger.
        shared: prefixes for some of the payloads, in the order of the payloads.
    """
    count = len(payloads)
    assert count >= 1
    assert -1 <= last_add_confirmed < first_entry_id
    shared_size = 0
    if shared:
        size = common_size(shared, count) if count >= _PACK_BY_NUMPY_FROM else None
        if size is None:
            shared, payloads = (), with_prefixes(payloads, shared)
        else:
            shared_size = size
    sizes = list(map(len, payloads))
    prefix_size = HEADER_SIZE_BYTES + digester.size_bytes
    if count < _PACK_BY_NUMPY_FROM:
        lengths = accumulate(sizes[1:], initial=length_before + sizes[0])
        headers = [
            _HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
            for entry_id, length in enumerate(lengths, first_entry_id)
        ]
        prefixes = [h + digester.digest(h, p) for h, p in zip(headers, payloads, strict=True)]
        return EntryBatch(
            ledger_id,
            first_entry_id,
            None,
            np.array(sizes, np.int64) + prefix_size,
            _interleave(prefixes, payloads),
        )
    size = sizes[0]
    are_equal = sizes.count(size) == count
    packet_sizes = np.full(count, size, np.int64) if are_equal else np.array(sizes, np.int64)
    packet_sizes += shared_size
    heads = np.empty((count, HEADER_SIZE_BYTES + shared_size), np.uint8)
    write_prefixes(heads[:, HEADER_SIZE_BYTES:], shared)
    columns = np.ndarray((count, 4), ">i8", heads, strides=(heads.shape[1], 8))
    columns[:, 0] = ledger_id
    columns[:, 1] = np.arange(count, dtype=np.int64) + first_entry_id
    columns[:, 2] = last_add_confirmed
    columns[:, 3] = np.cumsum(packet_sizes) + length_before
    packet_sizes += prefix_size
    body_at = prefix_size + shared_size
    by_rows = are_equal and size <= _PACK_BY_ROWS_UP_TO_BYTES
    rows = np.empty((count, body_at + size if by_rows else body_at), np.uint8)
    rows[:, :HEADER_SIZE_BYTES] = heads[:, :HEADER_SIZE_BYTES]
    rows[:, HEADER_SIZE_BYTES:prefix_size] = np.frombuffer(
        digester.digest_many(heads, payloads), np.uint8
    ).reshape(count, digester.size_bytes)
    write_prefixes(rows[:, prefix_size:body_at], shared)
    if by_rows:
        rows[:, body_at:] = np.frombuffer(b"".join(payloads), np.uint8).reshape(count, size)
        packets = rows.tobytes()
    else:
        prefixes = rows.view(np.dtype((np.void, body_at)))[:, 0].tolist()
        packets = _interleave(prefixes, payloads)
    return EntryBatch(ledger_id, first_entry_id, None, packet_sizes, packets)


def _interleave(prefixes: Sequence[bytes], payloads: Sequence[BytesLike]) -> bytes:
    parts: list[BytesLike] = [b""] * (2 * len(prefixes))
    parts[::2] = prefixes
    parts[1::2] = payloads
    return b"".join(parts)


def unpack_packet(ledger_id: int, entry_id: int, packet: BytesLike, digester: Digester) -> bytes:
    """Verify that a packet is entry `entry_id` of `ledger_id`; return its payload.

    Raises:
        ChecksumError: the packet is too short or has other ids, or its digest is wrong.
    """
    body_at = HEADER_SIZE_BYTES + digester.size_bytes
    if len(packet) < body_at:
        raise ChecksumError(
            f"entry {entry_id} of ledger {ledger_id} has only {len(packet)} bytes, no digest fits"
        )
    found_ledger_id, found_entry_id, _, _ = _HEADER.unpack_from(packet)
    if found_ledger_id != ledger_id or found_entry_id != entry_id:
        raise ChecksumError(
            f"entry {entry_id} of ledger {ledger_id} was asked for, "
            f"entry {found_entry_id} of ledger {found_ledger_id} came"
        )
    view = memoryview(packet)
    payload = bytes(view[body_at:])
    expected = digester.digest(view[:HEADER_SIZE_BYTES], payload)
    if not hmac.compare_digest(expected, view[HEADER_SIZE_BYTES:body_at]):
        raise ChecksumError(f"entry {entry_id} of ledger {ledger_id} fails its digest")
    return payload


def verify_batch(batch: EntryBatch, digester: Digester) -> Entries:
    """Verify the ids and the digest of each packet in `batch`; return the entries.

    Raises:
        ChecksumError: a packet is too short, has other ids, or has a wrong digest. The message
            names the first wrong entry. The entries before the wrong entry are right, but are not
            returned.
    """
    count = len(batch.sizes)
    ids = _ids_of(batch)
    if count == 1:
        return Entries(ids, [unpack_packet(batch.ledger_id, ids[0], batch.payload, digester)])
    if count < _VERIFY_BY_NUMPY_FROM:
        return Entries(
            ids,
            [
                unpack_packet(batch.ledger_id, entry_id, packet, digester)
                for entry_id, packet in zip(ids, batch.packets(), strict=True)
            ],
        )
    digest_size = digester.size_bytes
    prefix_size = HEADER_SIZE_BYTES + digest_size
    if int(batch.sizes.min()) < prefix_size:
        # A packet is too short for a digest: check the packets one by one, to name the first wrong
        # entry.
        for entry_id, packet in zip(ids, batch.packets(), strict=True):
            unpack_packet(batch.ledger_id, entry_id, packet, digester)
    prefixes = gather_prefixes(batch, prefix_size).view(_prefix_dtype(digest_size))
    header_column = np.ascontiguousarray(prefixes["header"])
    columns = header_column.view(">i8").reshape(-1, 4)
    wanted = batch.entry_ids()
    wrong = (columns[:, 0] != batch.ledger_id) | (columns[:, 1] != wanted)
    payloads = _payloads_of(batch, prefix_size)
    if digest_size:
        stored = np.ascontiguousarray(prefixes["digest"]).view(np.uint8)
        headers = header_column.view(np.uint8).reshape(count, HEADER_SIZE_BYTES)
        computed = np.frombuffer(digester.digest_many(headers, payloads), np.uint8)
        differs = stored != computed
        if differs.any():
            wrong |= differs.reshape(count, digest_size).any(axis=1)
    if wrong.any():
        position = int(wrong.argmax())
        unpack_packet(batch.ledger_id, int(wanted[position]), batch.packets()[position], digester)
    return Entries(ids, payloads, batch, prefix_size)


def _ids_of(batch: EntryBatch) -> Sequence[int]:
    if batch.is_contiguous:
        return range(batch.first_entry_id, batch.first_entry_id + len(batch.sizes))
    ids: list[int] = batch.entry_ids().tolist()
    return ids


def pack_lac(ledger_id: int, last_add_confirmed: int, digester: Digester) -> bytes:
    """Make an explicit LAC packet."""
    header = _LAC_HEADER.pack(ledger_id, last_add_confirmed)
    return header + digester.digest(header, b"")


def unpack_lac(ledger_id: int, packet: BytesLike, digester: Digester) -> int:
    """Verify an explicit LAC packet of `ledger_id`, and return its LAC.

    Raises:
        ChecksumError: the packet's size or digest is wrong, or the packet belongs to another
            ledger.
    """
    if len(packet) != LAC_HEADER_SIZE_BYTES + digester.size_bytes:
        raise ChecksumError(f"a LAC packet of {len(packet)} bytes has the wrong size")
    view = memoryview(packet)
    header = view[:LAC_HEADER_SIZE_BYTES]
    if not hmac.compare_digest(digester.digest(header, b""), view[LAC_HEADER_SIZE_BYTES:]):
        raise ChecksumError(f"a LAC packet of ledger {ledger_id} fails its digest")
    lac = Lac._make(_LAC_HEADER.unpack(header))
    if lac.ledger_id != ledger_id:
        raise ChecksumError(f"a LAC packet of ledger {lac.ledger_id} came for ledger {ledger_id}")
    return lac.last_add_confirmed


def lac_packet_ids(packet: BytesLike) -> Lac:
    """Return the ids in a LAC packet without verifying the digest, whose type bookies do not know.

    Raises:
        BadRequestError: the packet is too short or too long, or an id in the packet is too low.
    """
    if not LAC_HEADER_SIZE_BYTES <= len(packet) <= LAC_PACKET_SIZE_BYTES_MAX:
        raise BadRequestError(f"a LAC packet of {len(packet)} bytes has the wrong size")
    lac = Lac._make(_LAC_HEADER.unpack_from(packet))
    if lac.ledger_id < 0 or lac.last_add_confirmed < -1:
        raise BadRequestError(
            f"a LAC packet names ledger {lac.ledger_id} and entry {lac.last_add_confirmed}"
        )
    return lac


def _prefix_dtype(digest_size: int) -> np.dtype[np.void]:
    return np.dtype([("header", _HEADER_DTYPE), ("digest", np.void, digest_size)])


def _payloads_of(batch: EntryBatch, prefix_size: int) -> list[bytes]:
    """Return a copy of the payload of each packet."""
    size = int(batch.sizes[0])
    if size > prefix_size and bool((batch.sizes == size).all()):
        row = np.dtype([("prefix", np.void, prefix_size), ("payload", np.void, size - prefix_size)])
        payloads: list[bytes] = np.frombuffer(batch.payload, dtype=row)["payload"].tolist()
        return payloads
    data = batch.payload
    offsets = batch.offsets()
    starts = (offsets[:-1] + prefix_size).tolist()
    ends = offsets[1:].tolist()
    if isinstance(data, bytes):
        return [data[start:end] for start, end in zip(starts, ends, strict=True)]
    return [bytes(data[start:end]) for start, end in zip(starts, ends, strict=True)]
