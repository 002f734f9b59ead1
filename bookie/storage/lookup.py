"""Where entries are, by the pages of the index: many at once as arrays, or one as three numbers."""

from __future__ import annotations

import numpy as np

from bookie.env import ReadTransaction
from bookie.formats.pages import SLOTS_PER_PAGE, decode_pages, decode_slot, page_key
from bookie.storage.window import Window


def look_up(txn: ReadTransaction, ledger_id: int, window: Window) -> None:
    """Put what the pages know of the ledger into an empty `window`.

    Raises:
        ChecksumError: a page is damaged; nothing may be concluded from the window.
    """
    first_page = window.first // SLOTS_PER_PAGE
    last_page = window.last // SLOTS_PER_PAGE
    count = last_page - first_page + 1
    start, stop = page_key(ledger_id, first_page), page_key(ledger_id, last_page + 1)
    pairs = txn.range("locations", start, stop, count)
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
    return None if page is None else decode_slot(key, page, entry_id)
