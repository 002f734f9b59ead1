"""Writes entry logs; a log gets its final name once all its content is durable.

The first record of a log is a LINK record. It names the newest file from which the log may hold
copied records. A rebuild of the index reads the log right after the file that the LINK names.
Journals with higher numbers than that file hold newer records than the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from bookie.env import Buffer, Environment
from bookie.node.engine.files import BlockFile, SealedFile, create_file, file_name, publish_file
from bookie.node.engine.format.blocks import FileHeader, FileKind, block_size_on_disk
from bookie.node.engine.format.index_rows import LedgerIndexRow
from bookie.node.engine.format.records import (
    encode_deleted,
    encode_fence,
    encode_lac,
    encode_ledger,
    encode_limbo,
    encode_link,
)


class EntryLogWriter:
    """Writes logs one after the other; the calls block, and only one thread at a time may call.

    `newest` is the number and nonce of the newest file whose records the logs hold, or None.
    """

    def __init__(
        self,
        environment: Environment,
        next_number: Callable[[], int],
        directory: str,
        alignment: int,
        log_bytes_max: int,
        newest: tuple[int, bytes] | None,
    ) -> None:
        self._env = environment
        self._next_number = next_number
        self._directory = directory
        self._alignment = alignment
        self._log_bytes_max = log_bytes_max
        self._link = b"" if newest is None else encode_link(*newest, 0)
        self._file: BlockFile | None = None
        self._finished: list[tuple[FileHeader, int]] = []

    def write(self, body: Buffer, records: int) -> tuple[int, int]:
        """Append one block; return the file's number and the offset of `body` in the file.

        Raises:
            DiskFullError: there is no room for another file.
            OSError: the device failed, or has no room for the block.
        """
        size = block_size_on_disk(len(self._link) + len(body), self._alignment)
        file = self._file
        if file is None or file.end + size > self._log_bytes_max:
            file = self._next_file()
        link = b"" if file.sequence else self._link
        where = file.body_offset + len(link)
        # All blocks before this one count as durable: the log gets its final name only after a
        # sync.
        file.write(file.encode([link, body], records + bool(link), file.end))
        return file.header.number, where

    @property
    def holds_anything(self) -> bool:
        """True if a block was written since the last `publish`."""
        return self._file is not None or bool(self._finished)

    def sync(self) -> None:
        """Make all written logs durable; the logs have no final names yet."""
        self._close_file()

    def publish(self) -> list[tuple[SealedFile, str]]:
        """Give the synced logs their final names, durably; return the files with their paths."""
        published = []
        for header, end in self._finished:
            publish_file(self._env.disk, self._directory, header)
            path = os.path.join(self._directory, file_name(header.kind, header.number))
            published.append((SealedFile(header.number, FileKind.ENTRY_LOG, end), path))
        self._finished.clear()
        return published

    def _next_file(self) -> BlockFile:
        self._close_file()
        header = FileHeader(
            FileKind.ENTRY_LOG, self._next_number(), self._env.clock.nonce(), self._alignment
        )
        file = create_file(self._env.disk, self._directory, header, 0, publish=False)
        self._file = BlockFile(file, header)
        return self._file

    def _close_file(self) -> None:
        done, self._file = self._file, None
        if done is not None:
            done.file.fdatasync()
            done.file.close()
            self._finished.append((done.header, done.end))


def state_records(ledger_id: int, row: LedgerIndexRow) -> list[bytes]:
    """Encode the records of a ledger that a rebuild needs besides the ledger's entries.

    For a ledger that left limbo, no UNLIMBO record is needed. If a rebuild puts the ledger in limbo
    without need, an integrity check takes the ledger out again. If a rebuild wrongly left a ledger
    out of limbo, the bookie would deny lost entries.
    """
    records = []
    if row.key_digest is not None:
        records.append(encode_ledger(ledger_id, row.key_digest))
    if row.fenced and row.key_digest is not None:
        records.append(encode_fence(ledger_id, row.key_digest))
    if row.limbo or (row.fenced and row.key_digest is None):
        # A FENCE record needs a key; for a ledger without a key, a LIMBO record fences the ledger.
        records.append(encode_limbo(ledger_id, in_limbo=True, fences=row.fenced))
    if row.lac_packet:
        records.append(encode_lac(ledger_id, row.lac_packet))
    if row.deleted_at_ms is not None:
        records.append(encode_deleted(ledger_id, row.deleted_at_ms))
    return records
