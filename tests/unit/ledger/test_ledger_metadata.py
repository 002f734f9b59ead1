"""Ledger metadata: the rules, the edits, and bytes that Apache BookKeeper reads and writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie._pb.ledger_metadata_pb2 import LedgerMetadataFormat
from bookie.entry.digest import DigestType
from bookie.errors import BadRequestError, FormatError
from bookie.ids import MAX_ID
from bookie.ledger.metadata import (
    LEDGER_METADATA_SIZE_BYTES_MAX,
    Fragment,
    LedgerMetadata,
    LedgerState,
    decode,
    encode,
)
from bookie.metadata.versioned import Versioned

THREE = ("a:3181", "b:3181", "c:3181")
OPEN = LedgerMetadata(
    ledger_id=7,
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
    state=LedgerState.OPEN,
    fragments=(Fragment(0, THREE),),
    digest_type=DigestType.CRC32C,
    password_key=b"\x01" * 32,
    ctime_ms=1_700_000_000_000,
    custom_metadata={"b": b"2", "a": b"1"},
    c_token=-5,
)
# The bytes that Java writes for a ledger of one bookie, field by field.
JAVA_V3 = (
    b"BookieMetadataFormatVersion\t3\n"
    + bytes([0x38])
    + bytes.fromhex("0801 1001 1800 20ffffffffffffffffff01 2801 3213")
    + bytes.fromhex("0a0f")
    + b"192.0.2.10:3181"
    + bytes.fromhex("1000 3803 4200 4801 60bcaad98bc298ddae47")
)


def v2(text: str) -> bytes:
    """Metadata of format version 2."""
    return b"BookieMetadataFormatVersion\t2\n" + text.encode()


def v1(text: str) -> bytes:
    """Metadata of format version 1."""
    return b"BookieMetadataFormatVersion\t1\n" + text.encode()


@pytest.mark.parametrize(
    "metadata",
    [
        OPEN,
        OPEN.with_state(LedgerState.IN_RECOVERY),
        OPEN.closed(41, 12345),
        OPEN.closed(-1, 0),
        replace(
            OPEN, fragments=(*OPEN.fragments, Fragment(10, ("d:1", "b:3181", "c:3181")))
        ).closed(MAX_ID, MAX_ID),
        replace(OPEN, ledger_id=MAX_ID, ctime_ms=-1, custom_metadata={}, password_key=b""),
        *(replace(OPEN, digest_type=digest_type) for digest_type in DigestType),
    ],
)
def test_version_3_round_trip(metadata: LedgerMetadata) -> None:
    """Every field survives, and equal metadata has equal bytes."""
    data = encode(metadata)
    assert decode(metadata.ledger_id, data) == metadata
    shuffled = dict(reversed(list(metadata.custom_metadata.items())))
    assert encode(replace(metadata, custom_metadata=shuffled)) == data


def test_version_3_is_byte_exact() -> None:
    """Java's bytes are decoded, and encoded again to the same bytes."""
    metadata = decode(7, JAVA_V3)
    assert metadata == LedgerMetadata(
        ledger_id=7,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        state=LedgerState.OPEN,
        fragments=(Fragment(0, ("192.0.2.10:3181",)),),
        digest_type=DigestType.CRC32C,
        c_token=5142394735250789692,
    )
    assert encode(metadata) == JAVA_V3


def test_fields_stand_in_the_order_of_their_numbers() -> None:
    """Deterministic bytes: tags ascend, custom metadata by key."""
    body = encode(OPEN)[len("BookieMetadataFormatVersion\t3\n") + 1 :]
    assert body.startswith(bytes.fromhex("0803 1003 1800 20ffffffffffffffffff01 2801 32"))
    assert body.index(b"\x5a\x06\x0a\x01a\x12\x011") < body.index(b"\x5a\x06\x0a\x01b\x12\x012")
    assert body.endswith(bytes.fromhex("60fbffffffffffffffff01"))


def test_version_2_is_read() -> None:
    """Text metadata, with and without what later releases added."""
    text = """quorumSize: 2
ensembleSize: 3
length: 99
lastEntryId: 8
state: CLOSED
segment {
  ensembleMember: "192.0.2.1:1234"
  ensembleMember: "192.0.2.2:1234"
  ensembleMember: "192.0.2.3:1234"
  firstEntryId: 0
}
digestType: CRC32
password: "passwd"
"""
    metadata = decode(1, v2(text))
    assert metadata == LedgerMetadata(
        ledger_id=1,
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=2,
        state=LedgerState.CLOSED,
        fragments=(Fragment(0, ("192.0.2.1:1234", "192.0.2.2:1234", "192.0.2.3:1234")),),
        digest_type=DigestType.CRC32,
        password_key=b"passwd",
        last_entry_id=8,
        length=99,
    )
    newer = decode(1, v2(text + "ackQuorumSize: 1\nctime: 1544002383075\nsomethingNew: 5\n"))
    assert (newer.ack_quorum_size, newer.ctime_ms) == (1, 1544002383075)
    assert decode(1, encode(newer)) == newer


@pytest.mark.parametrize(
    ("end", "state", "last", "length"),
    [
        ("", LedgerState.OPEN, -1, 0),
        ("-102\tCLOSED", LedgerState.IN_RECOVERY, -1, 0),
        ("41\tCLOSED\n", LedgerState.CLOSED, 41, 99),
    ],
)
def test_version_1_is_read(end: str, state: LedgerState, last: int, length: int) -> None:
    """Line metadata of every state; digest and password are defaults."""
    metadata = decode(1, v1(f"2\n3\n99\n0\ta:1\tb:1\tc:1\n10\ta:1\tb:1\td:1\n{end}"))
    assert metadata == LedgerMetadata(
        ledger_id=1,
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=2,
        state=state,
        fragments=(Fragment(0, ("a:1", "b:1", "c:1")), Fragment(10, ("a:1", "b:1", "d:1"))),
        digest_type=DigestType.CRC32,
        last_entry_id=last,
        length=length,
    )


def body_v3(hexadecimal: str) -> bytes:
    """Metadata of format version 3 with this message."""
    body = bytes.fromhex(hexadecimal)
    return b"BookieMetadataFormatVersion\t3\n" + bytes([len(body)]) + body


VALID_V3 = "0801 1001 1800 2801 32070a03613a311000 3803 4200"


def test_valid_v3_is_valid() -> None:
    """The message that the refusals below are made from is good."""
    assert decode(1, body_v3(VALID_V3)).fragments == (Fragment(0, ("a:1",)),)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "version line"),
        (b"BookieMetadataFormatVersion\tx\n", "version line"),
        (b"BookieMetadataFormatVersion\t1234567890\n", "version line"),
        (b"BookieMetadataFormatVersion\t4\n", "version is 4"),
        (b"BookieMetadataFormatVersion\t0\n", "version is 0"),
        (b"BookieMetadataFormatVersion\t3\n", "length is damaged"),
        (b"BookieMetadataFormatVersion\t3\n" + b"\xff" * 6, "length is damaged"),
        (body_v3(VALID_V3)[:-1], "are announced"),
        (body_v3(VALID_V3) + b"x", "are announced"),
        (body_v3("08"), "damaged"),
        (body_v3(VALID_V3.replace("2801", "")), "lacks required fields"),
        (body_v3(VALID_V3.replace("2801", "2804")), "lacks required fields"),
        (body_v3(VALID_V3.replace("3803", "3809")), "digest type"),
        (body_v3(VALID_V3.replace("0801", "0802")), "do not ascend"),
        (body_v3(VALID_V3.replace("0801", "0800")), "write quorum is empty"),
        (body_v3(VALID_V3.replace("32070a03613a311000", "")), "covers entry 0"),
        (
            body_v3(VALID_V3.replace("32070a03613a311000", "32050a03613a31")),
            "lacks required fields",
        ),
        (body_v3(VALID_V3.replace("613a31", "612f31")), "cannot exist"),
        (body_v3(VALID_V3.replace("613a31", "803a31")), "not UTF-8"),
        (body_v3(VALID_V3 + "5a030a0180"), "not UTF-8"),
        (b"BookieMetadataFormatVersion\t3\n" + bytes(LEDGER_METADATA_SIZE_BYTES_MAX), "too large"),
        (v2("quorumSize: 1"), "lacks required fields"),
        (v2("quorumSize: }"), "text is damaged"),
        (b"BookieMetadataFormatVersion\t2\n\xff", "text is damaged"),
        (v1("2\n3\n"), "lines are damaged"),
        (v1("2\n3\nx\n"), "lines are damaged"),
        (b"BookieMetadataFormatVersion\t1\n\xff", "lines are damaged"),
        (v1("1\n1\n0\nx\ta:1\n"), "lines are damaged"),
        (v1("1\n1\n0\n"), "covers entry 0"),
    ],
)
def test_bad_metadata_is_a_format_error(data: bytes, message: str) -> None:
    """Damaged, newer and impossible metadata is refused with the ledger's id."""
    with pytest.raises(FormatError, match=message) as caught:
        decode(1, data)
    assert "ledger 1" in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "rule"),
    [
        (replace(OPEN, ledger_id=-1), "ledger id"),
        (replace(OPEN, ledger_id=2**63), "ledger id"),
        (replace(OPEN, ack_quorum_size=-1), "ascend"),
        (replace(OPEN, ack_quorum_size=4), "ascend"),
        (replace(OPEN, write_quorum_size=4), "ascend"),
        (replace(OPEN, fragments=()), "covers entry 0"),
        (replace(OPEN, fragments=(Fragment(1, THREE),)), "covers entry 0"),
        (replace(OPEN, fragments=(Fragment(0, THREE), Fragment(0, THREE))), "do not ascend"),
        (replace(OPEN, fragments=(Fragment(0, THREE), Fragment(2**63, THREE))), "do not ascend"),
        (replace(OPEN, fragments=(Fragment(0, THREE[:2]),)), "3 different bookies"),
        (replace(OPEN, fragments=(Fragment(0, ("a", "b", "a")),)), "3 different bookies"),
        (replace(OPEN, fragments=(Fragment(0, (*THREE, "a:3181")),)), "3 different bookies"),
        (replace(OPEN, fragments=(Fragment(0, ("a", "b", "c/d")),)), "cannot exist"),
        (replace(OPEN, last_entry_id=3), "not closed"),
        (replace(OPEN, length=3), "not closed"),
        (OPEN.closed(-2, 0), "out of range"),
        (OPEN.closed(2**63, 0), "out of range"),
        (OPEN.closed(1, -1), "out of range"),
        (replace(OPEN, c_token=2**63), "64-bit"),
        (replace(OPEN, ctime_ms=2**63), "64-bit"),
        (replace(OPEN, writer_id="w"), "32 hexadecimal digits"),
        (replace(OPEN, custom_metadata={"k": bytes(LEDGER_METADATA_SIZE_BYTES_MAX)}), "more than"),
        (replace(OPEN, custom_metadata={"\ud800": b""}), "metadata of ledger 7"),
    ],
)
def test_impossible_metadata_is_not_encoded(metadata: LedgerMetadata, rule: str) -> None:
    """Encoding refuses metadata that is impossible for a ledger."""
    with pytest.raises(BadRequestError, match=rule):
        encode(metadata)


def test_an_open_ledger_has_room_for_its_end() -> None:
    """Whatever can be encoded open can be encoded closed, also with the greatest numbers."""
    size = LEDGER_METADATA_SIZE_BYTES_MAX - len(encode(OPEN)) - 64
    while True:
        fuller = replace(OPEN, custom_metadata={"k": bytes(size)})
        try:
            encode(fuller)
        except BadRequestError:
            break
        encode(fuller.closed(MAX_ID, MAX_ID))
        encode(fuller.with_state(LedgerState.IN_RECOVERY))
        size += 1
    assert LEDGER_METADATA_SIZE_BYTES_MAX - size < 400


def test_fragments_cover_entries() -> None:
    """The fragment of an entry is the last one that starts at or before it."""
    later = Fragment(10, ("d", "e", "f")), Fragment(20, ("g", "h", "i"))
    metadata = replace(OPEN, fragments=(*OPEN.fragments, *later))
    assert [metadata.fragment_of(e).first_entry_id for e in (0, 9, 10, 19, 20, MAX_ID)] == [
        0,
        0,
        10,
        10,
        20,
        20,
    ]
    assert metadata.last_fragment == Fragment(20, ("g", "h", "i"))


def test_edits_change_state_only() -> None:
    """Edits are new values; reopening for recovery forgets the end."""
    closed = OPEN.closed(41, 99)
    assert (closed.is_closed, closed.last_entry_id, closed.length) == (True, 41, 99)
    recovering = closed.with_state(LedgerState.IN_RECOVERY)
    assert (recovering.is_closed, recovering.last_entry_id, recovering.length) == (False, -1, 0)
    assert replace(recovering, state=LedgerState.OPEN) == OPEN


def test_the_key_is_not_shown() -> None:
    """Metadata may be logged: its key is not in the text."""
    assert "password_key" not in repr(OPEN)


def test_versioned_pairs_value_and_version() -> None:
    """A version travels with what it is the version of."""
    assert Versioned(OPEN, 3) == Versioned(OPEN, 3)
    assert Versioned(OPEN, 3) != Versioned(OPEN, 4)


WRITER_ID = "0123456789abcdef" * 2


def test_the_writer_is_not_custom_metadata_of_the_user() -> None:
    """It is stored there, under a reserved name, so that other readers keep it."""
    named = replace(OPEN, writer_id=WRITER_ID)
    message = LedgerMetadataFormat.FromString(_body(encode(named)))
    stored = {one.key: one.value for one in message.customMetadata}
    assert stored == {**OPEN.custom_metadata, "bookie.writer": WRITER_ID.encode()}
    assert decode(7, encode(named)) == named
    assert decode(7, encode(named)).custom_metadata == OPEN.custom_metadata
    assert decode(7, encode(OPEN)).writer_id == ""


@pytest.mark.parametrize("value", [b"", b"me", WRITER_ID.upper().encode(), b"\xff" * 32])
def test_what_another_program_stored_under_that_name_is_kept(value: bytes) -> None:
    foreign = replace(OPEN, custom_metadata={"bookie.writer": value})
    assert decode(7, encode(foreign)) == foreign


def test_the_writer_makes_room_for_the_user() -> None:
    """A ledger that could be made without a writer's id can be made with it."""
    size = LEDGER_METADATA_SIZE_BYTES_MAX - len(encode(OPEN)) - 64
    dropped = 0
    while True:
        fuller = replace(OPEN, custom_metadata={"k": bytes(size)})
        try:
            encode(fuller)
        except BadRequestError:
            break
        found = decode(7, encode(replace(fuller, writer_id=WRITER_ID)))
        assert replace(found, writer_id="") == fuller
        encode(found.closed(MAX_ID, MAX_ID))
        dropped += not found.writer_id
        size += 1
    assert 40 < dropped < 60


def _body(data: bytes) -> bytes:
    """The message, behind the line of the version and its length."""
    rest = data.partition(b"\n")[2]
    return rest[next(at for at, byte in enumerate(rest) if byte < 0x80) + 1 :]
