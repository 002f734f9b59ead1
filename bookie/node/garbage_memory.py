"""Durable records of garbage collection: the state of the metadata store, and absent ledgers.

**The store.** A metadata store restored from an older copy lacks newer ledgers, but its listing
looks complete. The counters of a restored store are lower than the counters that the bookie saw. If
a counter is lower, the bookie records that it distrusts the store. The distrust survives restarts
and ends when an operator confirms the store. The record is JSON::

    {"absent_stop":"","absent_stop_local":0,"cookie_number":7,"counters":[[0,91]],
     "format":"bookie-garbage","has_listed":true,"observed_seconds":…,"store_doubt":"","version":1}

**Absent ledgers** are stored here and absent from the metadata store. The deletion of an absent
ledger is not proven, so the ledger waits for a grace period. The grace period counts only time in
which consecutive complete collector rounds observed the absence. Jumps of the wall clock, and times
without complete rounds, do not count. If the record of an absent ledger is lost, its grace period
starts again.

A record of an absence has 16 bytes, little endian: the start of the absence in observed seconds (a
double), and its start by the wall clock (milliseconds since 1970).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace

from bookie.errors import FormatError
from bookie.ledger.catalog.store_marks import StoreMarks
from bookie.metadata import json_record
from bookie.node.engine.durable_values import DurableValues
from bookie.node.engine.format.index_rows import ledger_key, parse_ledger_key

_FORMAT = "bookie-garbage"
_VERSION = 1
_ABSENCE = struct.Struct("<dq")


@dataclass(frozen=True, slots=True)
class GarbageMemory:
    """A bookie's memory of the metadata store, and its reasons to stop deletions."""

    counters: dict[int, int] = field(default_factory=dict)
    """For each bucket, the highest ledger-id counter that the bookie saw in the store."""
    cookie_number: int | None = None
    """The highest state number of the bookie's cookie seen in the store; None if never seen."""
    has_listed: bool = False
    """True if a listing of the store ever contained a ledger."""
    observed_seconds: float = 0.0
    """The total time between consecutive complete rounds, over all starts of the bookie."""
    store_doubt: str = ""
    """The reason to distrust the metadata store; empty if the store is trusted."""
    absent_stop: str = ""
    """The reason to keep all absent ledgers; empty if deletions are allowed."""
    absent_stop_local: int = 0
    """The smallest number of ledgers stored here since `absent_stop` has stopped deletions."""


@dataclass(frozen=True, slots=True)
class Absence:
    """The absence of a ledger that is stored here, but not in the metadata store."""

    since_seconds: float
    """The start of the absence, in observed seconds."""
    since_ms: int
    """The start of the absence in milliseconds since 1970 (wall clock); only shown to people."""


def encode_memory(memory: GarbageMemory) -> bytes:
    """Encode a `GarbageMemory` as bytes."""
    fields = asdict(memory) | {"counters": sorted(memory.counters.items())}
    return json_record.encode(_FORMAT, _VERSION, fields)


def decode_memory(data: bytes) -> GarbageMemory:
    """Decode a `GarbageMemory` from `data`.

    Raises:
        FormatError: the data is damaged, or a newer version wrote it.
    """
    fields = json_record.decode(_FORMAT, _VERSION, data)
    counters = {}
    for bucket, counter in fields.rows("counters", width=2):
        if bucket is None or counter is None:
            raise FormatError(f"{_FORMAT}: a counter is missing")
        counters[bucket] = counter
    observed = fields.number("observed_seconds")
    if observed < 0:
        raise FormatError(f"{_FORMAT}: observed_seconds is {observed}")
    return GarbageMemory(
        counters,
        fields.optional_integer("cookie_number", minimum=0),
        fields.boolean("has_listed"),
        observed,
        fields.text("store_doubt"),
        fields.text("absent_stop"),
        fields.integer("absent_stop_local", minimum=0),
    )


def encode_absence(absence: Absence) -> bytes:
    """Encode an `Absence` as bytes."""
    return _ABSENCE.pack(absence.since_seconds, absence.since_ms)


def decode_absence(data: bytes) -> Absence:
    """Decode an `Absence` from `data`.

    Raises:
        FormatError: the data is damaged.
    """
    if len(data) != _ABSENCE.size:
        raise FormatError("the note of an absent ledger has a wrong length")
    absence = Absence(*_ABSENCE.unpack(data))
    if not math.isfinite(absence.since_seconds):
        raise FormatError("the note of an absent ledger has no time")
    return absence


_NAME = b"memory"

OBSERVED_SECONDS_UNSAVED_MAX = 60.0
"""A restart forgets at most this many seconds of the absent ledgers' waiting time."""


class StoreMemory:
    """Keeps the bookie's memory of the metadata store, and a durable copy of this memory."""

    def __init__(self, values: DurableValues) -> None:
        self._values = values
        self._saved = self.now = GarbageMemory()

    async def load(self) -> None:
        """Load the durable copy; if it is damaged, doubt the metadata store."""
        notes = await self._values.read()
        if _NAME not in notes:
            return
        try:
            self._saved = self.now = decode_memory(notes[_NAME] or b"")
        except FormatError:
            self.doubt("what the bookie remembers of the metadata store is damaged")

    @property
    def is_due(self) -> bool:
        """True if a change happened that a restart must not forget."""
        observed = self._saved.observed_seconds
        return (
            self.now != replace(self._saved, observed_seconds=self.now.observed_seconds)
            or self.now.observed_seconds - observed >= OBSERVED_SECONDS_UNSAVED_MAX
        )

    async def save(self) -> None:
        """Save the memory; it is durable when this returns.

        Raises:
            DiskFullError: there is no room for the record.
            StorageFailedError: the index failed; the process must end.
        """
        now = self.now
        await self._values.write({_NAME: encode_memory(now)})
        self._saved = now

    def observe(self, seconds: float) -> None:
        """Add the time between two complete rounds to the observed time."""
        self.now = replace(self.now, observed_seconds=self.now.observed_seconds + seconds)

    def listed(self) -> None:
        self.now = replace(self.now, has_listed=True)

    def compare(self, marks: StoreMarks) -> str:
        """Compare the metadata store with the memory; return the reason to doubt the store.

        If the result is empty, there is no doubt, and the memory takes the store's counters and
        cookie number.
        """
        reason = self._difference(marks)
        if reason:
            self.doubt(reason)
            return reason
        counters = self.now.counters | marks.counters
        number = marks.cookie_number
        self.now = replace(self.now, counters=counters, cookie_number=number)
        return ""

    def _difference(self, marks: StoreMarks) -> str:
        known = self.now
        remembers = known.counters or known.cookie_number is not None or known.has_listed
        if not marks.instance_id:
            return "the metadata store holds no cluster any more" if remembers else ""
        for bucket, highest in sorted(known.counters.items()):
            found = marks.counters.get(bucket, 0)
            if found < highest:
                return (
                    f"the metadata store went back in time: its counter {bucket} of ledger ids is "
                    f"{found}, and was {highest}"
                )
        if known.cookie_number is not None and marks.cookie_number is None:
            return "the metadata store has no cookie of this bookie any more"
        if (known.cookie_number or 0) > (marks.cookie_number or 0):
            return (
                "the metadata store went back in time: this bookie's cookie there has the state "
                f"number {marks.cookie_number}, and had {known.cookie_number}"
            )
        return ""

    def doubt(self, reason: str) -> None:
        self.now = replace(self.now, store_doubt=reason)

    def accept(self, marks: StoreMarks) -> None:
        """Trust the store in its present state, and remember its counters and cookie number."""
        self.now = replace(
            self.now,
            counters=dict(marks.counters),
            cookie_number=marks.cookie_number,
            has_listed=False,
            store_doubt="",
        )

    def stop_absent(self, absent: int, local: int, share: float, always: int) -> str:
        """Return the reason to keep all absent ledgers; empty if few ledgers are absent.

        Too many ledgers are absent if `absent` exceeds both `always` and `share` times the number
        of ledgers stored here (`local`). During a stop, `local` is the smallest such number since
        the stop began. So new ledgers cannot end the stop.
        """
        known = self.now
        local = min(local, known.absent_stop_local) if known.absent_stop else local
        if absent <= max(always, share * local):
            self.now = replace(known, absent_stop="", absent_stop_local=0)
            return ""
        reason = (
            f"{absent} of {local} ledgers are absent from the metadata store, "
            "and nothing says that they were deleted"
        )
        self.now = replace(known, absent_stop=reason, absent_stop_local=local)
        return reason


RECORDS_AT_ONCE = 1000
"""The largest number of absent ledgers whose records one transaction writes."""


class Absences:
    """The absent ledgers, sorted by the length of their absence, longest first."""

    def __init__(self, values: DurableValues) -> None:
        self._values = values
        self._of: dict[int, Absence] = {}
        self._changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._of

    def get(self, ledger_id: int) -> Absence | None:
        return self._of.get(ledger_id)

    def first(self) -> Absence | None:
        """Return the longest absence; None if no ledger is absent."""
        return next(iter(self._of.values()), None)

    async def load(self) -> None:
        found = []
        for name, value in (await self._values.read()).items():
            try:
                if value is not None:
                    found.append((parse_ledger_key(name), decode_absence(value)))
            except FormatError:
                continue
        found.sort(key=lambda pair: pair[1].since_seconds)
        self._of = dict(found)

    def put(self, ledger_ids: Iterable[int], absence: Absence) -> None:
        """Record ledgers as absent since `absence`, which began later than all other absences."""
        for ledger_id in ledger_ids:
            self._of.pop(ledger_id, None)
            self._of[ledger_id] = absence
            self._changed.add(ledger_id)

    def drop(self, ledger_ids: Collection[int]) -> None:
        """Forget ledgers that the store has again, or that are no longer stored here."""
        for ledger_id in ledger_ids:
            if self._of.pop(ledger_id, None) is not None:
                self._changed.add(ledger_id)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    async def save(self) -> None:
        """Save the changed records; they are durable when this returns.

        Raises:
            DiskFullError: there is no room; a later call saves the remaining records.
            StorageFailedError: the index failed; the process must end.
        """
        for ledger_ids in _chunks(sorted(self._changed)):
            self._changed.difference_update(ledger_ids)
            try:
                # Save the current state, so that the last of several concurrent calls wins.
                noted = [one for one in ledger_ids if one in self._of]
                if noted:
                    await self._values.write(
                        {ledger_key(one): encode_absence(self._of[one]) for one in noted}
                    )
                gone = [ledger_key(one) for one in ledger_ids if one not in self._of]
                if gone:
                    await self._values.remove(gone)
            except BaseException:
                self._changed.update(ledger_ids)
                raise


def _chunks(ledger_ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(ledger_ids), RECORDS_AT_ONCE):
        yield ledger_ids[start : start + RECORDS_AT_ONCE]
