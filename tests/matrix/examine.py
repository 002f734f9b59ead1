"""Starting a bookie on damaged directories and holding what it says against what was promised.

Three things are wrong after every damage. They are bytes that were never stored, a plain add into a
ledger that had been fenced or deleted, and a foreign exception. An acknowledged entry may be
unavailable. It is then *lost loudly* (an error, or "unknown") or *denied* ("no such entry"). The
table of the damage says which of the two is allowed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bookie.entry.entry import lac_packet_ids, unpack_packet
from bookie.errors import BookieError
from bookie.ids import Status
from bookie.metadata.store import MetadataStore
from bookie.node.bookie import Bookie
from bookie.node.engine.engine import Engine
from bookie.node.start import StartedBookie
from tests.matrix.specimen import SPARSE, Truth, started
from tests.unit.node.engine.machine import DIGESTER, Machine, batch
from tests.unit.node.node_room import add_command, read_command

ZOMBIE_ID = 2**40
"""An id that a writer might use who has not heard of the fence."""


@dataclass
class Finding:
    """What one start came to."""

    refused: str = ""
    """The sentence, if the bookie did not come up."""
    rebuilt: bool = False
    integrity: bool = False
    corrupt: list[str] = field(default_factory=list)
    errors: int = 0
    """Acknowledged entries that answer with an error."""
    unknown: int = 0
    """Acknowledged entries that answer "unknown" because their ledger is in limbo."""
    denied: list[str] = field(default_factory=list)
    """Acknowledged entries that answer "no such entry", and other promises that were forgotten."""
    undeleted: int = 0
    """Ledgers that forgot that they were deleted, and that the metadata does not know any more."""
    caught_by_digest: int = 0
    """Entries whose bytes are damaged, which the client's digest tells."""
    old_bytes: int = 0
    """Entries of which an earlier version came back: acknowledged bytes, too."""
    wrong: list[str] = field(default_factory=list)
    """What no damage excuses."""


def flattened(error: BaseException) -> list[BaseException]:
    """The errors in a group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in flattened(inner)]
    return [error]


async def examine(machine: Machine, store: MetadataStore, truth: Truth) -> Finding:
    """Start, look at everything, stop in order."""
    finding = Finding()
    try:
        async with started(machine, store) as one:
            report = one.engine.report
            finding.rebuilt = report.rebuilt
            finding.corrupt = list(report.corrupt)
            finding.integrity = one.engine.needs_integrity_check
            await _look(one, truth, finding)
    except* BookieError as group:
        leaves = flattened(group)
        finding.refused = str(leaves[0])
        if "\n" in finding.refused or not finding.refused:
            finding.wrong.append(f"this is not a sentence: {finding.refused!r}")
    return finding


async def _look(one: StartedBookie, truth: Truth, finding: Finding) -> None:
    """Look at all ledgers at once: entries first, then what else was promised."""
    bookie = one.bookie
    async with asyncio.TaskGroup() as tasks:
        for ledger_id, expected in truth.entries.items():
            if ledger_id not in truth.deleted:
                tasks.create_task(_look_at_entries(bookie, ledger_id, expected, finding))
    async with asyncio.TaskGroup() as tasks:
        for ledger_id in sorted(truth.fenced | truth.deleted):
            tasks.create_task(_look_at_fence(bookie, ledger_id, truth, finding))
    for ledger_id in sorted(truth.limbo):
        await _look_at_limbo(one.engine, ledger_id, finding)
    for ledger_id, lac in truth.lacs.items():
        await _look_at_lac(one, ledger_id, lac, finding)


async def _look_at_entries(
    bookie: Bookie, ledger_id: int, expected: dict[int, list[bytes]], finding: Finding
) -> None:
    ids = sorted(expected)
    position, most = 0, len(ids)
    while position < len(ids):
        wanted = ids[position]
        # After an entry that was not served only the next one is asked for, then twice as many.
        limit = min(position + most, len(ids))
        stop = position + 1
        stripe: dict[str, object] = {}
        if ledger_id == SPARSE:
            # All at once: one entry to a page.
            stop = limit
            stripe = {"stripe_modulus": 64, "stripe_first_residue": 0, "stripe_count": 1}
        while stop < limit and ids[stop] == ids[stop - 1] + 1:
            stop += 1
        reply = await bookie.read(read_command(ledger_id, wanted, ids[stop - 1], **stripe))
        if reply.batch is not None:
            found = reply.batch.entry_ids().tolist()
            if found != ids[position : position + len(found)]:
                finding.wrong.append(f"ledger {ledger_id}: asked for {wanted}, got {found}")
                return
            for entry_id, packet in zip(found, reply.batch.packets(), strict=True):
                _compare(ledger_id, entry_id, bytes(packet), expected[entry_id], finding)
            position += len(found)
            if reply.stopped_by is Status.OK:
                most *= 2
                continue
            _count(ledger_id, ids[position], reply.stopped_by, finding)
        else:
            _count(ledger_id, ids[position], reply.status, finding)
        position, most = position + 1, 1


def _compare(
    ledger_id: int, entry_id: int, packet: bytes, versions: list[bytes], finding: Finding
) -> None:
    if packet == versions[-1]:
        return
    if packet in versions:
        finding.old_bytes += 1
        return
    try:
        unpack_packet(ledger_id, entry_id, packet, DIGESTER)
    except BookieError:
        finding.caught_by_digest += 1
    else:
        finding.wrong.append(f"entry {entry_id} of ledger {ledger_id} has bytes of nobody")


def _count(ledger_id: int, entry_id: int, status: Status, finding: Finding) -> None:
    match status:
        case Status.IO_ERROR | Status.BAD_CHECKSUM:
            finding.errors += 1
        case Status.UNKNOWN_LEDGER_STATE:
            finding.unknown += 1
        case _:
            finding.denied.append(f"entry {entry_id} of ledger {ledger_id}: {status.name}")


async def _look_at_fence(bookie: Bookie, ledger_id: int, truth: Truth, finding: Finding) -> None:
    # A writer of before the loss names an earlier incarnation, and is refused by that alone. One
    # that names none must be refused as well.
    reply = await bookie.add_unnamed(add_command(batch(ledger_id, [ZOMBIE_ID])))
    if reply.status is Status.OK and ledger_id in truth.deleted:
        finding.undeleted += 1
    elif reply.status is Status.OK:
        finding.denied.append(f"ledger {ledger_id} forgot that it was fenced")


async def _look_at_limbo(engine: Engine, ledger_id: int, finding: Finding) -> None:
    try:
        state = await engine.load(ledger_id)
    except BookieError:
        return
    if not state.limbo:
        finding.denied.append(f"ledger {ledger_id} forgot that it was in limbo")


async def _look_at_lac(one: StartedBookie, ledger_id: int, lac: int, finding: Finding) -> None:
    reply = await one.bookie.read_lac(ledger_id, b"")
    if reply.status is Status.OK and (
        not reply.lac_packet or lac_packet_ids(reply.lac_packet).last_add_confirmed < lac
    ):
        finding.denied.append(f"ledger {ledger_id} forgot its explicit LAC")
