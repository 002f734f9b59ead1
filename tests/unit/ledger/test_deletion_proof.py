"""The proof that a deletion leaves in the metadata store."""

from __future__ import annotations

import pytest

from bookie.errors import FormatError, NewerFormatError
from bookie.ledger.deletion_proof import DeletionProof, decode_proof, encode_proof

PROOF = DeletionProof(1_728_000_000_000, "host:17")
BYTES = (
    b'{"deleted_at_ms":1728000000000,"deleted_by":"host:17","format":"bookie-deletion","version":1}'
)


def test_a_proof_has_exactly_these_bytes() -> None:
    assert encode_proof(PROOF) == BYTES
    assert decode_proof(BYTES) == PROOF


@pytest.mark.parametrize("data", [b"", b"junk", BYTES[:-1], BYTES.replace(b"17280", b'"728"')])
def test_a_damaged_proof_is_none(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_proof(data)


def test_a_newer_proof_is_refused() -> None:
    with pytest.raises(NewerFormatError):
        decode_proof(BYTES.replace(b'"version":1', b'"version":2'))
