"""Keeps zeros behind the used pages of an LMDB file; small commits replace these zeros.

If ext4 turns read-only during a commit that writes new blocks, ext4 may lose the new pages, keep
the meta page that names them, and report success. Measured on Linux 6.18: one file in 20 was
damaged by such an error. ext4 does not lose pages that replace synced zeros. The risk remains in
two cases: a commit has more new pages than there are zeros, or a commit writes a page that an
earlier, large commit left unwritten.
"""

from __future__ import annotations

import errno
import os

import lmdb

from bookie.env.disk import check_takes_changes, is_disk_full

_AHEAD_BYTES = 128 * 1024


class ZerosAhead:
    """Writes the zeros of one LMDB environment; `descriptor` is its data file, open for writing."""

    def __init__(self, environment: lmdb.Environment, descriptor: int) -> None:
        self._environment = environment
        self._descriptor = descriptor
        self._page_bytes: int = environment.stat()["psize"]
        self._zeros_upto = 0
        """All unused pages before this offset in the file durably hold zeros."""

    def write(self) -> None:
        """Write more zeros durably if fewer than `_AHEAD_BYTES` are left and the device has room.

        Only the holder of LMDB's write lock may call this, and only before its first change.

        Raises:
            OSError: the device failed; the error number is EIO.
        """
        info = self._environment.info()
        used = (info["last_pgno"] + 1) * self._page_bytes
        if self._zeros_upto - used >= _AHEAD_BYTES:
            return
        begin = max(self._zeros_upto, used)
        end = min(used + 2 * _AHEAD_BYTES, info["map_size"])
        if end <= begin:
            return
        try:
            size = os.fstat(self._descriptor).st_size
            try:
                written = os.pwrite(self._descriptor, bytes(end - begin), begin)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                # Give the space back to LMDB, which may need less space than the zeros.
                os.ftruncate(self._descriptor, size)
                return
            os.fdatasync(self._descriptor)
            check_takes_changes(self._descriptor)
        except OSError as error:
            raise _failed(error) from error
        self._zeros_upto = begin + written

    def check(self) -> None:
        """Raise an error if the file system failed during the last commit, which may be lost.

        Raises:
            OSError: the device failed; the error number is EIO.
        """
        try:
            check_takes_changes(self._descriptor)
        except OSError as error:
            raise _failed(error) from error


def _failed(error: OSError) -> OSError:
    return OSError(errno.EIO, f"the file of LMDB failed: {error}")
