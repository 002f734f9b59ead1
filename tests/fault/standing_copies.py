"""The checker of repair: it asks each bookie by itself which entries of a ledger stand there.

Each entry must stand on every live member of its write set that the metadata names: intact by its
digest, the one that was written, and the same bytes on all of them. Nothing acknowledged may lie
behind the end of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from bookie.api import BookKeeper
from bookie.entry.digest import digester_for_key
from bookie.ids import Status
from bookie.ledger.copies.replica_plan import quorum_of, settled_fragments
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Stripe
from bookie.ledger.read.verification import read_command, verify_read

ENTRIES_PER_READ, BYTES_PER_READ = 1000, 1 << 20
READ_SECONDS = 30.0

PayloadOf = Callable[[int, int], bytes]
"""The payload that was written as an entry: ledger id, entry id."""


@dataclass(slots=True)
class _Held:
    """What one member answers about the entries that it should store."""

    packets: dict[int, bytes] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)
    lacks: dict[int, str] = field(default_factory=dict)
    """Entry → why it does not stand there."""


async def _held(
    client: BookKeeper,
    bookie_id: str,
    metadata: LedgerMetadata,
    stripe: Stripe,
    first: int,
    last: int,
) -> _Held:
    digester = digester_for_key(metadata.digest_type, metadata.password_key)
    pool, held = client._connected.pool, _Held()
    at = stripe.next_id(first)
    while at <= last:
        command = read_command(
            metadata, at, last, stripe, max_entries=ENTRIES_PER_READ, max_bytes=BYTES_PER_READ
        )
        reply = await pool.connection(bookie_id).channel().read(command, timeout=READ_SECONDS)
        told = verify_read(reply, digester)
        if told.batch is not None:
            ids = told.batch.entry_ids().tolist()
            held.packets.update(zip(ids, map(bytes, told.batch.packets()), strict=True))
            held.payloads.update((one.entry_id, bytes(one.payload)) for one in told.entries)
            at = stripe.next_id(ids[-1] + 1)
        if at <= last and (told.batch is None or told.stopped_by is Status.BAD_CHECKSUM):
            status = told.stopped_by if told.status is Status.OK else told.status
            held.lacks[at] = status.name.lower().replace("_", " ")
            at = stripe.next_id(at + 1)
    return held


async def find_problems(
    client: BookKeeper,
    metadata: LedgerMetadata,
    live: Collection[str],
    acknowledged: int = -1,
    payload_of: PayloadOf | None = None,
) -> list[str]:
    """What is wrong with the copies of a ledger, in sentences; empty if nothing is.

    Args:
        client: whose connections are used. Whoever does not answer makes this raise BookieError.
        metadata: of the ledger.
        live: the bookies that run and are there to stay.
        acknowledged: the last entry that its writer saw acknowledged.
        payload_of: what was written; None if nobody knows.
    """
    name = f"ledger {metadata.ledger_id}"
    if not metadata.is_closed:
        return [f"{name} is not closed"]
    problems: list[str] = []
    if acknowledged > metadata.last_entry_id:
        problems.append(
            f"{name} ends at entry {metadata.last_entry_id}; entry {acknowledged}, which was"
            " acknowledged, is lost"
        )
    quorum = quorum_of(metadata)
    standing: dict[int, dict[str, bytes]] = {}
    for fragment, last in settled_fragments(metadata):
        for slot, bookie_id in enumerate(fragment.bookies):
            stripe = quorum.stripe_of(slot)
            first = stripe.next_id(fragment.first_entry_id)
            if first > last:
                continue
            if bookie_id not in live:
                problems.append(f"{name} names bookie {bookie_id!r}, which does not live")
                continue
            held = await _held(client, bookie_id, metadata, stripe, first, last)
            at = first
            while at <= last:
                if at not in held.packets:
                    why = held.lacks.get(at, "left out")
                    problems.append(f"{name}: no copy of entry {at} on {bookie_id}: {why}")
                else:
                    standing.setdefault(at, {})[bookie_id] = held.packets[at]
                    if payload_of and held.payloads[at] != payload_of(metadata.ledger_id, at):
                        problems.append(f"{name}: a foreign copy of entry {at} on {bookie_id}")
                at = stripe.next_id(at + 1)
    return problems + _compared(name, metadata, standing)


def _compared(
    name: str, metadata: LedgerMetadata, standing: Mapping[int, Mapping[str, bytes]]
) -> list[str]:
    problems = []
    for entry_id in range(metadata.last_entry_id + 1):
        copies = standing.get(entry_id, {})
        if not copies:
            problems.append(f"{name}: entry {entry_id} is lost: it stands on no member")
        elif len(copies) < metadata.write_quorum_size:
            problems.append(f"{name}: entry {entry_id} stands on {sorted(copies)} only")
        if len(set(copies.values())) > 1:
            problems.append(f"{name}: the copies of entry {entry_id} differ: {sorted(copies)}")
    return problems
