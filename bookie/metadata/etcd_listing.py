"""What lies directly below a key, in pages of etcd's flat order of keys.

etcd knows no directories: below ``/a`` it lists ``/a/b``, ``/a/b/c``, ``/a/b/d``, …. A page that
ends inside of a child's own subtree is followed by one that starts behind it (``/a/b0``), so that a
deep tree costs one small page per child and not a page per thousand descendants.

All pages show the same revision. If etcd compacts it away meanwhile, the listing goes on in the
present, behind the last key it has seen: what existed all the time is still seen exactly once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from bookie._pb import etcd_pb2 as pb
from bookie.errors import MetadataUnavailableError
from bookie.metadata.etcd_client import RANGE, CompactedError, EtcdClient
from bookie.metadata.etcd_keys import Scope

KEYS_PER_PAGE_MAX = 1000
RECORDS_PER_PAGE_MAX = 256
"""Records are limited more, because each may have half a megabyte."""

PAGE_SIZE_BYTES = 1024 * 1024
"""What a page of records should have; one that had more is followed by a shorter one."""

_ENTRIES_PER_PAGE_MIN = 8
_RECORDS_PER_FIRST_PAGE = 32
_PRESENTS_MAX = 10
"""How often a listing that etcd compacts away goes on in the present."""


class _Pages:
    """The entries below a key whose subtrees are passed over; `records` brings their values."""

    def __init__(
        self, client: EtcdClient, scope: Scope, key: str, after: str, *, records: bool
    ) -> None:
        self._client = client
        self._base = scope.children(key)
        self._start, self._end = scope.below(key)
        if after:
            self._start = max(self._start, self._base + after.encode() + b"\0")
        self._records = records
        self._most = RECORDS_PER_PAGE_MAX if records else KEYS_PER_PAGE_MAX
        self._limit = _RECORDS_PER_FIRST_PAGE if records else KEYS_PER_PAGE_MAX
        self._revision = 0
        self._presents = 0

    async def next(self) -> list[tuple[bytes, Any]] | None:
        """Names and entries of one page, those of deep keys included; None at the end."""
        if self._start >= self._end:
            return None
        response = await self._read()
        self._revision = response.header.revision if not self._revision else self._revision
        page = []
        for kv in response.kvs:
            name, slash, _ = kv.key[len(self._base) :].partition(b"/")
            page.append((name, None if slash else kv))
        if not response.more:
            self._start = self._end
            return page
        last, kv = page[-1]
        # "0" comes right after the slash: behind everything below this child.
        self._start = self._base + last + (b"0" if kv is None else b"\0")
        self._fit(response, page)
        return page

    async def _read(self) -> Any:
        while True:
            request = pb.RangeRequest(
                key=self._start,
                range_end=self._end,
                limit=self._limit,
                revision=self._revision,
                keys_only=not self._records,
            )
            try:
                return await self._client.read(RANGE, request)
            except CompactedError as error:
                self._presents += 1
                self._revision = 0
                if self._presents > _PRESENTS_MAX:
                    raise MetadataUnavailableError(
                        f"a listing cannot be completed: {error}, again and again"
                    ) from None

    def _fit(self, response: Any, page: list[tuple[bytes, Any]]) -> None:
        """Choose the size of the next page: what it may weigh, and no more waste than this one."""
        children = len({name for name, _ in page})
        limit = self._limit * 2
        if children * 4 < len(page):
            limit = self._limit // 4
        if self._records:
            size = response.ByteSize()
            limit = min(limit, max(1, len(page) * PAGE_SIZE_BYTES // max(size, 1)))
        least = 1 if self._records else _ENTRIES_PER_PAGE_MIN
        self._limit = max(least, min(limit, self._most))


async def child_names(client: EtcdClient, scope: Scope, key: str) -> list[str]:
    """The names one level below `key`, sorted, with those that only have children; complete."""
    pages = _Pages(client, scope, key, "", records=False)
    names: set[bytes] = set()
    while (page := await pages.next()) is not None:
        names.update(name for name, _ in page)
    return sorted(name.decode() for name in names)


async def child_records(
    client: EtcdClient, scope: Scope, key: str, after: str
) -> AsyncIterator[tuple[str, Any]]:
    """Keys and entries of the records one level below `key`, by name, behind the name `after`."""
    pages = _Pages(client, scope, key, after, records=True)
    while (page := await pages.next()) is not None:
        for _, kv in page:
            if kv is not None:
                yield scope.name(kv.key), kv
