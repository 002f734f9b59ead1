"""A cluster of real bookies that is stopped, damaged and started again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bookie.api import connect
from bookie.env import gather
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata
from bookie.metadata.connect import open_store

READY = "The cluster is up"
NAMES = ("bookie-1", "bookie-2", "bookie-3", "bookie-4")


@contextmanager
def running(directory: Path, bookies: int = 4) -> Iterator[str]:
    """The bookies of a directory run; yields the metadata's URI. At the end they have stopped."""
    words = [sys.executable, "-m", "bookie", "local"]
    words += ["--data", str(directory), "--bookies", str(bookies)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as supervisor:
        try:
            assert supervisor.stdout is not None
            assert any(READY in line for line in supervisor.stdout)
            yield f"local://{directory}/metadata"
        finally:
            supervisor.send_signal(signal.SIGINT)
            supervisor.communicate()
    assert supervisor.returncode == 0


async def write_ledger(
    uri: str, payloads: list[bytes], *, ensemble: int = 3, copies: int = 3
) -> LedgerMetadata:
    """A closed ledger."""
    async with connect(uri) as bk:
        writer = await bk.create_ledger(
            ensemble_size=ensemble, write_quorum_size=copies, ack_quorum_size=copies
        )
        await writer.append_many(payloads)
        return await writer.close()


async def write_ledgers(uri: str, count: int, entries: int, size: int) -> list[int]:
    """Many small closed ledgers; their ids, which follow each other."""
    async with connect(uri) as bk:

        async def write(number: int) -> int:
            async with room, bk.create_ledger(ack_quorum_size=3) as writer:
                await writer.append_many([b"%d" % number * size] * entries)
            return writer.ledger_id

        room = asyncio.Semaphore(16)
        return sorted(await gather(map(write, range(count))))


async def change_metadata(uri: str, changed: LedgerMetadata) -> None:
    """Store other metadata of a ledger, as a broken tool might."""
    async with open_store(uri) as store:
        ledgers = LedgerManager(store)
        await ledgers.write(changed, (await ledgers.read(changed.ledger_id)).version)


def with_bookies(metadata: LedgerMetadata, *bookies: str) -> LedgerMetadata:
    """The same ledger, all of whose entries these bookies should have."""
    size = len(bookies)
    return replace(
        metadata, ensemble_size=size, write_quorum_size=size, fragments=(Fragment(0, bookies),)
    )


def flip_bit(directory: Path, bookie_id: str, payload: bytes) -> None:
    """Flip a bit of a stored payload, in every file of a stopped bookie that has it."""
    flipped = 0
    for path in sorted((directory / bookie_id).rglob("*")):
        if path.is_file() and (data := path.read_bytes()).count(payload):
            at = data.index(payload)
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 1]))
            flipped += 1
    assert flipped, f"{bookie_id} does not store the payload"
