"""Appends a file or pipe to a ledger as entries, and reads entries of a ledger."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

from bookie.api import WriterHandle, connect
from bookie.cli.progress import progress_bar
from bookie.entry.entry import Entry
from bookie.errors import BadRequestError
from bookie.ids import ENTRY_SIZE_BYTES_MAX

GROUP_BYTES = 1024 * 1024
"""The number of bytes to read from the file and append at a time: about one request."""

GROUPS_IN_FLIGHT_MAX = 16
"""The most groups in flight: enough to keep every bookie busy, few enough to save memory."""


class Cutter:
    """Cuts a stream of bytes into entries: lines without line ends, or pieces of equal size.

    Args:
        chunk_bytes: the size of a piece in bytes; 0 means lines.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._rest: list[bytes] = []
        """The bytes of the last entry, which is still incomplete."""
        self._rest_bytes = 0
        self._entries = 0

    def cut(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the stream; return the entries that these bytes complete.

        Raises:
            BadRequestError: a line is longer than the largest entry.
        """
        size = self._chunk_bytes
        if size:
            data = b"".join([*self._rest, data])
            whole = len(data) - len(data) % size
            self._keep([data[whole:]])
            return [data[at : at + size] for at in range(0, whole, size)]
        first, *others = data.split(b"\n")
        if not others:
            self._keep([*self._rest, first])
            return []
        *lines, rest = others
        lines.insert(0, b"".join([*self._rest, first]))
        self._entries += len(lines)
        self._keep([rest])
        return lines

    def end(self) -> list[bytes]:
        """Return the rest of the stream as the last entry; an empty list if no bytes are left."""
        return [b"".join(self._rest)] if self._rest_bytes else []

    def _keep(self, rest: list[bytes]) -> None:
        """Keep the bytes of an incomplete entry; refuse a line that is too long."""
        self._rest_bytes = self._rest_bytes + len(rest[-1]) if len(rest) > 1 else len(rest[0])
        self._rest = rest
        if not self._chunk_bytes and self._rest_bytes > ENTRY_SIZE_BYTES_MAX:
            raise BadRequestError(
                f"line {self._entries + 1} is longer than the {ENTRY_SIZE_BYTES_MAX} bytes of the "
                "largest entry"
            )


async def entries_in(source: BinaryIO, chunk_bytes: int) -> AsyncGenerator[list[bytes], None]:
    """Yield the entries of a file or pipe in groups of about `GROUP_BYTES`.

    The function yields data of a pipe as soon as the data arrives, so groups of a pipe may be
    smaller. A cancellation ends the wait for data of a pipe.
    """
    cutter = Cutter(chunk_bytes)
    loop = asyncio.get_running_loop()
    descriptor = source.fileno()
    mode = os.fstat(descriptor).st_mode
    may_wait = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
    while True:
        if may_wait:
            await _readable(loop, descriptor)
            data = os.read(descriptor, GROUP_BYTES)
        else:
            data = await loop.run_in_executor(None, os.read, descriptor, GROUP_BYTES)
        if not data:
            break
        if group := cutter.cut(data):
            yield group
    if group := cutter.end():
        yield group


async def _readable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    """Wait until the pipe or terminal `descriptor` has data or has ended."""
    readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(descriptor, wake)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)


async def append_stream(
    metadata: str,
    ledger_id: int,
    path: Path | None,
    *,
    chunk_bytes: int,
    password: bytes,
    close: bool,
) -> dict[str, int]:
    """Claim the ledger, append a file or standard input, and close the ledger if `close` is set.

    Returns:
        the ledger's id, the numbers of appended entries and bytes, and the last entry's id.

    Raises:
        OSError: the file is unreadable. If only a later read fails, the ledger stays open, and the
            entries before it may or may not be appended.
        BookieError: the claim or an append failed; a claimed ledger stays open.
    """
    # Open the file first, so that a failure leaves the ledger unclaimed.
    source = sys.stdin.buffer if path is None else path.open("rb", buffering=0)
    with source:
        total = os.fstat(source.fileno()).st_size if path is not None else None
        async with connect(metadata) as client:
            writer = await client.claim_ledger(ledger_id, password=password)
            try:
                entries, size = await _append_all(writer, source, total, chunk_bytes)
            except asyncio.CancelledError:
                hint = f"bookie: ledger {ledger_id} is left open; 'bookie ledger recover' closes it"
                print(hint, file=sys.stderr)
                raise
            if close:
                await writer.close()
    return {
        "ledger_id": ledger_id,
        "entries": entries,
        "bytes": size,
        "last_entry_id": entries - 1,
    }


async def _append_all(
    writer: WriterHandle, source: BinaryIO, total: int | None, chunk_bytes: int
) -> tuple[int, int]:
    """Append all data of `source`; return the numbers of entries and bytes."""
    entries = size = 0
    window = asyncio.Semaphore(GROUPS_IN_FLIGHT_MAX)
    with progress_bar("appending", total=total) as advance:

        async def append_group(group: list[bytes]) -> None:
            await writer.append_many(group)
            advance(sum(map(len, group)))
            window.release()

        async with (
            asyncio.TaskGroup() as tasks,
            aclosing(entries_in(source, chunk_bytes)) as groups,
        ):
            async for group in groups:
                await window.acquire()
                entries += len(group)
                size += sum(map(len, group))
                # Tasks start in the order of their creation, so entries keep the file's order.
                tasks.create_task(append_group(group))
    return entries, size


async def read_range(
    metadata: str, ledger_id: int, first: int, last: int | None, password: bytes
) -> AsyncGenerator[Sequence[Entry], None]:
    """Yield the entries from `first` to `last` in batches; None means up to the last entry."""
    async with connect(metadata) as client:
        reader = await client.open_ledger(ledger_id, password=password)
        end = reader.last_entry_id if last is None else last
        with progress_bar("reading", total=max(end - first + 1, 0), unit="entries") as advance:
            async with aclosing(reader.read_batches(first, last)) as batches:
                async for entries in batches:
                    yield entries
                    advance(len(entries))


async def read_unconfirmed(
    metadata: str, ledger_id: int, first: int, last: int | None, password: bytes
) -> AsyncGenerator[Sequence[Entry], None]:
    """Yield the stored entries from `first` to `last`, including unconfirmed entries.

    If `last` is None, there is no limit.
    """
    async with connect(metadata) as client:
        reader = await client.open_ledger(ledger_id, password=password)
        async with aclosing(reader.read_unconfirmed(first, last)) as entries:
            async for entry in entries:
                yield (entry,)


async def follow(
    metadata: str, ledger_id: int, start: int | None, password: bytes
) -> AsyncGenerator[Sequence[Entry], None]:
    """Yield the entries from `start` on, and wait for new entries.

    If `start` is None, begin at the next new entry.
    """
    async with connect(metadata) as client:
        reader = await client.open_ledger(ledger_id, password=password)
        begin = reader.last_entry_id + 1 if start is None else start
        async with aclosing(reader.tail(start=begin)) as entries:
            async for entry in entries:
                yield (entry,)
