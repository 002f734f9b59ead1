"""Packets: the layout, and that nothing unverified gets through."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from bookie.entry.batch import EntryBatch, check_headers
from bookie.entry.digest import BytesLike, DigestType, derive_key, digester_for_key
from bookie.entry.entry import (
    HEADER_SIZE_BYTES,
    Entry,
    PacketHeader,
    SharedPrefix,
    lac_packet_ids,
    pack_batch,
    pack_lac,
    parse_header,
    unpack_lac,
    unpack_packet,
    verify_batch,
)
from bookie.errors import BadRequestError, ChecksumError, FormatError

CRC32C = digester_for_key(DigestType.CRC32C, b"")
COUNTS = [1, 2, 15, 16, 27, 28, 100]
"""Both sides of the switch from `struct` to numpy."""


def payloads_of(count: int, *, uniform: bool) -> list[bytes]:
    """Different payloads, of one size or of many (the first is empty then)."""
    return [bytes([i % 251]) * (10 if uniform else i % 7) for i in range(count)]


def test_packet_layout() -> None:
    """Ledger, entry, LAC, length big endian; digest; payload."""
    batch = pack_batch(1, 5, 4, 100, [b"hello"], CRC32C)
    packet = bytes(batch.payload)
    header = struct.pack(">qqqq", 1, 5, 4, 105)
    assert packet == header + CRC32C.digest(header, b"hello") + b"hello"
    assert parse_header(packet) == PacketHeader(1, 5, 4, 105)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("size", [None, 0, 1, 10, 512, 513])
@pytest.mark.parametrize("digest_type", list(DigestType))
def test_batch_is_what_single_packets_are(
    count: int, size: int | None, digest_type: DigestType
) -> None:
    """A batch equals its packets made one by one, and verifies to the payloads.

    Small payloads of one size are put into a table, all others are joined in turn with what stands
    before them.
    """
    digester = digester_for_key(digest_type, derive_key(b"secret"))
    if size is None:
        payloads = payloads_of(count, uniform=False)
    else:
        payloads = [bytes([i % 251]) * size for i in range(count)]
    batch = pack_batch(9, 1000, 17, 50, payloads, digester)
    batch.check_bounds()
    assert check_headers(batch) == 17
    length = 50
    singles = []
    for entry_id, payload in enumerate(payloads, 1000):
        singles.append(pack_batch(9, entry_id, 17, length, [payload], digester).payload)
        length += len(payload)
    assert batch.payload == b"".join(singles)
    expected = [Entry(1000 + i, payload) for i, payload in enumerate(payloads)]
    entries = verify_batch(batch, digester)
    assert entries == expected
    assert all(type(entry) is Entry and type(entry.payload) is bytes for entry in entries)
    view = EntryBatch(9, 1000, None, batch.sizes, memoryview(batch.payload))
    assert verify_batch(view, digester) == expected


@pytest.mark.parametrize("size", [None, 0, 10, 600])
@pytest.mark.parametrize("digest_type", list(DigestType))
@pytest.mark.parametrize(
    "runs",
    [
        [(b"p" * 16, 100)],
        [(b"p" * 16, 1), (b"q" * 16, 98), (b"p" * 16, 1)],
        [(b"p" * 24, 60), (b"q" * 16, 40)],
        [(b"p" * 16, 60), (b"", 40)],
        [(b"", 10), (b"p" * 16, 90)],
        [(b"p" * 16, 20)],
        [(b"p" * 6, 100)],
    ],
    ids=["one", "several", "two sizes", "none at the end", "none first", "few entries", "odd size"],
)
def test_what_payloads_share_is_packed_before_each(
    size: int | None, digest_type: DigestType, runs: list[tuple[bytes, int]]
) -> None:
    """The packets are those of payloads that hold all of it."""
    digester = digester_for_key(digest_type, derive_key(b"secret"))
    payloads: list[bytes] = []
    whole: list[bytes] = []
    shared: list[SharedPrefix] = []
    for prefix, count in runs:
        some = [bytes([i % 251]) * (i % 7 if size is None else size) for i in range(count)]
        if prefix:
            shared.append(SharedPrefix(prefix, len(payloads), len(payloads) + count))
        payloads += some
        whole += [prefix + payload for payload in some]
    batch = pack_batch(9, 1000, 17, 50, payloads, digester, shared)
    expected = pack_batch(9, 1000, 17, 50, whole, digester)
    assert batch.payload == expected.payload
    assert batch.sizes.tolist() == expected.sizes.tolist()
    assert verify_batch(batch, digester).payloads == whole


def test_payloads_may_be_views() -> None:
    """Bytearrays and memoryviews are packed without conversion by the caller."""
    for second in (b"defg", b"def"):
        payloads: list[BytesLike] = [bytearray(b"abc"), memoryview(second)] * 20
        entries = verify_batch(pack_batch(9, 0, -1, 0, payloads, CRC32C), CRC32C)
        assert [entry.payload for entry in entries] == [b"abc", second] * 20


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("uniform", [True, False])
def test_one_flipped_bit_is_found_and_named(count: int, uniform: bool) -> None:
    """Damage in any part of a packet names that entry, the first damaged one."""
    batch = pack_batch(9, 1000, 17, 50, payloads_of(count, uniform=uniform), CRC32C)
    position = count // 2
    start, end = batch.offsets()[position : position + 2].tolist()
    for at in (start, start + 8, start + 16, start + 24, start + HEADER_SIZE_BYTES, end - 1):
        damaged = bytearray(batch.payload)
        damaged[at] ^= 1
        damaged[-1] ^= 128
        wrong = EntryBatch(9, 1000, None, batch.sizes, bytes(damaged))
        with pytest.raises(ChecksumError, match=f"entry {1000 + position} of ledger 9"):
            verify_batch(wrong, CRC32C)


@pytest.mark.parametrize("count", COUNTS)
def test_a_packet_without_room_for_a_digest_is_named(count: int) -> None:
    """A short packet is a checksum error of that entry, after all good ones before it."""
    good = pack_batch(9, 0, -1, 0, [b"x" * 9] * count, CRC32C)
    short = struct.pack(">qqqq", 9, count, -1, 0)
    sizes = np.append(good.sizes, len(short))
    batch = EntryBatch(9, 0, None, sizes, bytes(good.payload) + short)
    with pytest.raises(ChecksumError, match=f"entry {count} of ledger 9 has only 32 bytes"):
        verify_batch(batch, CRC32C)


@pytest.mark.parametrize("count", COUNTS)
def test_packets_of_others_do_not_verify(count: int) -> None:
    """A valid packet of another ledger or entry is not the one asked for."""
    batch = pack_batch(9, 1000, 17, 50, [b"x"] * count, CRC32C)
    with pytest.raises(ChecksumError, match="entry 1000 of ledger 8 was asked for"):
        verify_batch(EntryBatch(8, 1000, None, batch.sizes, batch.payload), CRC32C)
    with pytest.raises(ChecksumError, match="entry 999 of ledger 9 was asked for"):
        verify_batch(EntryBatch(9, 999, None, batch.sizes, batch.payload), CRC32C)


def test_unpack_verifies_one_packet() -> None:
    """One packet gives its payload, or a checksum error."""
    packet = bytes(pack_batch(9, 5, 4, 0, [b"hello"], CRC32C).payload)
    assert unpack_packet(9, 5, packet, CRC32C) == b"hello"
    assert unpack_packet(9, 5, memoryview(packet), CRC32C) == b"hello"
    with pytest.raises(ChecksumError, match="fails its digest"):
        unpack_packet(9, 5, packet + b"!", CRC32C)
    with pytest.raises(ChecksumError, match="only 35 bytes"):
        unpack_packet(9, 5, packet[:35], CRC32C)
    with pytest.raises(FormatError, match="shorter"):
        parse_header(packet[:31])


def test_wrong_password_fails_the_hmac() -> None:
    """Only the ledger's password verifies an HMAC."""
    batch = pack_batch(
        9, 5, 4, 0, [b"hello"], digester_for_key(DigestType.HMAC, derive_key(b"right"))
    )
    with pytest.raises(ChecksumError):
        verify_batch(batch, digester_for_key(DigestType.HMAC, derive_key(b"wrong")))


def test_lac_packet_round_trip() -> None:
    """A LAC packet says which ledger and entry it means, and proves it."""
    for digest_type in DigestType:
        digester = digester_for_key(digest_type, derive_key(b"secret"))
        packet = pack_lac(9, 41, digester)
        assert packet[:16] == struct.pack(">qq", 9, 41)
        assert lac_packet_ids(packet) == (9, 41)
        assert unpack_lac(9, packet, digester) == 41


def test_lac_packet_of_another_ledger_proves_nothing() -> None:
    """A verified packet still has to speak of the ledger that was asked about."""
    with pytest.raises(ChecksumError, match="of ledger 9 came for ledger 8"):
        unpack_lac(8, pack_lac(9, 41, CRC32C), CRC32C)


def test_bad_lac_packets_are_refused() -> None:
    """Wrong sizes, digests and ids are refused."""
    packet = pack_lac(9, 41, CRC32C)
    with pytest.raises(ChecksumError, match="fails its digest"):
        unpack_lac(9, packet[:-1] + b"?", CRC32C)
    with pytest.raises(ChecksumError, match="wrong size"):
        unpack_lac(9, packet[:-1], CRC32C)
    with pytest.raises(BadRequestError, match="wrong size"):
        lac_packet_ids(packet[:15])
    with pytest.raises(BadRequestError, match="wrong size"):
        lac_packet_ids(packet + bytes(17))
    with pytest.raises(BadRequestError, match="ledger -1"):
        lac_packet_ids(struct.pack(">qq", -1, 0))
    with pytest.raises(BadRequestError, match="entry -2"):
        lac_packet_ids(struct.pack(">qq", 1, -2))


def test_verified_entries_are_a_sequence() -> None:
    """Each looked-at entry is made anew; equality, slices and order are those of a list."""
    payloads = [b"%d" % n for n in range(40)]
    entries = verify_batch(pack_batch(9, 5, -1, 0, payloads, CRC32C), CRC32C)
    assert entries == [Entry(n, payload) for n, payload in enumerate(payloads, 5)]
    assert (entries[0], entries[-1]) == (Entry(5, b"0"), Entry(44, b"39"))
    assert list(entries[3:5]) == [Entry(8, b"3"), Entry(9, b"4")]
    assert entries.payloads == payloads
    assert entries != [Entry(5, b"0")]
    assert entries != 7
    assert Entry(6, b"1") in entries
    assert repr(entries[:1]) == f"Entries([{Entry(5, b'0')!r}])"
