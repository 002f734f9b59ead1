"""Entries between a file (or a pipe) and a ledger, in batches, with a window in flight."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

from bookie.api import connect
from bookie.cli.progress import progress_bar
from bookie.formats.entry import Entry

GROUP_BYTES = 1024 * 1024
"""About one request: what is read from the file, and appended, at a time."""

GROUPS_IN_FLIGHT_MAX = 16
"""Enough to keep every bookie busy, and few enough to hold little in memory."""


def entries_in(source: BinaryIO, chunk_bytes: int) -> Iterator[list[bytes]]:
    """Groups of entries of about `GROUP_BYTES`: lines without their end, or pieces of a size.

    A pipe's lines come as they are written: a group ends where nothing more is waiting.

    Args:
        source: an unbuffered or buffered binary stream.
        chunk_bytes: the size of a piece; 0 means lines.
    """
    rest = b""
    while data := os.read(source.fileno(), GROUP_BYTES):
        data = rest + data
        if chunk_bytes:
            whole = len(data) - len(data) % chunk_bytes
            group = [data[at : at + chunk_bytes] for at in range(0, whole, chunk_bytes)]
            rest = data[whole:]
        else:
            *group, rest = data.split(b"\n")
        if group:
            yield group
    if rest:
        yield [rest]


async def append_stream(
    metadata: str,
    ledger_id: int,
    path: Path | None,
    *,
    chunk_bytes: int,
    password: bytes,
    close: bool,
) -> dict[str, int]:
    """Claim the ledger, append a file or standard input, and close the ledger.

    Returns:
        the ledger's id, how many entries and bytes were appended, and the last entry's id.

    Raises:
        OSError: the file cannot be read; what was read before is appended, the ledger left open.
        BookieError: as the writer's appends do; the ledger is left open for recovery.
    """
    entries = size = 0
    # Opened first: a ledger must not be claimed for a file that does not exist.
    source = sys.stdin.buffer if path is None else path.open("rb", buffering=0)
    with source:
        total = os.fstat(source.fileno()).st_size if path is not None else None
        async with connect(metadata) as client:
            writer = await client.claim_ledger(ledger_id, password=password)
            with progress_bar("appending", total=total) as advance:
                window = asyncio.Semaphore(GROUPS_IN_FLIGHT_MAX)

                async def append_group(group: list[bytes]) -> None:
                    await writer.append_many(group)
                    advance(sum(map(len, group)))
                    window.release()

                loop = asyncio.get_running_loop()
                groups = entries_in(source, chunk_bytes)
                async with asyncio.TaskGroup() as tasks:
                    while group := await loop.run_in_executor(None, next, groups, None):
                        await window.acquire()
                        entries += len(group)
                        size += sum(map(len, group))
                        # Tasks run in the order of their birth, so entries keep that of the file.
                        tasks.create_task(append_group(group))
            if close:
                await writer.close()
    return {
        "ledger_id": ledger_id,
        "entries": entries,
        "bytes": size,
        "last_entry_id": entries - 1,
    }


async def read_range(
    metadata: str, ledger_id: int, first: int, last: int | None, password: bytes
) -> AsyncIterator[Sequence[Entry]]:
    """The entries ``first … last`` in batches; up to what the ledger has when `last` is None."""
    async with connect(metadata) as client:
        reader = await client.open_ledger(ledger_id, password=password)
        last = reader.last_entry_id if last is None else last
        with progress_bar("reading", total=last - first + 1, unit="entries") as advance:
            if last < first:
                return
            async with aclosing(reader.read_batches(first, last)) as batches:
                async for entries in batches:
                    yield entries
                    advance(len(entries))


async def follow(
    metadata: str, ledger_id: int, start: int | None, password: bytes
) -> AsyncIterator[Sequence[Entry]]:
    """The entries from `start` on as they come; from the next new one when `start` is None."""
    async with connect(metadata) as client:
        reader = await client.open_ledger(ledger_id, password=password)
        begin = reader.last_entry_id + 1 if start is None else start
        async with aclosing(reader.tail(start=begin)) as entries:
            async for entry in entries:
                yield (entry,)


async def recover_ledger(metadata: str, ledger_id: int, password: bytes) -> tuple[int, int]:
    """Fence, recover and close a ledger; its last entry's id and its length in bytes."""
    async with connect(metadata) as client:
        reader = await client.open_ledger(ledger_id, password=password, recover=True)
        return reader.last_entry_id, reader.metadata.length


async def delete_ledger(metadata: str, ledger_id: int) -> None:
    """Delete a ledger."""
    async with connect(metadata) as client:
        await client.delete_ledger(ledger_id)
