"""The checksum CRC-32C (Castagnoli), which protects the data that a bookie writes or sends.

The CRC library uses the processor's carry-less multiplication, and does not copy data. For buffers
of 16 KiB or more, the library releases the interpreter's lock, so no other thread may change the
buffer meanwhile.

Only `crcs_of_rows` imports numpy, so code that checks LMDB files or metadata needs no numpy.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from fastcrc.crc32 import iscsi as crc32c

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["crc32c", "crcs_of_rows"]


def crcs_of_rows(rows: NDArray[np.uint8], seed: int = 0) -> NDArray[np.uint32]:
    """Return the CRC-32C of each row, starting with `seed`; there must be at least one row.

    The rows must be adjacent in memory, and their width must be a multiple of 4 bytes.

    A CRC is linear: each byte that differs from the first row's byte changes the CRC by a known
    amount. In the headers of one batch, only the low bytes of ids and lengths differ, so about five
    table look-ups are enough for all headers. With a library call for each header, a writer would
    spend a third of its time on these calls.
    """
    import numpy as np

    words = rows.view(np.uint32)
    differing = np.bitwise_or.reduce(words ^ words[0], axis=0).view(np.uint8)
    first = rows[0]
    table = _crc_changes(rows.shape[1])
    base = crc32c(first.tobytes(), seed)
    crcs = np.zeros(len(rows), np.uint32)
    for column in np.flatnonzero(differing).tolist():
        changes = table[column]
        crcs ^= changes.take(rows[:, column])
        base ^= int(changes[first[column]])
    crcs ^= np.uint32(base)
    return crcs


@cache
def _crc_changes(width: int) -> NDArray[np.uint32]:
    """Return how each byte value at each position changes the CRC-32C of `width` zero bytes."""
    import numpy as np

    zeros = crc32c(bytes(width))
    table = np.zeros((width, 256), np.uint32)
    for position in range(width):
        for bit in range(8):
            row = bytearray(width)
            row[position] = 1 << bit
            change = np.uint32(crc32c(row) ^ zeros)
            # The change of a byte value is the XOR of the changes of its bits. `bit` is the highest
            # bit of the values in this slice.
            table[position, 1 << bit : 2 << bit] = table[position, : 1 << bit] ^ change
    return table
