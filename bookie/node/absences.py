"""Ledgers that are stored here and absent from the metadata store, with times; durable.

Their deletion is not proven, so they wait for a grace. It counts the time in which the bookie
observed their absence: consecutive complete rounds of its collector. Jumps of the wall clock, and
times without rounds, do not count.

If a record of an absence is lost, the ledger waits for a whole grace again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from bookie.errors import FormatError
from bookie.node.engine.durable_values import DurableValues
from bookie.node.engine.format.index_rows import ledger_key, parse_ledger_key
from bookie.node.garbage_notes import Absence, decode_absence, encode_absence

NOTES_AT_ONCE = 1000
"""Absent ledgers that one transaction of the index notes."""


class Absences:
    """The absent ledgers, longest absent first."""

    def __init__(self, notes: DurableValues) -> None:
        self._notes = notes
        self._of: dict[int, Absence] = {}
        self._changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._of

    def get(self, ledger_id: int) -> Absence | None:
        """Since when a ledger is absent, if it is."""
        return self._of.get(ledger_id)

    def first(self) -> Absence | None:
        """The absence that lasts longest."""
        return next(iter(self._of.values()), None)

    async def load(self) -> None:
        """Load the notes."""
        found = []
        for name, value in (await self._notes.read()).items():
            try:
                if value is not None:
                    found.append((parse_ledger_key(name), decode_absence(value)))
            except FormatError:
                continue
        found.sort(key=lambda pair: pair[1].since_seconds)
        self._of = dict(found)

    def put(self, ledger_ids: Iterable[int], absence: Absence) -> None:
        """Note ledgers as absent since then, which is later than for all others."""
        for ledger_id in ledger_ids:
            self._of.pop(ledger_id, None)
            self._of[ledger_id] = absence
            self._changed.add(ledger_id)

    def drop(self, ledger_ids: Collection[int]) -> None:
        """Forget ledgers that are present in the store, or no longer stored here."""
        for ledger_id in ledger_ids:
            if self._of.pop(ledger_id, None) is not None:
                self._changed.add(ledger_id)

    @property
    def has_changes(self) -> bool:
        """Whether `save` has anything to do."""
        return bool(self._changed)

    async def save(self) -> None:
        """Note what changed; durable when it returns.

        Raises:
            DiskFullError: there is no room; the rest is noted by a later call.
            StorageFailedError: the index failed; the process must end.
        """
        for ledger_ids in _chunks(sorted(self._changed)):
            self._changed.difference_update(ledger_ids)
            try:
                # The current state: with concurrent calls the last one counts.
                noted = [one for one in ledger_ids if one in self._of]
                if noted:
                    await self._notes.write(
                        {ledger_key(one): encode_absence(self._of[one]) for one in noted}
                    )
                gone = [ledger_key(one) for one in ledger_ids if one not in self._of]
                if gone:
                    await self._notes.remove(gone)
            except BaseException:
                self._changed.update(ledger_ids)
                raise


def _chunks(ledger_ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(ledger_ids), NOTES_AT_ONCE):
        yield ledger_ids[start : start + NOTES_AT_ONCE]
