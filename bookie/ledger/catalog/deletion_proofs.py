"""Proofs of deletion distinguish a deleted ledger from a ledger that is only absent.

The transaction that deletes a ledger's metadata leaves a short record, ``deleted/<day>/<ledger>``.
A bookie that finds this record may reclaim the ledger's space at once. If an absent ledger has no
such record, the metadata store may have lost the ledger, or may have been restored from an older
copy.

The day in the key comes from the wall clock of the deleting process, and counts from 1970. Below
the key of a day, the keys of ledgers have the same form as below ``ledgers/``, so that ZooKeeper
can list many keys. If proofs are kept for a week, proofs of about eight days exist. So the proof of
a ledger is found by one read for each of these days. A listing of the days shows which proofs are
old.

A sweep removes proofs whose day is too long ago, or is after tomorrow. If a process that deletes or
sweeps has a wrong clock, the only effect is that a proof is removed too early. Without a proof,
bookies treat the ledger as absent, and reclaim its space later.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookie.cluster import keys
from bookie.cluster.layout import LedgerLayout
from bookie.env import gather
from bookie.errors import FormatError, NoSuchKeyError
from bookie.ledger.deletion_proof import DeletionProof, decode_proof, encode_proof
from bookie.metadata.model import NOT_EXISTS, Delete, Put, Record
from bookie.metadata.store import MetadataStore

DAY_MS = 86_400_000
_DELETIONS_AT_ONCE = 100


def proof_of(layout: LedgerLayout, ledger_id: int, proof: DeletionProof) -> Put:
    """Return the operation that stores `proof`; it fails if a proof of the same day exists."""
    day = max(proof.deleted_at_ms // DAY_MS, 0)
    key = layout.under(keys.deletions_of(day)).key(ledger_id)
    return Put(key, encode_proof(proof), NOT_EXISTS)


def keys_of_today(layout: LedgerLayout, ledger_id: int, proof: DeletionProof) -> list[str]:
    """Return a ledger's proof keys for the day of `proof`, for the day before and the day after."""
    day = max(proof.deleted_at_ms // DAY_MS, 1)
    return [
        layout.under(keys.deletions_of(each)).key(ledger_id) for each in range(day - 1, day + 2)
    ]


async def find_days(store: MetadataStore) -> list[int]:
    """List the days that have proofs, newest first; names that are not days are skipped."""
    names = await store.get_children(keys.DELETED)
    return sorted((int(name) for name in names if _is_day(name)), reverse=True)


async def find_proofs(
    store: MetadataStore, layout: LedgerLayout, ledger_ids: Iterable[int]
) -> dict[int, list[Record]]:
    """Find the records that prove deletions, by ledger id; ledgers without a proof are left out.

    All reads run concurrently, so pass few ledgers at a time.
    """
    layouts = [layout.under(keys.deletions_of(day)) for day in await find_days(store)]
    wanted = [(one, each.key(one)) for one in ledger_ids for each in layouts]
    records = await gather([store.get(key) for _, key in wanted])
    found: dict[int, list[Record]] = {}
    for (ledger_id, _), record in zip(wanted, records, strict=True):
        if record is not None and _is_proof(record):
            found.setdefault(ledger_id, []).append(record)
    return found


async def sweep_proofs(
    store: MetadataStore, layout: LedgerLayout, now_ms: int, keep_seconds: float, count_max: int
) -> int:
    """Remove up to `count_max` proofs older than `keep_seconds`; return the number removed.

    Several processes may sweep at the same time. If two processes remove the same proofs, one of
    them stops; the next sweep removes the rest.

    Raises:
        MetadataUnavailableError: the store does not answer.
        FormatError: a key below ``deleted/<day>`` does not name a ledger.
    """
    today = now_ms // DAY_MS
    swept = 0
    for day in await find_days(store):
        # A proof's age counts from the end of its day. A process whose clock is fast may have
        # written a proof with tomorrow's day.
        if day <= today + 1 and (day + 1) * DAY_MS + keep_seconds * 1000 > now_ms:
            continue
        found: list[Record] = []
        async for _, record in layout.under(keys.deletions_of(day)).scan(store, after=-1):
            found.append(record)
            if len(found) == count_max - swept:
                break
        for start in range(0, len(found), _DELETIONS_AT_ONCE):
            some = found[start : start + _DELETIONS_AT_ONCE]
            try:
                await store.transaction([Delete(record.key) for record in some])
            except NoSuchKeyError:
                return swept
            swept += len(some)
        if swept >= count_max:
            break
    return swept


def _is_day(name: str) -> bool:
    return len(name) >= keys.DAY_DIGITS and name.isascii() and name.isdigit()


def _is_proof(record: Record) -> bool:
    try:
        decode_proof(record.value)
    except FormatError:
        return False
    return True
