"""The proof of a deletion in the metadata store: its time, and the client that made it.

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
    """One deletion, as its process recorded it."""

    deleted_at_ms: int
    """Wall clock, milliseconds since 1970."""
    deleted_by: str = ""
    """Host and process id; for people. Empty if unknown."""


def encode_proof(proof: DeletionProof) -> bytes:
    """The value of the record."""
    return json_record.encode(_FORMAT, _VERSION, asdict(proof))


def decode_proof(data: bytes) -> DeletionProof:
    """The proof in the value of the record.

    Raises:
        FormatError: it is damaged, or written by a newer version.
    """
    fields = json_record.decode(_FORMAT, _VERSION, data)
    return DeletionProof(fields.integer("deleted_at_ms"), fields.text("deleted_by"))
