"""List the direct children of a key from pages of etcd's flat, sorted keys.

etcd has no directories: the range below ``/a`` contains ``/a/b``, ``/a/b/c``, ``/a/b/d``, …. A page
may end inside the subtree of a child ``/a/b``. The next page then starts after the subtree of
``/a/b`` (at ``/a/b0``). So a deep tree costs one small page per child, however many descendants the
child has. Foreign keys (`key_layout`) are left out.

When etcd reads a range, it counts all keys up to the range's end, even those beyond the page's
limit. If each range reached to the end of the directory, the time of a listing would grow with the
square of the number of keys. In a wide directory, the listing first reads keys without values, in
large pages. From these keys, the listing knows at which key the range of each page of records must
end.

All pages show the same revision. If etcd compacts that revision away during the listing, the
listing continues at the newest revision, after the last key that it has seen. A key that exists
during the whole listing is listed exactly once, even after a compaction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator
from typing import Any

from bookie._pb import etcd_pb2 as pb
from bookie.errors import MetadataUnavailableError
from bookie.metadata.etcd.client import RANGE, CompactedError, EtcdClient
from bookie.metadata.etcd.key_layout import KeyLayout
from bookie.metadata.model import ROOT

KEYS_PER_PAGE_MAX = 10_000
KEYS_PER_FIRST_PAGE = 1000
RECORDS_PER_PAGE_MAX = 256
"""The most records in a page. Pages of keys are longer, because a record may have 512 KiB."""

PAGE_SIZE_BYTES = 1024 * 1024
"""The intended size of a page of records; after a larger page, the next page is shorter."""

WIDE_KEYS_MIN = 4096
"""A directory counts as wide if the range of a page contains at least this number of keys."""

_ENTRIES_PER_PAGE_MIN = 8
_RECORDS_PER_FIRST_PAGE = 32
_PRESENTS_MAX = 10
"""A listing fails if etcd compacts away the listing's revision more often than this."""


class _ChildPages:
    """Reads the children of a key in pages that skip the children's subtrees.

    If `records` is True, the pages contain the values of the records; otherwise only keys.
    """

    def __init__(
        self, client: EtcdClient, scope: KeyLayout, key: str, after: str, *, records: bool
    ) -> None:
        self._client = client
        self._scope = scope
        self._base = scope.children(key)
        self._start, self._end = scope.below(key)
        if after:
            self._start = max(self._start, self._base + after.encode() + b"\0")
        self._records = records
        self._most = RECORDS_PER_PAGE_MAX if records else KEYS_PER_PAGE_MAX
        self._limit = min(_RECORDS_PER_FIRST_PAGE if records else KEYS_PER_FIRST_PAGE, self._most)
        self._revision = 0
        self._presents = 0
        self._is_wide = False
        self._ahead: list[bytes] = []
        """The keys, read in advance, of the next pages of a wide directory."""
        self._are_all_ahead = False

    async def next(self) -> list[tuple[str, Any]] | None:
        """Return the names and entries of one page, or None at the end.

        Where the page contains a key below a child, the child's name has the entry None. Foreign
        keys are left out.
        """
        if self._start >= self._end:
            return None
        end = await self._page_end()
        response = await self._read(end, self._limit, keys_only=not self._records)
        page = []
        for kv in response.kvs:
            if self._scope.name(kv.key) is not None:
                name, slash, _ = kv.key[len(self._base) :].decode().partition("/")
                page.append((name, None if slash else kv))
        if not response.more:
            self._start = end
            if response.kvs:
                self._fit(response, page)
            return page
        last = response.kvs[-1].key
        child, slash, _ = last[len(self._base) :].partition(b"/")
        if slash and self._scope.name(last) is not None:
            # "0" is the byte after the slash, so the next page starts after everything below this
            # child.
            self._start = self._base + child + b"0"
        else:
            self._start = last + b"\0"
        self._fit(response, page)
        return page

    async def _page_end(self) -> bytes:
        """Return the exclusive end of the next page's range."""
        if not self._is_wide:
            return self._end
        del self._ahead[: bisect_left(self._ahead, self._start)]
        if len(self._ahead) <= self._limit and not self._are_all_ahead:
            response = await self._read(self._end, KEYS_PER_PAGE_MAX, keys_only=True)
            self._ahead = [kv.key for kv in response.kvs]
            self._are_all_ahead = not response.more
        # Keys that are created meanwhile sort between these keys, and do not move the end.
        return self._ahead[self._limit] if len(self._ahead) > self._limit else self._end

    async def _read(self, end: bytes, limit: int, *, keys_only: bool) -> Any:
        while True:
            request = pb.RangeRequest(
                key=self._start,
                range_end=end,
                limit=limit,
                revision=self._revision,
                keys_only=keys_only,
            )
            try:
                response = await self._client.read(RANGE, request)
                self._revision = self._revision or response.header.revision
                return response
            except CompactedError as error:
                self._presents += 1
                self._revision = 0
                if self._presents > _PRESENTS_MAX:
                    raise MetadataUnavailableError(
                        f"a listing cannot be completed: {error}, again and again"
                    ) from None

    def _fit(self, response: Any, page: list[tuple[str, Any]]) -> None:
        """Set the next page's number of keys from this page's size and number of children."""
        children = len({name for name, _ in page})
        if self._records:
            is_flat = all(kv is not None for _, kv in page)
            self._is_wide = is_flat and (self._is_wide or response.count >= WIDE_KEYS_MIN)
        limit = self._limit * 2
        if children * 4 < len(page):
            limit = self._limit // 4
        if self._records:
            size = response.ByteSize()
            limit = min(limit, max(1, len(response.kvs) * PAGE_SIZE_BYTES // max(size, 1)))
        least = 1 if self._records else _ENTRIES_PER_PAGE_MIN
        self._limit = max(least, min(limit, self._most))


async def child_names(client: EtcdClient, scope: KeyLayout, key: str) -> list[str]:
    """Return all names one level below `key`, sorted, even names that have only children."""
    pages = _ChildPages(client, scope, key, "", records=False)
    names: set[str] = set()
    while (page := await pages.next()) is not None:
        names.update(name for name, _ in page)
    return sorted(names)


async def child_records(
    client: EtcdClient, scope: KeyLayout, key: str, after: str
) -> AsyncIterator[tuple[str, Any]]:
    """Yield key and entry of each child record with a name greater than `after`, by name."""
    pages = _ChildPages(client, scope, key, after, records=True)
    base = key.rstrip("/") + "/"
    while (page := await pages.next()) is not None:
        for name, kv in page:
            if kv is not None:
                yield base + name, kv


async def foreign_keys(client: EtcdClient, scope: KeyLayout) -> list[bytes]:
    """Return, sorted, the keys in the scope that are not valid as keys of records."""
    start, end = scope.below(ROOT)
    found: list[bytes] = []
    while start:
        request = pb.RangeRequest(key=start, range_end=end, limit=KEYS_PER_PAGE_MAX, keys_only=True)
        response = await client.read(RANGE, request)
        found.extend(kv.key for kv in response.kvs if scope.name(kv.key) is None)
        start = response.kvs[-1].key + b"\0" if response.more else b""
    return found
