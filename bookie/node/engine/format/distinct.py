"""The distinct values of an array of integers."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

IntegerT = TypeVar("IntegerT", bound=np.integer)


def distinct(values: NDArray[IntegerT]) -> NDArray[IntegerT]:
    """Each value once, ascending.

    As `numpy.unique`, which takes four times as long for 100 000 values, and imports the masked
    arrays with its first call.
    """
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]
