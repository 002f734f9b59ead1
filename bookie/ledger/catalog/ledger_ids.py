"""Ledger ids: each is used once, and most are given without asking the store.

A generator reserves blocks of ids by compare-and-set on a counter. The first block is one id, so a
command that makes one ledger wastes none. Each next block is twice as large, up to `BLOCK_IDS_MAX`
ids. Reserved ids that a generator does not use are lost.

A counter belongs to a bucket, which is the id's upper bits. Generators begin with bucket 0, so ids
stay small. When the ids of a bucket are used up they continue with the next bucket, up to 63 bits
in all.
"""

from __future__ import annotations

import asyncio

from bookie.cluster import keys
from bookie.errors import BadVersionError, FormatError
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.store import MetadataStore

BLOCK_IDS_MAX = 1000
"""The most ids that are reserved at once."""

BUCKET_BITS = 48
"""Ids in a bucket: 2 to the power of this."""

BUCKETS = 1 << (63 - BUCKET_BITS)
"""The number of buckets."""


class LedgerIdGenerator:
    """Hands out fresh ledger ids."""

    def __init__(self, store: MetadataStore, *, bucket: int = 0) -> None:
        self._store = store
        self._bucket = bucket
        self._reserving = asyncio.Lock()
        self._next = 0
        self._end = 0
        self._block_ids = 1

    async def next(self) -> int:
        """An id that no call of any generator has returned or will return.

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
    """The counters: bucket → the lowest id in it that is not reserved. They only grow.

    Raises:
        FormatError: one is damaged.
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
