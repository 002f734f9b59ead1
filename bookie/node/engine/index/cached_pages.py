"""Recently read pages of the index, so that the event loop need not read the index.

Used in the event loop only. A cached page equals the index as long as everything newer is in a
memtable. When a transaction has ended, the loop forgets the pages of its ledgers. It does so before
it drops the memtable or a file. A look-up that began before may hold old pages. Its stamp is
outdated, so they are not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

PAGES_MAX = 65_536
"""Pages of 64 entries: about 55 MB in all, for 4 million entries."""


class CachedPages:
    """The slots of pages, by ledger and page number; `EMPTY_SLOTS` where the index has no page."""

    def __init__(self, pages_max: int = PAGES_MAX) -> None:
        self._pages_max = pages_max
        self._ledgers: OrderedDict[int, dict[int, bytes]] = OrderedDict()
        self._count = 0
        self.stamp = 0
        """Rises with every change of the index."""

    def __len__(self) -> int:
        return self._count

    def page(self, ledger_id: int, number: int) -> bytes | None:
        pages = self._ledgers.get(ledger_id)
        if pages is None:
            return None
        self._ledgers.move_to_end(ledger_id)
        return pages.get(number)

    def pages(self, ledger_id: int, first: int, last: int) -> list[bytes] | None:
        """The pages `first` … `last`; None unless all of them are cached."""
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
        """Keep pages from `first` on; `stamp` is that of the look-up's begin."""
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
        """Drop the pages of these ledgers, which a transaction changed."""
        self.stamp += 1
        for ledger_id in ledger_ids:
            self._count -= len(self._ledgers.pop(ledger_id, ()))

    def _evict(self) -> None:
        """Forget the oldest page of the ledger that was least recently read."""
        ledger_id = next(iter(self._ledgers))
        pages = self._ledgers[ledger_id]
        del pages[next(iter(pages))]
        self._count -= 1
        if not pages:
            del self._ledgers[ledger_id]
