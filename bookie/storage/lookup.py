"""Where entries are, by the pages of the index: many at once as arrays, or one as three numbers.

That a page is not there is believed only if it stands on neither side of its place under another
key. The store finds a key by comparing it with others, and a bit that flipped in one of these hides
the page; but the search ends where it stands, and its checksum covers the key that it had.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from bookie.env import ReadTransaction
from bookie.errors import ChecksumError
from bookie.formats.pages import (
    SLOTS_PER_PAGE,
    decode_pages,
    decode_slot,
    is_page,
    page_key,
    parse_page_key,
)
from bookie.storage.window import Window

PAGES_TRIED_MAX = 4096
"""Missing pages that are tried for one that stands beside their place."""


def stored_pages(
    txn: ReadTransaction, ledger_id: int, first_page: int, last_page: int, pages_max: int
) -> list[tuple[bytes, bytes]]:
    """The pages of the ledger from `first_page` to `last_page`, up to `pages_max` of them.

    Raises:
        ChecksumError: a page is there under another key. Those that are returned are unchecked.
    """
    start, stop = page_key(ledger_id, first_page), page_key(ledger_id, last_page + 1)
    pairs = txn.range("locations", start, stop, pages_max)
    end = last_page + 1 if len(pairs) < pages_max else parse_page_key(pairs[-1][0])[1] + 1
    if len(pairs) < end - first_page:
        beside = txn.around("locations", start) + txn.around("locations", stop)
        damaged = [value for key, value in beside if not is_page(key, value)]
        # A listing does not know which pages there should be.
        pages = range(first_page, end) if end - first_page <= PAGES_TRIED_MAX else ()
        if damaged and not pages:
            raise ChecksumError(f"a page beside those of ledger {ledger_id} is damaged")
        for page, value in product(pages, damaged):
            if is_page(page_key(ledger_id, page), value):
                raise ChecksumError(f"page {page} of ledger {ledger_id} has another key")
    return pairs


def look_up(txn: ReadTransaction, ledger_id: int, window: Window) -> None:
    """Put what the pages know of the ledger into an empty `window`.

    Raises:
        ChecksumError: a page is damaged; nothing may be concluded from the window.
    """
    first_page = window.first // SLOTS_PER_PAGE
    last_page = window.last // SLOTS_PER_PAGE
    count = last_page - first_page + 1
    pairs = stored_pages(txn, ledger_id, first_page, last_page, count)
    if not pairs:
        return
    numbers, slots = decode_pages(pairs)
    span = np.zeros((count, SLOTS_PER_PAGE, 3), np.uint32)
    span[numbers - first_page] = slots
    start_slot = window.first - first_page * SLOTS_PER_PAGE
    part = span.reshape(-1, 3)[start_slot : start_slot + window.last - window.first + 1]
    window.files[:] = part[:, 0]
    window.offsets[:] = part[:, 1]
    window.sizes[:] = part[:, 2]


def look_up_one(txn: ReadTransaction, ledger_id: int, entry_id: int) -> tuple[int, int, int] | None:
    """File, offset and size of one entry; None if no page has it.

    Raises:
        ChecksumError: its page is damaged; nothing may be concluded.
    """
    key = page_key(ledger_id, entry_id // SLOTS_PER_PAGE)
    page = txn.get("locations", key)
    if page is None:
        for near, value in txn.around("locations", key):
            if is_page(key, value):
                raise ChecksumError(f"the index page {key.hex()} has the key {near.hex()}")
        return None
    return decode_slot(key, page, entry_id)
