"""Digests of entries, and the ledger key that is derived from a password.

A digest covers a packet's header and payload, and is stored between the header and the payload. By
the digest, a reader verifies that a bookie's answer is the entry that the writer wrote.

======== ===== ================================================================
type     bytes content
======== ===== ================================================================
CRC32    8     CRC-32 (zlib) as a big-endian 64-bit number
HMAC     20    HMAC-SHA-1 under the key ``SHA1(b"mac" + ledger key)``
CRC32C   4     CRC-32C (Castagnoli) as a big-endian 32-bit number
DUMMY    0     nothing: the entry is not protected
======== ===== ================================================================

The password itself never leaves the client. :func:`key_of_life` derives the **ledger key** from the
password. The ledger key is stored in the ledger's metadata and sent to bookies. The key of HMAC
digests is derived from the ledger key. So every process that can read a ledger's metadata can check
the digests of the ledger's entries, as repair and the integrity check do.

The ledger key also distinguishes **lives**: the ledgers that used the same id one after another. An
id may be used again after a deletion, or because the metadata store was restored from a backup. Two
lives of an id have different creation tokens, so their ledger keys differ even without a password.
A bookie compares the key in each request with the first key that it received for the ledger id. So
a bookie never returns entries of another life. Older versions of bookie do not distinguish lives;
the ledgers that they created have the key of :func:`derive_key`.

Source: Apache BookKeeper's digest managers. BookKeeper stores the password in the ledger's
metadata; bookie stores the ledger key instead.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
import zlib
from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from bookie.entry.checksum import crc32c, crcs_of_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BytesLike = bytes | bytearray | memoryview

Headers: TypeAlias = "NDArray[np.uint8]"
"""Packet headers, one per row, each followed by the prefix of its payload; contiguous in memory."""

LEDGER_KEY_SIZE_BYTES = 32
"""Size of a ledger key in bytes. A ledger of an older version without a password has an empty
key."""

KEY_TAG_BYTES = 8


class DigestType(enum.IntEnum):
    """The digest type of a ledger's entries; the ledger's metadata contains its number."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


DIGESTS_BY_STRENGTH = (DigestType.DUMMY, DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC)
"""The digest types, weakest first: no digest, two checksums that detect damage, and HMAC, which
proves that the writer knew the key."""


def is_weaker(one: DigestType, other: DigestType) -> bool:
    """True if the digest type `one` proves less about an entry than the type `other`."""
    return DIGESTS_BY_STRENGTH.index(one) < DIGESTS_BY_STRENGTH.index(other)


class Digester(Protocol):
    """Computes one type of digest."""

    @property
    def type(self) -> DigestType: ...

    @property
    def size_bytes(self) -> int:
        """Size of one digest in bytes; 0 for DUMMY."""

    def digest(self, header: BytesLike, payload: BytesLike) -> bytes:
        """Return the digest of a packet's header and payload."""

    def digest_many(self, headers: Headers, payloads: Sequence[BytesLike]) -> bytes:
        """Return the digests of one or more packets, back to back; each payload has one header."""


class Crc32cDigester:
    """Computes CRC-32C, the default digest, by instructions of the processor at memory speed."""

    __slots__ = ()
    type = DigestType.CRC32C
    size_bytes = 4

    def digest(self, header: BytesLike, payload: BytesLike) -> bytes:
        return crc32c(payload, crc32c(header)).to_bytes(4, "big")

    def digest_many(self, headers: Headers, payloads: Sequence[BytesLike]) -> bytes:
        crcs = list(map(crc32c, payloads, crcs_of_rows(headers).tolist()))
        return struct.pack(f">{len(crcs)}I", *crcs)


class Crc32Digester:
    """Computes CRC-32 like zlib, and pads the checksum to 8 bytes."""

    __slots__ = ()
    type = DigestType.CRC32
    size_bytes = 8

    def digest(self, header: BytesLike, payload: BytesLike) -> bytes:
        return zlib.crc32(payload, zlib.crc32(header)).to_bytes(8, "big")

    def digest_many(self, headers: Headers, payloads: Sequence[BytesLike]) -> bytes:
        crcs = list(map(zlib.crc32, payloads, map(zlib.crc32, _each(headers))))
        return struct.pack(f">{len(crcs)}Q", *crcs)


class HmacDigester:
    """Computes HMAC-SHA-1, which also proves that the writer knew the ledger key."""

    __slots__ = ("_mac",)
    type = DigestType.HMAC
    size_bytes = 20

    def __init__(self, ledger_key: bytes) -> None:
        key = hashlib.sha1(b"mac" + ledger_key, usedforsecurity=False).digest()
        # For each packet, `digest` copies this state, because a new keyed state would cost more.
        self._mac = hmac.new(key, digestmod="sha1")

    def digest(self, header: BytesLike, payload: BytesLike) -> bytes:
        mac = self._mac.copy()
        mac.update(header)
        mac.update(payload)
        return mac.digest()

    def digest_many(self, headers: Headers, payloads: Sequence[BytesLike]) -> bytes:
        return b"".join(starmap(self.digest, zip(_each(headers), payloads, strict=True)))


class DummyDigester:
    """Computes no digest."""

    __slots__ = ()
    type = DigestType.DUMMY
    size_bytes = 0

    def digest(self, header: BytesLike, payload: BytesLike) -> bytes:
        return b""

    def digest_many(self, headers: Headers, payloads: Sequence[BytesLike]) -> bytes:
        return b""


def _each(headers: Headers) -> list[bytes]:
    """Return the headers as a list; ``tolist`` of rows is faster than slicing."""
    rows: NDArray[Any] = headers.view(f"V{headers.shape[1]}")[:, 0]
    each: list[bytes] = rows.tolist()
    return each


def derive_key(password: bytes) -> bytes:
    """Return the ledger key of older versions: 32 bytes, or empty for the empty password.

    The key is HMAC-SHA-256 over ``b"ledger"``, with the password as HMAC key.
    """
    if not password:
        return b""
    return hmac.digest(password, b"ledger", "sha256")


def key_of_life(password: bytes, token: int) -> bytes:
    """Return the ledger key for `password` and a creation token: 32 bytes.

    The ledger key is HMAC-SHA-256 over ``b"ledger"`` and the token (8 bytes, big-endian), with the
    password as HMAC key.
    """
    return hmac.digest(password, b"ledger" + token.to_bytes(8, "big", signed=True), "sha256")


def digest_of_key(ledger_key: bytes) -> bytes:
    """Return the SHA-256 hash under which a ledger key is stored; empty for the empty key."""
    return hashlib.sha256(b"ledger key\x00" + ledger_key).digest() if ledger_key else b""


def key_tag(ledger_key: bytes) -> bytes:
    """Return the first 8 bytes of `digest_of_key`: a tag that does not reveal the key.

    The tag distinguishes a ledger from an earlier ledger with the same id. Requests of WatchLac and
    ListLedgers contain no ledger key, so the bookie's answers contain the tag. The tag of the empty
    key is empty.
    """
    return digest_of_key(ledger_key)[:KEY_TAG_BYTES]


def is_password(password: bytes, ledger_key: bytes, token: int) -> bool:
    """True if `ledger_key` comes from `password`, with or without `token`; takes constant time."""
    return hmac.compare_digest(ledger_key, key_of_life(password, token)) or hmac.compare_digest(
        ledger_key, derive_key(password)
    )


def digester_for_key(digest_type: DigestType, ledger_key: bytes) -> Digester:
    """Return the digester for the digest type and the ledger key in a ledger's metadata."""
    match digest_type:
        case DigestType.CRC32C:
            return Crc32cDigester()
        case DigestType.CRC32:
            return Crc32Digester()
        case DigestType.HMAC:
            return HmacDigester(ledger_key)
        case DigestType.DUMMY:
            return DummyDigester()
