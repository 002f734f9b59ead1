"""The metadata of a ledger, and its bytes in the metadata store.

**Fragments** cover a ledger's entries 0 … last. From a fragment's `first_entry_id` up to the
`first_entry_id` of the next fragment, all entries are on the bookies of one ensemble. Entry *e* is
stored on `write_quorum_size` bookies of the ensemble, starting at ``e mod ensemble_size``. An entry
is acknowledged when `ack_quorum_size` of its bookies have stored it.

The bytes are the line ``BookieMetadataFormatVersion<TAB>n<LF>``, then the content of version n:

======= ==========================================================================
version content
======= ==========================================================================
3       varint length, then ``LedgerMetadataFormat`` (``proto/bookkeeper``) in binary
2       ``LedgerMetadataFormat`` as protobuf text
1       lines: write quorum; ensemble size; length; ``first entry<TAB>bookie…`` for
        each fragment; unless the ledger is open, a last line
        ``last entry<TAB>CLOSED``, which has -102 as last entry if in recovery
======= ==========================================================================

This module writes version 3 and reads all versions. Fields are written in the order of their
numbers and custom metadata in the order of its keys, so equal metadata has equal bytes. The field
named ``password`` holds the ledger key (:func:`bookie.entry.digest.derive_key`), never the
password.

The writer's id is stored as custom metadata of the name `WRITER`. So BookKeeper and older versions
of bookie can read such metadata, and they keep the writer's id when they change other fields. In
`LedgerMetadata`, the id is the field `writer_id`, and not part of the custom metadata.

Source: Apache BookKeeper's ledger metadata formats (version 3: BP-50).
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from google.protobuf.message import DecodeError

from bookie._pb.ledger_metadata_pb2 import LedgerMetadataFormat
from bookie.entry.digest import DigestType, is_password
from bookie.errors import BadRequestError, FormatError
from bookie.ids import MAX_ID, NO_ENTRY, is_valid_bookie_id

LEDGER_METADATA_SIZE_BYTES_MAX = 512 * 1024
"""The largest size of encoded metadata; this is below the limits of all metadata stores."""

CLOSING_BYTES_MAX = 24
"""The largest number of bytes that a close adds to the encoded metadata: two numbers."""

WRITER = "bookie.writer"
"""The reserved name in stored custom metadata whose value is the writer's id."""

_WRITER_ID = re.compile(r"[0-9a-f]{32}")
_VERSION_LINE = re.compile(rb"BookieMetadataFormatVersion\t([0-9]{1,9})\n")
_HEADER_V3 = b"BookieMetadataFormatVersion\t3\n"
_NEWEST_VERSION = 3
_V1_CLOSED = "CLOSED"
_V1_IN_RECOVERY = -102
_INT32_MAX = 2**31 - 1


class LedgerState(enum.IntEnum):
    """The state of a ledger: open to its writer, under recovery, or closed for ever."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Fragment:
    """The ensemble of the entries from `first_entry_id` up to the next fragment."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """All facts about a ledger in the metadata store; the object is immutable."""

    ledger_id: int
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    state: LedgerState
    fragments: tuple[Fragment, ...]
    """The fragments in ascending order; the first starts at entry 0."""
    digest_type: DigestType = DigestType.CRC32C
    password_key: bytes = field(default=b"", repr=False)
    """The ledger key (see `digest`); not in the repr, because anyone who knows the key can write to
    the ledger."""
    ctime_ms: int = -1
    """Creation time, in ms since 1970; -1 if unknown."""
    last_entry_id: int = NO_ENTRY
    """The last entry of a closed ledger; -1 if it is empty or not closed."""
    length: int = 0
    """Payload bytes of a closed ledger; 0 if it is not closed."""
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    c_token: int = 0
    """The creation token: a random number that identifies the call that created the ledger."""
    writer_id: str = ""
    """The client that writes or wrote the ledger (`keys.writer`); empty if unknown."""

    @property
    def is_closed(self) -> bool:
        """True once the ledger is CLOSED, so that its last entry cannot change."""
        return self.state is LedgerState.CLOSED

    @property
    def has_password(self) -> bool:
        """True if the ledger was created with a password that is not empty."""
        return not is_password(b"", self.password_key, self.c_token)

    @property
    def last_fragment(self) -> Fragment:
        """The last fragment, to which entries are appended."""
        return self.fragments[-1]

    def fragment_of(self, entry_id: int) -> Fragment:
        """Return the fragment that covers `entry_id`, which is not negative."""
        assert entry_id >= 0
        if len(self.fragments) == 1:
            return self.fragments[0]
        starts = [fragment.first_entry_id for fragment in self.fragments]
        return self.fragments[bisect_right(starts, entry_id) - 1]

    def with_state(self, state: LedgerState) -> LedgerMetadata:
        """Return the metadata with the state OPEN or IN_RECOVERY; use `closed` for CLOSED."""
        assert state is not LedgerState.CLOSED
        return replace(self, state=state, last_entry_id=NO_ENTRY, length=0)

    def closed(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """Return CLOSED metadata; an empty ledger has `last_entry_id` -1 and `length` 0."""
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

    def validate(self) -> None:
        """Check the rules that the metadata of every ledger must follow.

        Raises:
            BadRequestError: a rule is broken; the message names the first broken rule.
        """
        for broken, rule in self._rules():
            if broken:
                raise BadRequestError(f"metadata of ledger {self.ledger_id}: {rule}")

    def _rules(self) -> list[tuple[bool, str]]:
        starts = [fragment.first_entry_id for fragment in self.fragments]
        return [
            (not 0 <= self.ledger_id <= MAX_ID, "the ledger id is not in 0 … 2^63-1"),
            (
                not 0 <= self.ack_quorum_size <= self.write_quorum_size <= self.ensemble_size,
                f"ack quorum {self.ack_quorum_size}, write quorum {self.write_quorum_size} and "
                f"ensemble {self.ensemble_size} do not ascend from 0",
            ),
            (
                not 1 <= self.write_quorum_size <= self.ensemble_size <= _INT32_MAX,
                "the write quorum is empty or the ensemble absurd",
            ),
            (not starts or starts[0] != 0, "no fragment covers entry 0"),
            (
                any(a >= b for a, b in pairwise(starts)) or (bool(starts) and starts[-1] > MAX_ID),
                "fragments do not ascend",
            ),
            (
                any(len(set(f.bookies)) != self.ensemble_size for f in self.fragments)
                or any(len(f.bookies) != self.ensemble_size for f in self.fragments),
                f"a fragment does not have {self.ensemble_size} different bookies",
            ),
            (
                not all(is_valid_bookie_id(b) for f in self.fragments for b in f.bookies),
                "a fragment names a bookie that cannot exist",
            ),
            (
                not (NO_ENTRY <= self.last_entry_id <= MAX_ID and 0 <= self.length <= MAX_ID),
                "last entry or length is out of range",
            ),
            (
                self.state is not LedgerState.CLOSED
                and (self.last_entry_id != NO_ENTRY or self.length != 0),
                "a ledger that is not closed has no last entry and no length",
            ),
            (
                not (-(2**63) <= self.ctime_ms <= MAX_ID and -(2**63) <= self.c_token <= MAX_ID),
                "creation time or token is not a 64-bit number",
            ),
            (
                bool(self.writer_id) and not is_writer_id(self.writer_id),
                "the id of its writer is not 32 hexadecimal digits",
            ),
        ]


def is_writer_id(text: str) -> bool:
    """True if `text` may name a writer: 32 hexadecimal digits."""
    return _WRITER_ID.fullmatch(text) is not None


def encode(metadata: LedgerMetadata) -> bytes:
    """Encode `metadata` in format version 3; omit the writer's id if the id does not fit.

    Raises:
        BadRequestError: the metadata breaks a rule, or is too large for metadata stores.
    """
    metadata.validate()
    # An open ledger needs room for the last entry and the length, which its close adds.
    room = CLOSING_BYTES_MAX if metadata.state is LedgerState.OPEN else 0
    size_max = LEDGER_METADATA_SIZE_BYTES_MAX - room
    data = _encode_v3(metadata)
    if len(data) > size_max and metadata.writer_id:
        # The writer's id only serves automatic recovery, so the user's data has priority.
        data = _encode_v3(replace(metadata, writer_id=""))
    if len(data) > size_max:
        raise BadRequestError(
            f"metadata of ledger {metadata.ledger_id} has {len(data)} bytes, "
            f"more than the {size_max} that metadata stores take"
        )
    return data


def _encode_v3(metadata: LedgerMetadata) -> bytes:
    try:
        body = _to_message(metadata).SerializeToString(deterministic=True)
    except ValueError as error:
        raise BadRequestError(f"metadata of ledger {metadata.ledger_id}: {error}") from error
    return _HEADER_V3 + _encode_varint(len(body)) + body


def decode(ledger_id: int, data: bytes) -> LedgerMetadata:
    """Decode the metadata of `ledger_id` from its bytes, of any format version.

    Version 1 has no digest type or password; such ledgers are read as CRC32 with an empty key.

    Raises:
        FormatError: `data` is not ledger metadata, has a newer version, or has invalid values.
    """
    if len(data) > LEDGER_METADATA_SIZE_BYTES_MAX:
        raise FormatError(f"metadata of ledger {ledger_id} is too large: {len(data)} bytes")
    match = _VERSION_LINE.match(data)
    if match is None:
        raise FormatError(f"metadata of ledger {ledger_id} does not start with a version line")
    version = int(match[1])
    body = data[match.end() :]
    try:
        if version == 3:
            metadata = _from_message(ledger_id, _parse_binary(body))
        elif version == 2:
            metadata = _from_message(ledger_id, _parse_text(body))
        elif version == 1:
            metadata = _parse_lines(ledger_id, body)
        else:
            raise FormatError(
                f"its format version is {version}, and this program reads 1 to {_NEWEST_VERSION}"
            )
        metadata.validate()
    except (FormatError, BadRequestError) as error:
        raise FormatError(f"metadata of ledger {ledger_id} cannot be read: {error}") from error
    return metadata


def _to_message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=LedgerMetadataFormat.State.Name(metadata.state),
        digestType=LedgerMetadataFormat.DigestType.Name(metadata.digest_type),
        password=metadata.password_key,
        ackQuorumSize=metadata.ack_quorum_size,
        cToken=metadata.c_token,
    )
    if metadata.ctime_ms >= 0:
        message.ctime = metadata.ctime_ms
    for fragment in metadata.fragments:
        message.segment.add(firstEntryId=fragment.first_entry_id, ensembleMember=fragment.bookies)
    custom = dict(metadata.custom_metadata)
    if metadata.writer_id:
        custom[WRITER] = metadata.writer_id.encode("ascii")
    for key, value in sorted(custom.items()):
        message.customMetadata.add(key=key, value=value)
    return message


def _parse_binary(body: bytes) -> LedgerMetadataFormat:
    size, at = _decode_varint(body)
    if at + size != len(body):
        raise FormatError(f"{size} bytes are announced, {len(body) - at} are there")
    try:
        message = LedgerMetadataFormat.FromString(body[at:])
    except DecodeError as error:
        raise FormatError(f"its protobuf message is damaged: {error}") from error
    return _complete(message)


def _parse_text(body: bytes) -> LedgerMetadataFormat:
    # Import the text parser only here, because only old ledgers need it.
    from google.protobuf import text_format

    message = LedgerMetadataFormat()
    try:
        text_format.Parse(body, message, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise FormatError(f"its protobuf text is damaged: {error}") from error
    return _complete(message)


def _complete(message: LedgerMetadataFormat) -> LedgerMetadataFormat:
    # Check required fields, because the parser accepts messages without them and with unknown
    # states.
    if not message.IsInitialized():
        raise FormatError("its protobuf message lacks required fields")
    return message


def _from_message(ledger_id: int, message: LedgerMetadataFormat) -> LedgerMetadata:
    digest_type = DigestType.CRC32
    if message.HasField("digestType"):
        digest_type = DigestType(message.digestType)
    elif message.HasField("password"):
        raise FormatError("its digest type is not one that this program knows")
    state = LedgerState(message.state)
    is_closed = state is LedgerState.CLOSED
    custom = {_text(entry.key): entry.value for entry in message.customMetadata}
    # If the value is no writer id, another program wrote it: keep it as custom metadata.
    writer_id = custom.get(WRITER, b"").decode("latin-1")
    if is_writer_id(writer_id):
        del custom[WRITER]
    else:
        writer_id = ""
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=message.ensembleSize,
        write_quorum_size=message.quorumSize,
        ack_quorum_size=(
            message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
        ),
        state=state,
        fragments=tuple(
            Fragment(segment.firstEntryId, tuple(map(_text, segment.ensembleMember)))
            for segment in message.segment
        ),
        digest_type=digest_type,
        password_key=message.password,
        ctime_ms=message.ctime if message.HasField("ctime") else -1,
        last_entry_id=message.lastEntryId if is_closed else NO_ENTRY,
        length=message.length if is_closed else 0,
        custom_metadata=custom,
        c_token=message.cToken,
        writer_id=writer_id,
    )


def _text(value: object) -> str:
    # For an old message, the parser returns a string that is not UTF-8 as bytes.
    if not isinstance(value, str):
        raise FormatError("a name in its protobuf message is not UTF-8")
    return value


def _parse_lines(ledger_id: int, body: bytes) -> LedgerMetadata:
    try:
        lines = body.decode("utf-8").splitlines()
        write_quorum_size, ensemble_size, length = (int(line) for line in lines[:3])
        state, last_entry_id = LedgerState.OPEN, NO_ENTRY
        fragments = []
        for line in lines[3:]:
            first, *rest = line.split("\t")
            if rest == [_V1_CLOSED]:
                state = LedgerState.IN_RECOVERY
                if int(first) != _V1_IN_RECOVERY:
                    state, last_entry_id = LedgerState.CLOSED, int(first)
                break
            fragments.append(Fragment(int(first), tuple(rest)))
    except ValueError as error:
        raise FormatError(f"its lines are damaged: {error}") from error
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=ensemble_size,
        write_quorum_size=write_quorum_size,
        ack_quorum_size=write_quorum_size,
        state=state,
        fragments=tuple(fragments),
        digest_type=DigestType.CRC32,
        last_entry_id=last_entry_id,
        length=length if state is LedgerState.CLOSED else 0,
    )


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _decode_varint(data: bytes) -> tuple[int, int]:
    """Return the varint at the start of `data`, and its size in bytes, which is at most 5."""
    value = 0
    for at, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return value, at + 1
    raise FormatError("its length is damaged")
