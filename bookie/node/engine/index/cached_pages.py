"""Caches recently read index pages, so that the event loop need not read the index.

Only the event loop uses the cache. A cached page may lack changes only while these changes are in a
memtable. So when an index transaction ends, the event loop drops the cached pages of the changed
ledgers, before it drops the memtable or a file. A look-up that began before the end of the
transaction may have read old pages. So each look-up reads the stamp first, and the cache refuses
its pages if the stamp has changed since then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

PAGES_MAX = 65_536
"""The largest number of cached pages: 4 million entries in about 55 MB."""


class CachedPages:
    """Caches the slots of index pages; `EMPTY_SLOTS` represents a page that the index lacks."""

    def __init__(self, pages_max: int = PAGES_MAX) -> None:
        self._pages_max = pages_max
        self._ledgers: OrderedDict[int, dict[int, bytes]] = OrderedDict()
        self._count = 0
        self.stamp = 0
        """A counter that increases with every call of `forget`."""

    def __len__(self) -> int:
        return self._count

    def page(self, ledger_id: int, number: int) -> bytes | None:
        pages = self._ledgers.get(ledger_id)
        if pages is None:
            return None
        self._ledgers.move_to_end(ledger_id)
        return pages.get(number)

    def pages(self, ledger_id: int, first: int, last: int) -> list[bytes] | None:
        """Return the cached pages `first` … `last`; None unless all these pages are cached."""
        pages = self._ledgers.get(ledger_id)
        if pages is None:
            return None
        self._ledgers.move_to_end(ledger_id)
        found = []
        for number in range(first, last + 1):
            page = pages.get(number)
            if page is None:
                return None
            found.append(page)
        return found

    def put(self, ledger_id: int, first: int, pages: list[bytes], stamp: int) -> None:
        """Cache `pages` from number `first` on, unless the index changed since `stamp` was read."""
        if stamp != self.stamp or len(pages) > self._pages_max:
            return
        known = self._ledgers.setdefault(ledger_id, {})
        before = len(known)
        known.update(zip(range(first, first + len(pages)), pages, strict=True))
        self._ledgers.move_to_end(ledger_id)
        self._count += len(known) - before
        while self._count > self._pages_max:
            self._evict()

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """Drop the cached pages of these ledgers, because a transaction changed the pages."""
        self.stamp += 1
        for ledger_id in ledger_ids:
            self._count -= len(self._ledgers.pop(ledger_id, ()))

    def _evict(self) -> None:
        """Drop the oldest page of the ledger that was least recently read."""
        ledger_id = next(iter(self._ledgers))
        pages = self._ledgers[ledger_id]
        del pages[next(iter(pages))]
        self._count -= 1
        if not pages:
            del self._ledgers[ledger_id]
