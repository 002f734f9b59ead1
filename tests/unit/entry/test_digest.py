"""Digests: known values, sizes, and the ledger key."""

from __future__ import annotations

import hashlib
import hmac
import zlib
from random import Random

import numpy as np
import pytest
from crc32c import crc32c

from bookie.entry.checksum import crcs_of_rows
from bookie.entry.digest import (
    LEDGER_KEY_SIZE_BYTES,
    DigestType,
    Headers,
    derive_key,
    digester_for_key,
)


def rows_of(headers: list[bytes]) -> Headers:
    """Headers as a digester takes many."""
    return np.frombuffer(b"".join(headers), np.uint8).reshape(len(headers), 32)


def test_crc32c_is_the_castagnoli_crc_big_endian() -> None:
    """CRC-32C of the standard check string is E3069283, however it is cut in two."""
    digester = digester_for_key(DigestType.CRC32C, b"")
    assert digester.digest(b"12345", b"6789") == bytes.fromhex("e3069283")
    assert digester.digest(b"", b"123456789") == bytes.fromhex("e3069283")


def test_crc32_is_zlibs_in_eight_bytes() -> None:
    """CRC-32 of the standard check string is CBF43926, widened."""
    digester = digester_for_key(DigestType.CRC32, b"")
    assert digester.digest(b"1234", b"56789") == bytes.fromhex("00000000cbf43926")
    assert zlib.crc32(b"123456789") == 0xCBF43926


def test_hmac_is_keyed_with_the_ledger_key() -> None:
    """The HMAC key is SHA1("mac" + ledger key), so the metadata suffices to verify."""
    ledger_key = derive_key(b"secret")
    mac_key = hashlib.sha1(b"mac" + ledger_key).digest()
    expected = hmac.digest(mac_key, b"headerpayload", "sha1")
    assert (
        digester_for_key(DigestType.HMAC, derive_key(b"secret")).digest(b"header", b"payload")
        == expected
    )
    assert digester_for_key(DigestType.HMAC, ledger_key).digest(b"header", b"payload") == expected
    assert (
        digester_for_key(DigestType.HMAC, derive_key(b"other")).digest(b"header", b"payload")
        != expected
    )


def test_dummy_digest_is_empty() -> None:
    """DUMMY takes no room."""
    assert digester_for_key(DigestType.DUMMY, b"").digest(b"header", b"payload") == b""


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_many_digests_are_the_single_ones_joined(digest_type: DigestType) -> None:
    """`digest_many` equals `digest` one by one, and each has the size it says."""
    digester = digester_for_key(digest_type, derive_key(b"secret"))
    headers = [bytes([i]) * 32 for i in range(40)]
    payloads = [b"x" * i for i in range(40)]
    singles = [digester.digest(h, p) for h, p in zip(headers, payloads, strict=True)]
    assert digester.type is digest_type
    assert {len(single) for single in singles} == {digester.size_bytes}
    assert digester.digest_many(rows_of(headers), payloads) == b"".join(singles)


@pytest.mark.parametrize("count", [1, 2, 40, 1024])
@pytest.mark.parametrize("differing", [0, 1, 5, 32])
def test_crcs_of_many_headers_are_those_of_each(count: int, differing: int) -> None:
    """However many of the 32 bytes differ from header to header, and wherever these are."""
    random = Random(f"{count}, {differing}")
    common = random.randbytes(32)
    places = random.sample(range(32), differing)
    headers = []
    for _ in range(count):
        header = bytearray(common)
        for place in places:
            header[place] = random.randrange(256)
        headers.append(bytes(header))
    assert crcs_of_rows(rows_of(headers)).tolist() == [crc32c(header) for header in headers]


def test_ledger_key_is_derived_and_empty_stays_empty() -> None:
    """The key is HMAC-SHA-256(password, "ledger"); the empty password has the empty key."""
    assert derive_key(b"") == b""
    assert derive_key(b"secret") == hmac.new(b"secret", b"ledger", "sha256").digest()
    assert len(derive_key(b"secret")) == LEDGER_KEY_SIZE_BYTES
