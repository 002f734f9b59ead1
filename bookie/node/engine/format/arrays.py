"""Array types for ids and file positions; with arrays the engine handles many entries at once."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
U32 = NDArray[np.uint32]
"""File numbers, offsets or sizes, as the index stores them."""

IdRanges = tuple[Ids, Ids]
"""First ids and last ids of ranges; the ranges are disjoint, ascending and not adjacent."""

IntegerT = TypeVar("IntegerT", bound=np.integer)


def distinct(values: NDArray[IntegerT]) -> NDArray[IntegerT]:
    """Return each distinct value once, in ascending order, like `numpy.unique`.

    `numpy.unique` takes four times as long for 100 000 values, and its first call imports masked
    arrays.
    """
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]
