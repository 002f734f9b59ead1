"""The idempotent producers of a partition: their sequence numbers, and snapshots of the numbers.

A producer numbers its records. If the outcome of an append is unknown, the producer sends the
record again. For a record that was already appended, the partition's writer returns the position of
the first append. The writer remembers at least the last `WINDOW_SEQUENCES` numbers of a producer.
If there are more than `PRODUCERS_MAX` producers or `RUNS_MAX` runs, the writer forgets the
producers whose last append is oldest.

A snapshot contains the producers that a writer knows. The snapshot is the value of a control record
in the log: canonical JSON (:mod:`bookie.metadata.json_record`), format ``bookie-producers``,
version 1::

    {"names":["<id>", …],"runs":[[name, sequence, ledger, entry, offset, length], …], …}

A run is `length` consecutive sequence numbers in consecutive entries. The runs of a producer are in
ascending order. The `name` of a run is an index into ``names``. The names are ordered by the time
of the last append of each producer, oldest first.

Source: the idempotent producers of Apache Kafka; but here, a producer's numbers may have gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bookie.errors import DuplicateRecordError, FormatError
from bookie.log.record.log_record import LogPosition, Producer
from bookie.metadata import json_record

WINDOW_SEQUENCES = 1000
"""The number of last sequence numbers that a writer keeps of each producer, to find duplicates."""

PRODUCERS_MAX = 10_000
RUNS_MAX = 40_000
"""Beyond these two limits, the writer forgets the producers whose last append is oldest."""

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
    """Encode a snapshot of producers as bytes, least recent producer first."""
    rows = [[name, [list(run) for run in runs]] for name, runs in producers.items()]
    fields = {
        "names": [name for name, _ in rows],
        "runs": [[index, *run] for index, (_, runs) in enumerate(rows) for run in runs],
    }
    return json_record.encode(_FORMAT, _VERSION, fields)


def decode_producers(data: bytes) -> dict[str, list[SequenceRun]]:
    """Decode the producers in a snapshot, least recent producer first.

    Raises:
        FormatError: `data` is not a snapshot, is damaged, or has a newer version.
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


class ProducerWindows:
    """The known sequence numbers of the producers of one partition."""

    def __init__(self, known: Mapping[str, list[SequenceRun]] | None = None) -> None:
        """`known` has the sequence numbers from an earlier writer, least recent producer first."""
        self._runs = {name: list(runs) for name, runs in (known or {}).items() if runs}
        self._count = sum(map(len, self._runs.values()))

    def __bool__(self) -> bool:
        return bool(self._runs)

    def state(self) -> Mapping[str, list[SequenceRun]]:
        """Return the known sequence numbers of each producer, for `encode_producers`."""
        return self._runs

    def last_sequence(self, producer_id: str) -> int:
        """Return the last sequence number of a producer; -1 if the producer is unknown."""
        runs = self._runs.get(producer_id)
        return runs[-1].first_sequence + runs[-1].length - 1 if runs else -1

    def find(self, producer: Producer) -> LogPosition | None:
        """Return the position of a record's first append; None if the record is new.

        Raises:
            DuplicateRecordError: the number is too old to be remembered, or was never used.
        """
        producer_id, sequence = producer
        if sequence > self.last_sequence(producer_id):
            return None
        runs = self._runs[producer_id]
        at = bisect_right(runs, sequence, key=lambda run: run.first_sequence) - 1
        if at >= 0:
            run = runs[at]
            behind = sequence - run.first_sequence
            if behind < run.length:
                return LogPosition(
                    run.ledger_id, run.first_entry_id + behind, run.first_offset + behind
                )
        raise DuplicateRecordError(
            f"producer {producer_id!r} has reached sequence number "
            f"{self.last_sequence(producer_id)}, and {sequence} is not among the last "
            f"{WINDOW_SEQUENCES} that were appended"
        )

    def add(self, producer: Producer, at: LogPosition, length: int = 1) -> None:
        """Remember the positions of `length` records.

        `producer` and `at` belong to the first record.

        The numbers must be greater than all known numbers of the producer.
        """
        producer_id, sequence = producer
        runs = self._runs.pop(producer_id, [])
        self._count -= len(runs)
        new = SequenceRun(sequence, at.ledger_id, at.entry_id, at.offset, length)
        if runs and _continues(runs[-1], new):
            runs[-1] = runs[-1]._replace(length=runs[-1].length + length)
        else:
            runs.append(new)
        oldest = sequence + length - WINDOW_SEQUENCES
        while len(runs) > 1 and runs[0].first_sequence + runs[0].length <= oldest:
            del runs[0]
        self._runs[producer_id] = runs  # the most recent producer is last
        self._count += len(runs)
        while len(self._runs) > PRODUCERS_MAX or (self._count > RUNS_MAX and len(self._runs) > 1):
            self._count -= len(self._runs.pop(next(iter(self._runs))))

    def forget(self, producer: Producer) -> None:
        """Forget a record that was not appended, and all later records of its producer."""
        producer_id, sequence = producer
        runs = self._runs.get(producer_id, [])
        self._count -= len(runs)
        while runs and runs[-1].first_sequence >= sequence:
            runs.pop()
        if runs:
            runs[-1] = runs[-1]._replace(
                length=min(runs[-1].length, sequence - runs[-1].first_sequence)
            )
            self._count += len(runs)
        else:
            self._runs.pop(producer_id, None)


def _continues(run: SequenceRun, new: SequenceRun) -> bool:
    return (
        new.first_sequence == run.first_sequence + run.length
        and new.ledger_id == run.ledger_id
        and new.first_entry_id == run.first_entry_id + run.length
        and new.first_offset == run.first_offset + run.length
    )
