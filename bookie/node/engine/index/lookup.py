"""The look-up of entries in the pages of the index.

A missing page counts as missing only if it does not stand beside its place under another key. The
store finds a key by comparisons, so a flipped bit in a key can hide a page. The search then ends
beside that page, and the page's checksum covers its original key.
"""

from __future__ import annotations

from itertools import product

from bookie.env import ReadTransaction
from bookie.errors import ChecksumError
from bookie.node.engine.format.pages import (
    EMPTY_SLOTS,
    decode_pages,
    is_page,
    page_key,
    parse_page_key,
)

PAGES_TRIED_MAX = 4096
"""The most missing pages whose neighbours are searched for them."""


def stored_pages(
    txn: ReadTransaction, ledger_id: int, first_page: int, last_page: int, pages_max: int
) -> list[tuple[bytes, bytes]]:
    """The pages of the ledger from `first_page` to `last_page`, up to `pages_max` of them.

    Raises:
        ChecksumError: a page is there under another key. Returned pages are unchecked.
    """
    start, stop = page_key(ledger_id, first_page), page_key(ledger_id, last_page + 1)
    pairs = txn.range("locations", start, stop, pages_max)
    end = last_page + 1 if len(pairs) < pages_max else parse_page_key(pairs[-1][0])[1] + 1
    if len(pairs) < end - first_page:
        beside = txn.around("locations", start) + txn.around("locations", stop)
        damaged = [value for key, value in beside if not is_page(key, value)]
        # A listing does not know which pages should exist.
        pages = range(first_page, end) if end - first_page <= PAGES_TRIED_MAX else ()
        if damaged and not pages:
            raise ChecksumError(f"a page beside those of ledger {ledger_id} is damaged")
        for page, value in product(pages, damaged):
            if is_page(page_key(ledger_id, page), value):
                raise ChecksumError(f"page {page} of ledger {ledger_id} has another key")
    return pairs


def look_up(txn: ReadTransaction, ledger_id: int, first_page: int, last_page: int) -> list[bytes]:
    """The slots of each page, in order; `EMPTY_SLOTS` where there is none.

    Raises:
        ChecksumError: a page is damaged; nothing may be concluded.
    """
    count = last_page - first_page + 1
    pages = [EMPTY_SLOTS] * count
    pairs = stored_pages(txn, ledger_id, first_page, last_page, count)
    if pairs:
        numbers, slots = decode_pages(pairs)
        data, size = slots.tobytes(), len(EMPTY_SLOTS)
        for index, number in enumerate(numbers.tolist()):
            pages[number - first_page] = data[index * size : (index + 1) * size]
    return pages
