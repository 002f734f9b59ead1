"""What the bookies of a simulated cluster store of a ledger, as the checker's last word."""

from __future__ import annotations

import asyncio

from bookie.entry.digest import digester_for_key
from bookie.ids import Status
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.read.verification import verify_read
from bookie.testing.simulation.simulated_cluster import SimulatedBookie
from bookie.wire.commands import ReadCommand
from tests.ledger_history.ledger_events import PayloadDigest, digest_of


async def stored_copies(
    bookie: SimulatedBookie, metadata: LedgerMetadata
) -> dict[int, PayloadDigest]:
    """The entries of a closed ledger that the bookie stores, their digests verified."""
    assert bookie.process is not None
    found: dict[int, PayloadDigest] = {}
    reading = _read_copies(bookie, metadata, found)
    await bookie.cluster.run_in_process(bookie.process, reading, f"copies on {bookie.host}")
    return found


async def _read_copies(
    bookie: SimulatedBookie, metadata: LedgerMetadata, found: dict[int, PayloadDigest]
) -> None:
    digester = digester_for_key(metadata.digest_type, metadata.password_key)
    following, last = 0, metadata.last_entry_id
    while following <= last:
        told = None
        if bookie.node is not None:
            command = ReadCommand(
                metadata.ledger_id, following, last, 1000, 1 << 20, master_key=metadata.password_key
            )
            told = verify_read(await bookie.node.read(command), digester)
        if told is None or told.status is Status.SHUTTING_DOWN:
            await asyncio.sleep(0.5)
            continue
        for entry in told.entries:
            found[entry.entry_id] = digest_of(entry.payload)
        end = told.next_entry_id if told.status is Status.OK else following
        following = end + (told.stopped_by is not Status.OK or told.status is not Status.OK)
