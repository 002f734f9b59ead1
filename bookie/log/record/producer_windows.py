"""Which sequence numbers of idempotent producers are in a partition already, and where.

A producer numbers its records, and sends one again if it cannot know whether it was appended. The
partition's writer then answers with the position of the first one. It remembers the last
`WINDOW_SEQUENCES` numbers of each producer, and the producers that appended last.

Source: the idempotent producers of Apache Kafka, except that numbers may leave gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from bookie.errors import DuplicateRecordError
from bookie.log.record.log_record import LogPosition, Producer
from bookie.log.record.producer_snapshot import SequenceRun

WINDOW_SEQUENCES = 1000
"""How far back, in sequence numbers, a duplicate of one producer is recognised."""

PRODUCERS_MAX = 10_000
RUNS_MAX = 40_000
"""With more producers, or more runs of all, the one that was silent for longest is forgotten."""


class ProducerWindows:
    """What a writer knows of the producers of one partition."""

    def __init__(self, known: Mapping[str, list[SequenceRun]] | None = None) -> None:
        """`known` is what an earlier writer knew, least recent producer first."""
        self._runs = {name: list(runs) for name, runs in (known or {}).items() if runs}
        self._count = sum(map(len, self._runs.values()))

    def __bool__(self) -> bool:
        return bool(self._runs)

    def state(self) -> Mapping[str, list[SequenceRun]]:
        """What is known, for a snapshot."""
        return self._runs

    def last_sequence(self, producer_id: str) -> int:
        """The last sequence number of a producer; -1 if none is known."""
        runs = self._runs.get(producer_id)
        return runs[-1].first_sequence + runs[-1].length - 1 if runs else -1

    def find(self, producer: Producer) -> LogPosition | None:
        """Where a record was appended first; None if it is a new one.

        Raises:
            DuplicateRecordError: it is older than the window, or was left out by the producer.
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
        """`length` records, the first of them `producer`'s, are in the entries from `at` on.

        Their numbers are greater than all before, except after `forget`.
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
        self._runs[producer_id] = runs  # the most recent one stands last
        self._count += len(runs)
        while len(self._runs) > PRODUCERS_MAX or (self._count > RUNS_MAX and len(self._runs) > 1):
            self._count -= len(self._runs.pop(next(iter(self._runs))))

    def forget(self, producer: Producer) -> None:
        """The record, and all later ones of its producer, were not appended after all."""
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
