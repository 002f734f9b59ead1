"""A window holds the locations of consecutive entry ids.

The locations in the memtables are written into the window, oldest memtable first, so that the
newest copy of an entry wins. Then the index fills the places that are still empty. Array operations
do all work, without a loop over entries.

A location is a triple (file, offset, size). A `file` above 0 is a file number. A negative `file`
means the buffer ``memory[-file - 1]``, a payload that is not written yet. `file` 0 means that the
entry is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from bookie.env import Buffer
from bookie.node.engine.format.arrays import U32, Ids
from bookie.node.engine.format.pages import COLUMNS, SLOTS_PER_PAGE

Sizes = Ids | U32


class Extent(NamedTuple):
    """Adjacent packets: `length` bytes at `offset` of `file`.

    An extent is a tuple for speed, because each single append in the journal needs an extent.
    """

    file: int
    offset: int
    length: int
    packets: int


# This constructor is C code, and so faster than the class's own constructor in Python.
_make_extent = cast("Any", partial(tuple.__new__, Extent))


class Window:
    """Locations of the ids ``first … first + span - 1``."""

    __slots__ = ("files", "first", "last", "memory", "offsets", "sizes")

    def __init__(self, first: int, span: int) -> None:
        self.first = first
        self.last = first + span - 1
        self.files: Ids = np.zeros(span, dtype=np.int64)
        self.offsets: Ids = np.zeros(span, dtype=np.int64)
        self.sizes: Ids = np.zeros(span, dtype=np.int64)
        self.memory: list[Buffer] = []

    def put(self, ids: Ids, files: Sizes | int, offsets: Sizes, sizes: Sizes) -> None:
        """Write the locations of `ids` into the window, and overwrite older locations."""
        where = ids - self.first
        self.files[where] = files
        self.offsets[where] = offsets
        self.sizes[where] = sizes

    def put_contiguous(self, first_id: int, file: int, offsets: Ids, sizes: Sizes) -> None:
        """Write the locations of ``first_id, first_id + 1, …`` into the window."""
        start = first_id - self.first
        stop = start + len(sizes)
        self.files[start:stop] = file
        self.offsets[start:stop] = offsets
        self.sizes[start:stop] = sizes

    def fill(self, first_page: int, pages: list[bytes]) -> None:
        """Fill the empty places of the window from index pages, which begin with `first_page`.

        The pages may cover only the first ids of the window.
        """
        slots = np.frombuffer(b"".join(pages), np.dtype("<u4")).reshape(-1, COLUMNS)
        start = self.first - first_page * SLOTS_PER_PAGE
        part = slots[start : start + len(self.sizes)]
        where: slice | Ids = slice(len(part))
        if self.sizes.any():
            where = np.flatnonzero(self.sizes[: len(part)] == 0)
            part = part[where]
        self.files[where], self.offsets[where], self.sizes[where] = part.T

    def remember(self, buffer: Buffer) -> int:
        """Keep `buffer` for this read; return the negative number that represents `buffer`."""
        self.memory.append(buffer)
        return -len(self.memory)

    def wanted(self, modulus: int, first_residue: int, count: int) -> Ids:
        """Return the ids of the window that belong to a stripe, ascending; see `Stripe`."""
        ids = np.arange(len(self.sizes), dtype=np.int64) + self.first
        if modulus == 0:
            return ids
        return ids[(ids - first_residue) % modulus < count]

    def extents(self, ids: Ids) -> list[Extent]:
        """Return the packets of `ids` as extents of adjacent bytes, in the order of `ids`."""
        where = ids - self.first
        files, offsets, sizes = self.files[where], self.offsets[where], self.sizes[where]
        ends = offsets + sizes
        breaks = np.flatnonzero((files[1:] != files[:-1]) | (offsets[1:] != ends[:-1])) + 1
        starts = np.concatenate(([0], breaks))
        stops = np.concatenate((breaks, [len(ids)]))
        rows: Iterable[tuple[int, int, int, int]] = zip(
            files[starts].tolist(),
            offsets[starts].tolist(),
            (ends[stops - 1] - offsets[starts]).tolist(),
            (stops - starts).tolist(),
            strict=True,
        )
        return list(map(_make_extent, rows))
