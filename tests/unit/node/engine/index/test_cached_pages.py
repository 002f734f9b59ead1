"""Index pages in memory: bounded, and never older than the index."""

from __future__ import annotations

from bookie.node.engine.format.pages import EMPTY_SLOTS
from bookie.node.engine.index.cached_pages import CachedPages

PAGE = b"a page"


def test_pages_are_found_together_or_not_at_all() -> None:
    """A missing one means a look-up; that the index has no page is known, too."""
    cache = CachedPages()
    cache.put(7, 3, [PAGE, EMPTY_SLOTS], cache.stamp)
    assert cache.pages(7, 3, 4) == [PAGE, EMPTY_SLOTS]
    assert cache.page(7, 4) == EMPTY_SLOTS
    for first, last in ((2, 3), (3, 5), (5, 5)):
        assert cache.pages(7, first, last) is None
    assert cache.pages(8, 3, 3) is None
    assert cache.page(8, 3) is None


def test_a_changed_ledger_is_forgotten() -> None:
    """With what a look-up found that began before the change."""
    cache = CachedPages()
    stamp = cache.stamp
    cache.put(7, 0, [PAGE] * 3, stamp)
    cache.put(8, 0, [PAGE], stamp)
    cache.forget([7, 9])
    assert (cache.page(7, 0), cache.page(8, 0), len(cache)) == (None, PAGE, 1)
    cache.put(7, 0, [PAGE], stamp)
    assert cache.page(7, 0) is None
    cache.put(7, 0, [PAGE], cache.stamp)
    assert cache.page(7, 0) == PAGE


def test_the_ledger_that_was_read_longest_ago_gives_way() -> None:
    """Page by page; a look-up that is larger than the cache is not kept."""
    cache = CachedPages(pages_max=4)
    cache.put(7, 0, [PAGE] * 2, cache.stamp)
    cache.put(8, 0, [PAGE] * 2, cache.stamp)
    assert cache.page(7, 1) == PAGE
    cache.put(9, 0, [PAGE], cache.stamp)
    assert [cache.page(8, 0), cache.page(8, 1), cache.page(7, 0)] == [None, PAGE, PAGE]
    cache.put(7, 0, [PAGE] * 2, cache.stamp)
    assert len(cache) == 4
    cache.put(6, 0, [PAGE] * 5, cache.stamp)
    assert cache.page(6, 0) is None
    cache.put(6, 0, [PAGE] * 4, cache.stamp)
    assert (cache.pages(6, 0, 3), len(cache)) == ([PAGE] * 4, 4)
