"""Copies and keys of the protocol machines, for a search that keeps many states of them.

A copy shares what never changes. A **key** is a tuple of plain values; equal keys mean equal
futures. Both are written by hand, because they are made for every step of the search; `FIELDS`
says which attributes they know, and a test compares it with the machines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import permutations
from typing import TypeVar

from bookie.entry.batch import EntryBatch
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import pack_batch, parse_header
from bookie.ledger.metadata import Fragment, LedgerMetadata
from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.write.pacing import PacedSlot
from bookie.ledger.write.pending import PendingBatch
from bookie.ledger.write.writer import LedgerWriter
from tests.entry_batches import merged

LEDGER_ID = 7
PAYLOAD_BYTES = 2
_DIGESTER = digester_for_key(DigestType.CRC32C, b"")

T = TypeVar("T")
Key = tuple[object, ...]
Body = tuple[int, int]
"""An entry as bookies hold it: its id and the LAC that it carries. All else follows from these."""

FIELDS: dict[str, set[str]] = {
    "LedgerWriter": {
        *("limits", "quorum", "ownership", "delivery", "window", "slots", "epochs", "deferred"),
        *("replacements", "state", "error", "fenced_by", "_check_is_paused", "_changes_begun"),
    },
    "Delivery": {
        *("quorum", "limits", "window", "slots", "epochs", "deferred", "lac_carried"),
        *("ack_domains", "countable", "held_from", "pacing"),
    },
    "Pacing": {"_window", "_limits", "slots"},
    "PacedSlot": {"is_waiting", "retry_after_seconds", "allowed", "under_way"},
    "BatchWindow": {
        *("_quorum", "_limits", "next_entry_id", "length", "last_add_confirmed"),
        *("length_confirmed", "pending", "retained", "retained_bytes", "_made"),
    },
    "Slots": {
        *(
            "connected",
            "broken",
            "dead",
            "lost",
            "fenced",
            "probing",
            "probes",
            "refusals",
            "newcomers",
        ),
    },
    "LedgerOwnership": {
        *("metadata", "version", "change", "silence", "_limits", "_operation", "_end"),
        "_conflicts",
    },
    "Replacements": {
        *("_changes_max", "due", "returning", "urgent", "is_choosing", "lacks_spares", "left"),
    },
    "LedgerRecovery": {
        *("metadata", "version", "limits", "quorum", "tail", "state", "round", "attempts_left"),
        *("restarts_left", "waiting", "fenced", "last_add_confirmed", "next_entry_id", "length"),
        *("denied", "silence", "_found", "_heard", "_told", "_readding", "_acked", "_failed"),
        *("_offered", "_conflicts"),
    },
}
"""By class: every attribute that copies and keys know."""


# -- packets ---------------------------------------------------------------------------------------


@lru_cache(None)
def _packet(body: Body) -> EntryBatch:
    entry_id, lac = body
    before = entry_id * PAYLOAD_BYTES
    return pack_batch(LEDGER_ID, entry_id, lac, before, [b"%02d" % entry_id], _DIGESTER)


@lru_cache(None)
def batch_of(bodies: tuple[Body, ...]) -> EntryBatch:
    """The real packets of these entries."""
    return merged([_packet(body) for body in bodies])


@lru_cache(None)
def _bodies_in(payload: bytes, count: int) -> tuple[Body, ...]:
    size = len(payload) // count
    headers = [parse_header(payload[i * size : (i + 1) * size]) for i in range(count)]
    return tuple((header.entry_id, header.last_add_confirmed) for header in headers)


def bodies_of(batch: EntryBatch) -> tuple[Body, ...]:
    """What `batch_of` was given, from its packets."""
    return _bodies_in(bytes(batch.payload), batch.count)


# -- copies ----------------------------------------------------------------------------------------


def copy_of(one: T) -> T:
    """A shallow copy."""
    new = object.__new__(type(one))
    new.__dict__.update(one.__dict__)
    return new


def _copy_of_batch(b: PendingBatch) -> PendingBatch:
    return PendingBatch(
        *(b.number, b.last_entry_id, b.length_after, b.payload_bytes, b.classes, b.slots),
        *(b.acked, b.confirmed, b.checksum_failed, b.overdue),
    )


def copy_of_writer(writer: LedgerWriter) -> LedgerWriter:
    """A writer that goes on from the same state."""
    new = copy_of(writer)
    new.delivery = delivery = copy_of(writer.delivery)
    new.window = delivery.window = window = copy_of(delivery.window)
    window.retained = {n: _copy_of_batch(batch) for n, batch in window.retained.items()}
    window.pending = deque(window.retained[batch.number] for batch in window.pending)
    new.slots = delivery.slots = slots = copy_of(delivery.slots)
    slots.probes, slots.refusals = dict(slots.probes), dict(slots.refusals)
    delivery.pacing = pacing = copy_of(delivery.pacing)
    pacing._window = window
    pacing.slots = {slot: replace(paced) for slot, paced in pacing.slots.items()}
    new.epochs = delivery.epochs = list(delivery.epochs)
    new.ownership = copy_of(writer.ownership)
    new.replacements = copy_of(writer.replacements)
    return new


def copy_of_recovery(recovery: LedgerRecovery) -> LedgerRecovery:
    """A recovery that goes on from the same state."""
    new = copy_of(recovery)
    new.denied = dict(recovery.denied)
    new._found = dict(recovery._found)
    new._told = dict(recovery._told)
    return new


# -- keys ------------------------------------------------------------------------------------------


class Renaming:
    """A permutation of the first ensemble: slot `i` and bookie `b<i>` become those of `to[i]`."""

    def __init__(self, to: tuple[int, ...]) -> None:
        self.to = to
        self._masks = [
            sum(1 << to[slot] for slot in range(len(to)) if mask >> slot & 1)
            for mask in range(1 << len(to))
        ]
        self._names = {f"b{slot}": f"b{to[slot]}" for slot in range(len(to))}
        self._from = sorted(range(len(to)), key=to.__getitem__)

    def mask(self, mask: int) -> int:
        """A set of slots; bits beyond the ensemble stay."""
        if mask < 0:
            return ~self.mask(~mask)
        full = len(self._masks) - 1
        return self._masks[mask & full] | mask & ~full

    def name(self, name: str) -> str:
        """A bookie; spares keep their names."""
        return self._names.get(name, name)

    def in_order(self, values: Iterable[T]) -> tuple[T, ...]:
        """One value for each slot."""
        known = list(values)
        return tuple([known[slot] for slot in self._from])

    def fragment(self, fragment: Fragment) -> Key:
        return fragment.first_entry_id, self.in_order(map(self.name, fragment.bookies))

    def metadata(self, metadata: LedgerMetadata) -> Key:
        return (
            int(metadata.state),
            tuple([self.fragment(fragment) for fragment in metadata.fragments]),
            metadata.last_entry_id,
            metadata.length,
        )

    def slots(self, values: Mapping[int, T]) -> tuple[tuple[int, T], ...]:
        """A value for some slots."""
        return tuple(sorted(((self.to[slot], value) for slot, value in values.items()), key=_first))


def _first(pair: tuple[int, object]) -> int:
    return pair[0]


def _renamed(bookies: Mapping[int, str], by: Renaming) -> dict[int, str]:
    return {slot: by.name(name) for slot, name in bookies.items()}


@lru_cache(None)
def renamings(ensemble_size: int, *, is_symmetric: bool) -> dict[tuple[int, ...], Renaming]:
    """All permutations of the slots, or only the one that changes nothing."""
    slots = tuple(range(ensemble_size))
    wanted = list(permutations(slots)) if is_symmetric else [slots]
    return {to: Renaming(to) for to in wanted}


def key_of_writer(writer: LedgerWriter, by: Renaming) -> Key:
    """What the writer's future depends on."""
    window, slots, delivery = writer.window, writer.slots, writer.delivery
    own, due, mask = writer.ownership, writer.replacements, by.mask
    change = own.change
    return (
        writer.state.value,
        type(writer.error).__name__,
        mask(writer.fenced_by),
        writer._check_is_paused,
        (delivery.lac_carried, mask(~delivery.countable), delivery.held_from),
        by.in_order(delivery.epochs),
        (window.next_entry_id, window.last_add_confirmed, window._made),
        tuple(
            [
                (b.number, mask(b.slots), mask(b.acked), b.confirmed, b.overdue)
                for b in window.retained.values()
            ]
        ),
        (mask(slots.connected), mask(slots.broken), mask(slots.dead), mask(slots.lost)),
        (mask(slots.probing), mask(slots.newcomers), by.slots(slots.probes)),
        by.slots({s: _key_of_paced(paced) for s, paced in delivery.pacing.slots.items()}),
        by.metadata(own.metadata),
        (own.version, own.silence is None, own._end, own._conflicts),
        own._operation.value if own._operation else None,
        (change.version, change.first_entry_id, by.slots(_renamed(change.newcomers, by)))
        if change
        else None,
        (mask(due.due), mask(due.returning), mask(due.urgent)),
        (due.is_choosing, due.lacks_spares, due.left),
    )


def _key_of_paced(paced: PacedSlot) -> Key:
    return paced.is_waiting, paced.allowed, tuple(sorted(paced.under_way))


def key_of_recovery(recovery: LedgerRecovery, by: Renaming) -> Key:
    """What the recovery's future depends on."""
    r, mask = recovery, by.mask
    return (
        r.state.value,
        (r.round, r.attempts_left, r.restarts_left, r._conflicts),
        (mask(r.waiting), mask(r.fenced), mask(r._heard), mask(r._acked), mask(r._failed)),
        (r.last_add_confirmed, r.next_entry_id, r.length),
        tuple(sorted((entry_id, mask(slots)) for entry_id, slots in r.denied.items())),
        by.slots({slot: bodies_of(batch) for slot, batch in r._found.items()}),
        tuple(sorted(r._told.items())),
        bodies_of(r._readding) if r._readding else None,
        None if r._offered is None else mask(r._offered),
        (r.version, by.metadata(r.metadata)),
        by.fragment(r.tail.frozen),
        tuple([by.fragment(fragment) for fragment in r.tail.fragments]),
    )
