"""Records in the metadata store: bookies whose copies must move, and repairs that failed.

================================ =================================================================
key                              value
================================ =================================================================
``underreplication/lost/<b>``    a bookie that is away for too long; the auditor writes and removes
                                 this record
``underreplication/leaving/<b>`` a bookie that an operator decommissions; it may still serve
``underreplication/failures/…``  the reason why the last repair of a ledger failed
================================ =================================================================
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container

from bookie.cluster import keys
from bookie.cluster.digit_tree import DigitTree
from bookie.cluster.instance import require_instance
from bookie.env import Clock, SystemClock
from bookie.errors import BadRequestError, FormatError, NoSuchKeyError
from bookie.ids import MAX_ID, is_valid_bookie_id
from bookie.ledger.underreplicated import (
    NOT_RECOVERED,
    Departure,
    RepairFailure,
    decode_departure,
    decode_failure,
    encode_departure,
    encode_failure,
)
from bookie.metadata.mirror import follow
from bookie.metadata.store import MetadataStore

_FAILURES = DigitTree(keys.REPAIR_FAILURES, (3, 4, 4, 4, 4), maximum=MAX_ID, skips_strays=True)


class Departures:
    """The records of all lost bookies, or the records of all leaving bookies.

    Args:
        store: the metadata store that has the records.
        path: `keys.LOST_BOOKIES` or `keys.LEAVING_BOOKIES`.
        clock: gives the times in records.
    """

    def __init__(self, store: MetadataStore, path: str, clock: Clock | None = None) -> None:
        self._store = store
        self._path = path
        self._clock = clock or SystemClock()

    async def names(self) -> set[str]:
        return set(await self._store.get_children(self._path))

    async def find(self, bookie_id: str) -> Departure | None:
        record = await self._store.get(self._key(bookie_id))
        if record is None:
            return None
        try:
            return decode_departure(bookie_id, record.value)
        except FormatError as error:
            raise FormatError(f"the metadata key {record.key}: {error}") from error

    async def add(self, bookie_id: str) -> None:
        """Write the record of a bookie, unless the bookie has a record already."""
        if await self.find(bookie_id) is None:
            departure = Departure(bookie_id, self._clock.now_ms())
            await self._store.put(self._key(bookie_id), encode_departure(departure))

    async def remove(self, bookie_id: str) -> bool:
        """Remove the record of a bookie; return False if there is no record."""
        try:
            await self._store.delete(self._key(bookie_id))
        except NoSuchKeyError:
            return False
        return True

    async def follow(
        self, bookie_id: str, take: Callable[[bool], None], *, instance_id: str
    ) -> None:
        """Call `take` now and after each change, with True if the bookie has a record, else False.

        See `mirror.follow`. While the store holds another cluster, `take` is not called.
        """

        async def read() -> bool:
            await require_instance(self._store, instance_id)
            return await self.find(bookie_id) is not None

        await follow(self._store, self._key(bookie_id), read, take)

    def _key(self, bookie_id: str) -> str:
        if not is_valid_bookie_id(bookie_id):
            raise BadRequestError(f"{bookie_id!r} is not a bookie id")
        return f"{self._path}/{bookie_id}"


class RepairFailures:
    """The reasons of failed repairs, by ledger; a successful repair removes its ledger's record."""

    def __init__(self, store: MetadataStore, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()

    async def find(self, ledger_id: int) -> RepairFailure | None:
        """Return the record of a ledger; None if there is no record, or only a damaged record."""
        record = await self._store.get(_FAILURES.key(ledger_id))
        if record is None:
            return None
        try:
            return decode_failure(ledger_id, record.value)
        except FormatError:
            return None

    async def add(self, ledger_id: int, outcome: str, reason: str) -> RepairFailure:
        """Record one more failed repair."""
        before = await self.find(ledger_id)
        failure = RepairFailure(
            ledger_id,
            outcome,
            reason,
            1 if before is None else before.attempts + 1,
            self._clock.now_ms(),
        )
        await self._store.put(_FAILURES.key(ledger_id), encode_failure(failure))
        return failure

    async def remove(self, ledger_id: int) -> None:
        """Delete the record of a ledger's failed repairs."""
        try:
            await self._store.delete(_FAILURES.key(ledger_id))
        except NoSuchKeyError:
            return

    async def present(self, marked: Container[int]) -> AsyncIterator[RepairFailure]:
        """List the records of `marked` ledgers and of failed recoveries, ascending by ledger id.

        Other records of unmarked ledgers are omitted, because they are outdated: a worker lost the
        lock, and wrote the record after another worker had repaired the ledger.
        """
        async for failure in self.all():
            if failure.ledger_id in marked or failure.outcome == NOT_RECOVERED:
                yield failure

    async def all(self) -> AsyncIterator[RepairFailure]:
        """List all readable records, ascending by ledger id."""
        async for ledger_id, record in _FAILURES.scan(self._store):
            try:
                yield decode_failure(ledger_id, record.value)
            except FormatError:
                continue
