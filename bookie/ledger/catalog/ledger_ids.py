"""Assigns ledger ids: each id is used once, mostly without a request to the metadata store.

A generator reserves blocks of ids by compare-and-set on a counter. The first block is one id, so a
command that creates one ledger wastes no id. Each block is twice as large as the block before, up
to `BLOCK_IDS_MAX` ids. Reserved ids that a generator does not use are lost.

The upper bits of an id are its bucket number, and each bucket has its own counter. Generators begin
with bucket 0, so ids stay small. When the ids of a bucket are used up, generators continue with the
next bucket. An id has at most 63 bits.
"""

from __future__ import annotations

import asyncio

from bookie.cluster import keys
from bookie.errors import BadVersionError, FormatError
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.store import MetadataStore

BLOCK_IDS_MAX = 1000
"""The largest number of ids to reserve at once."""

BUCKET_BITS = 48
"""A bucket has 2 to the power of `BUCKET_BITS` ids."""

BUCKETS = 1 << (63 - BUCKET_BITS)


class LedgerIdGenerator:
    """Assigns new ledger ids."""

    def __init__(self, store: MetadataStore, *, bucket: int = 0) -> None:
        self._store = store
        self._bucket = bucket
        self._reserving = asyncio.Lock()
        self._next = 0
        self._end = 0
        self._block_ids = 1

    async def next(self) -> int:
        """Return an id that no call of any generator has returned or will return.

        Raises:
            FormatError: the counter is damaged, or the ids of all buckets are used up.
        """
        async with self._reserving:
            if self._next == self._end:
                await self._reserve()
            ledger_id = self._next
            self._next += 1
        return (self._bucket << BUCKET_BITS) + ledger_id

    async def _reserve(self) -> None:
        while self._bucket < BUCKETS:
            key = keys.id_bucket(self._bucket)
            record = await self._store.get(key)
            first = 0 if record is None else _parse(key, record.value)
            end = min(first + self._block_ids, 1 << BUCKET_BITS)
            if first == end:
                self._bucket += 1
                continue
            version = NOT_EXISTS if record is None else record.version
            try:
                await self._store.put(key, b"%d" % end, version=version)
            except BadVersionError:
                continue  # another generator was faster
            self._next, self._end = first, end
            self._block_ids = min(2 * self._block_ids, BLOCK_IDS_MAX)
            return
        raise FormatError(f"the ledger ids below {keys.ID_BUCKETS} are used up")


async def read_counters(store: MetadataStore) -> dict[int, int]:
    """Read the counters: bucket → lowest id that is not reserved; counters only increase.

    Raises:
        FormatError: a counter is damaged.
    """
    found = {}
    async for record in store.scan_children(keys.ID_BUCKETS):
        name = record.key.rpartition("/")[2]
        if not (name.isascii() and name.isdigit()):
            raise FormatError(f"the metadata key {record.key} is no counter of ledger ids")
        found[int(name)] = _parse(record.key, record.value)
    return found


def _parse(key: str, value: bytes) -> int:
    if not (value.isdigit() and len(value) <= BUCKET_BITS and int(value) <= 1 << BUCKET_BITS):
        raise FormatError(f"the counter of ledger ids {key} is damaged")
    return int(value)
