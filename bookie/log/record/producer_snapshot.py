"""What a writer knows of idempotent producers: the value of a control record in the log.

Canonical JSON (:mod:`bookie.metadata.json_record`), format ``bookie-producers``, version 1::

    {"names":["<id>", …],"runs":[[name, sequence, ledger, entry, offset, length], …], …}

A run has `length` consecutive sequence numbers in consecutive entries. The runs of a producer
ascend. The producer that appended last has the last name; `name` is an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bookie.errors import FormatError
from bookie.metadata import json_record

_FORMAT = "bookie-producers"
_VERSION = 1


class SequenceRun(NamedTuple):
    """Consecutive sequence numbers of one producer, in consecutive entries of one ledger."""

    first_sequence: int
    ledger_id: int
    first_entry_id: int
    first_offset: int
    length: int


def encode_producers(producers: Mapping[str, Iterable[SequenceRun]]) -> bytes:
    """The bytes of what is known, least recent producer first."""
    rows = [[name, [list(run) for run in runs]] for name, runs in producers.items()]
    fields = {
        "names": [name for name, _ in rows],
        "runs": [[index, *run] for index, (_, runs) in enumerate(rows) for run in runs],
    }
    return json_record.encode(_FORMAT, _VERSION, fields)


def decode_producers(data: bytes) -> dict[str, list[SequenceRun]]:
    """What is known, least recent producer first.

    Raises:
        FormatError: not such a value, damaged, or of a newer version.
    """
    fields = json_record.decode(_FORMAT, _VERSION, data)
    names = fields.texts("names")
    found: dict[str, list[SequenceRun]] = {name: [] for name in names}
    for row in fields.rows("runs", width=6):
        index, *numbers = row
        if index is None or not 0 <= index < len(names) or None in numbers:
            raise FormatError(f"{fields.where}: a run belongs to no producer, or lacks a number")
        found[names[index]].append(SequenceRun(*(number or 0 for number in numbers)))
    return found
