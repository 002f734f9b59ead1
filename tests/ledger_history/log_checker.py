"""C15: a log made of ledgers has each acknowledged record once, in order, for all consumers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.ledger_history.ledger_events import EventOutcome, PayloadDigest
from tests.ledger_history.ledger_view import Findings

NO_LEDGER = -1
"""The ledger of a violation that concerns a whole log."""


@dataclass(frozen=True, slots=True)
class LogAppend:
    """A record that a producer appended. A repeated append of one record has the same digest."""

    producer: str
    sequence: int
    """Rises with each new record of the producer."""
    digest: PayloadDigest
    outcome: EventOutcome


@dataclass(frozen=True, slots=True)
class LogHistory:
    """What producers and consumers of one log saw, and what it holds at the end."""

    appends: tuple[LogAppend, ...]
    ledgers: tuple[tuple[int, tuple[PayloadDigest, ...]], ...]
    """Each ledger of the log's list at the end, with its records in order."""
    consumers: Mapping[str, Sequence[PayloadDigest]]
    """What each consumer got that began at the log's first record."""
    is_idempotent: bool = True
    """True if the log removes repeated appends of one record."""


def check_log(history: LogHistory, findings: Findings) -> None:
    """C15: the concatenation holds what was acknowledged, once, in each producer's order.

    Each consumer got a beginning of it, so that of two consumers one got what the other did and
    perhaps more.
    """
    attempts = {append.digest: append for append in history.appends}
    places: defaultdict[PayloadDigest, list[int]] = defaultdict(list)
    records = [(ledger_id, one) for ledger_id, ledger in history.ledgers for one in ledger]
    newest: dict[str, int] = {}
    for place, (ledger_id, digest) in enumerate(records):
        append = attempts.get(digest)
        is_first = digest not in places
        places[digest].append(place)
        if append is None:
            findings.add("C15", ledger_id, f"record {place} was never appended: {digest}")
        elif not is_first:
            if history.is_idempotent:
                findings.add("C15", ledger_id, f"record {place} repeats {places[digest][0]}")
        elif append.sequence < newest.get(append.producer, append.sequence):
            message = f"record {place} of {append.producer} stands behind a later one"
            findings.add("C15", ledger_id, message)
        else:
            newest[append.producer] = append.sequence
    ended_ok = {one.digest: one for one in history.appends if one.outcome is EventOutcome.OK}
    for digest, append in ended_ok.items():
        if digest not in places:
            message = f"record {append.sequence} of {append.producer} was acknowledged and is lost"
            findings.add("C15", NO_LEDGER, message)
    contents = [digest for _, digest in records]
    for name, seen in sorted(history.consumers.items()):
        if list(seen) != contents[: len(seen)]:
            findings.add("C15", NO_LEDGER, f"consumer {name} saw another order or other records")
