"""Keeps ledger states in memory, loaded from the index at first use; counts ledgers in limbo.

A state is loaded before the synchronous section that decides about a request, so the section reads
only memory. Concurrent requests for one ledger share one look-up. A state is evicted only if it is
clean (the index has all its changes) and no request uses it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from bookie.entry.batch import EntryBatch
from bookie.entry.digest import KEY_TAG_BYTES, digest_of_key
from bookie.entry.entry import lac_packet_ids
from bookie.ids import MAX_ID, NO_ENTRY
from bookie.node.engine.format.index_rows import LedgerIndexRow

STATES_MAX = 100_000
"""If memory holds more ledger states than this, clean states are dropped."""


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """One ledger in a listing: its id and its row, which may be newer than its row in the index."""

    ledger_id: int
    row: LedgerIndexRow


class LocalLedger:
    """The state of a ledger on this bookie; only synchronous sections of the engine change it."""

    __slots__ = (
        "_key",
        "comparisons",
        "deleted_at_ms",
        "entries",
        "exists",
        "fence_durable",
        "fence_queued",
        "fenced",
        "first_entry_id",
        "introduced_in",
        "key_digest",
        "lac_packet",
        "last_entry_id",
        "ledger_id",
        "limbo",
        "max_lac",
        "payload_bytes",
        "reclaimed",
        "users",
    )

    def __init__(self, ledger_id: int, row: LedgerIndexRow | None) -> None:
        known = row or LedgerIndexRow()
        self.ledger_id = ledger_id
        self.exists = row is not None
        """True if this bookie ever stored a record about the ledger."""
        self.introduced_in = 0
        """The number of the newest journal file that surely holds the ledger's key; 0 if none is
        known."""
        self.fenced = known.fenced
        self.fence_durable = known.fenced
        """True if the fence is known to survive a crash."""
        self.fence_queued = False
        """True while the journal has a fence record to write and has not completed it."""
        self.limbo = known.limbo
        self.deleted_at_ms = known.deleted_at_ms
        self.key_digest = known.key_digest
        self.lac_packet = known.lac_packet
        self.max_lac = known.max_lac
        self.first_entry_id = known.first_entry_id
        self.last_entry_id = known.last_entry_id
        """The highest entry id that may be stored. The value may be too high, because the journal
        may refuse an accepted entry. After a crash, the value from the index row may also be the id
        of a lost entry."""
        self.entries = known.entries
        self.payload_bytes = known.payload_bytes
        self.reclaimed = known.reclaimed
        """True if acknowledged entries were removed, because no metadata named this bookie."""
        self.comparisons = 0
        """The number of adds with ids at or below `last_entry_id`, and of adds that the journal
        refused."""
        self.users = 0
        """The number of requests that use this state across an await."""
        self._key: bytes | None = None

    @property
    def deleted(self) -> bool:
        return self.deleted_at_ms is not None

    @property
    def is_in_doubt(self) -> bool:
        """True if acknowledged entries may be missing; the bookie must then deny no entry.

        A metadata store restored from an older state may show an open ledger whose copies were
        removed. If the bookie denied the removed entries, a recovery would close the ledger too
        early.
        """
        return self.limbo or self.reclaimed

    def accepts_key(self, key: bytes) -> bool:
        """True if `key` is the ledger's key, or no key is known; compares in constant time."""
        if self.key_digest is None:
            return True
        if self._key is not None and hmac.compare_digest(self._key, key):
            return True
        if not hmac.compare_digest(self.key_digest, digest_of_key(key)):
            return False
        self._key = key
        return True

    @property
    def key_tag(self) -> bytes:
        """A tag made from the key, to distinguish ledgers with the same id; empty without a key."""
        return (self.key_digest or b"")[:KEY_TAG_BYTES]

    def may_hold(self, batch: EntryBatch) -> bool:
        """True if this ledger perhaps already has entries with ids in `batch`.

        If True, a plain add of the batch must first be compared with the stored bytes.
        """
        return batch.first_entry_id <= self.last_entry_id

    def adopt_key(self, key: bytes) -> None:
        if self.key_digest is None:
            self.key_digest = digest_of_key(key)
            self._key = key

    def row(self) -> LedgerIndexRow:
        return LedgerIndexRow(
            fenced=self.fenced,
            limbo=self.limbo,
            deleted_at_ms=self.deleted_at_ms,
            key_digest=self.key_digest,
            lac_packet=self.lac_packet,
            max_lac=self.max_lac,
            first_entry_id=self.first_entry_id,
            last_entry_id=self.last_entry_id,
            entries=self.entries,
            payload_bytes=self.payload_bytes,
            reclaimed=self.reclaimed,
        )

    def take_lac(self, packet: bytes) -> None:
        """Store an explicit LAC packet, unless a newer packet is known."""
        lac = lac_packet_ids(packet).last_add_confirmed
        if not self.lac_packet or lac >= lac_packet_ids(self.lac_packet).last_add_confirmed:
            self.lac_packet = packet
        self.max_lac = max(self.max_lac, lac)

    def saw_entries(self, first: int, last: int) -> None:
        """Widen the range `first_entry_id` … `last_entry_id` to include these ids."""
        if self.first_entry_id == NO_ENTRY or first < self.first_entry_id:
            self.first_entry_id = first
        self.last_entry_id = max(self.last_entry_id, last)


def highest_id(first_above: Callable[[int], int | None]) -> int:
    """Find the highest existing id, or -1, by bisection with at most 65 calls of `first_above`.

    `first_above` returns the lowest existing id above a number. The first call asks for the lowest
    id of all, because damaged keys may sort first or last.
    """
    lowest = first_above(NO_ENTRY)
    if lowest is None:
        return NO_ENTRY
    highest, limit = lowest, MAX_ID
    while highest < limit:
        middle = (highest + limit) // 2
        found = first_above(middle)
        if found is None:
            limit = middle
        else:
            highest = found
    return highest


class LedgerStates:
    """The ledger states in memory; a missing state is loaded from the index."""

    def __init__(
        self,
        load_row: Callable[[int], Awaitable[LedgerIndexRow | None]],
        is_dirty: Callable[[int], bool],
        states_max: int = STATES_MAX,
    ) -> None:
        self._load_row = load_row
        self._is_dirty = is_dirty
        self._states_max = states_max
        self._states: OrderedDict[int, LocalLedger] = OrderedDict()
        self._loading: dict[int, asyncio.Future[None]] = {}
        self._indexed_max = MAX_ID
        """The states of all indexed ledgers above this id are in memory."""

    def __len__(self) -> int:
        return len(self._states)

    def begin(self, indexed_max: int) -> None:
        """Declare that the states of all indexed ledgers above `indexed_max` are in memory."""
        self._indexed_max = indexed_max

    def get(self, ledger_id: int) -> LocalLedger | None:
        """Return the state if it is in memory; for an id above all known ids, a new state."""
        state = self._states.get(ledger_id)
        if state is not None:
            self._states.move_to_end(ledger_id)
        elif ledger_id > self._indexed_max and ledger_id not in self._loading:
            return self._know(LocalLedger(ledger_id, None))
        return state

    def put(self, state: LocalLedger) -> None:
        self._states[state.ledger_id] = state

    async def load(self, ledger_id: int) -> LocalLedger:
        """Return the state, from memory or the index; concurrent calls share a look-up."""
        while True:
            state = self.get(ledger_id)
            if state is not None:
                return state
            pending = self._loading.get(ledger_id)
            if pending is None:
                return await self._load(ledger_id)
            await asyncio.wait([pending])

    async def _load(self, ledger_id: int) -> LocalLedger:
        pending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loading[ledger_id] = pending
        try:
            row = await self._load_row(ledger_id)
        finally:
            del self._loading[ledger_id]
            pending.set_result(None)
        return self._know(LocalLedger(ledger_id, row))

    def _know(self, state: LocalLedger) -> LocalLedger:
        self._states[state.ledger_id] = state
        if len(self._states) > self._states_max:
            self._evict()
        return state

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """Drop the clean states of these ledgers, because their rows in the index have changed."""
        for ledger_id in ledger_ids:
            if ledger_id in self._states:
                self._let_go(ledger_id)

    def _let_go(self, ledger_id: int) -> bool:
        """Drop a state if it is clean and unused; return True if it was dropped."""
        state = self._states[ledger_id]
        if state.users or self._is_dirty(ledger_id):
            return False
        del self._states[ledger_id]
        if state.exists:
            self._indexed_max = max(self._indexed_max, ledger_id)
        return True

    def _evict(self) -> None:
        # Skip the newest state, which is about to be used.
        looks = min(self._states_max // 100 + 8, len(self._states) - 1)
        for ledger_id in list(islice(self._states, looks)):
            if not self._let_go(ledger_id):
                # Move the state to the end, so that the next eviction looks at other states.
                self._states.move_to_end(ledger_id)


LEDGERS_PER_PAGE = 1000

ListLedgers = Callable[[int, int], Awaitable[tuple[list[StoredLedger], int]]]
"""A function of (after, count): returns up to `count` ledgers above `after`, and the next
`after`."""


class LimboCount:
    """Counts the ledgers in limbo: lists the index once, and then follows all changes.

    Only one event loop may use this object. A change of a ledger that the listing has not reached
    yet is counted when the listing reaches the ledger.
    """

    def __init__(self) -> None:
        self.ledgers = 0
        """The number of ledgers in limbo that the listing has found, without deleted ledgers."""
        self._listed_to = NO_ENTRY
        self._ahead: dict[int, bool] = {}

    def changed(self, ledger_id: int, *, before: bool, now: bool) -> None:
        if ledger_id > self._listed_to:
            self._ahead[ledger_id] = now
        else:
            self.ledgers += now - before

    async def count(self, list_ledgers: ListLedgers) -> None:
        """List all ledgers once; the count is complete when this returns.

        Raises:
            CorruptionError: a row is damaged; the next call continues after the listed rows.
        """
        while self._listed_to != MAX_ID:
            page, limit = await list_ledgers(self._listed_to, LEDGERS_PER_PAGE)
            for item in page:
                self.ledgers += self._ahead.pop(item.ledger_id, item.row.limbo)
            passed = [ledger_id for ledger_id in self._ahead if ledger_id <= limit]
            # The listing omits these changed ledgers, because they are new or deleted.
            self.ledgers += sum(self._ahead.pop(ledger_id) for ledger_id in passed)
            self._listed_to = limit
