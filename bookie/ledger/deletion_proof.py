"""The proof of a deletion in the metadata store: its time, and the client that deleted the ledger.

::

    {"deleted_at_ms":…,"deleted_by":"…","format":"bookie-deletion","version":1}
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bookie.metadata import json_record

_FORMAT = "bookie-deletion"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class DeletionProof:
    """One deletion, as the deleting process recorded it."""

    deleted_at_ms: int
    """Time of the deletion by the wall clock, in milliseconds since 1970."""
    deleted_by: str = ""
    """Host and process id of the deleting client, for operators; empty if unknown."""


def encode_proof(proof: DeletionProof) -> bytes:
    """Encode a proof of deletion as the value of its record."""
    return json_record.encode(_FORMAT, _VERSION, asdict(proof))


def decode_proof(data: bytes) -> DeletionProof:
    """Decode the proof of deletion in the value of a record.

    Raises:
        FormatError: the proof is damaged, or written by a newer version.
    """
    fields = json_record.decode(_FORMAT, _VERSION, data)
    return DeletionProof(fields.integer("deleted_at_ms"), fields.text("deleted_by"))
