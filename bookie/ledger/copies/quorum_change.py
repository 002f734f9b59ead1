"""Gives a closed ledger another write quorum; `quorum_plan` computes the new layout.

A change makes these steps while it holds the ledger's repair lock:

1. Placement chooses newcomers, if the ensembles have to grow. The incarnation of each bookie is
   read from the metadata store.
2. Each bookie gets verified copies of the entries that only the new layout assigns to its slot.
   Each add names the bookie's incarnation from step 1, so the bookie refuses the add if it has
   another incarnation now. An accepted entry is durable.
3. Each bookie lists all entries of its slot. If the quorum shrinks, the change reads and verifies
   all entries instead of the listing, because fewer copies remain. Missing and damaged entries are
   copied again.
4. One transaction writes the new layout by compare-and-set. The transaction fails if the lock was
   lost. It also fails if a bookie that got entries, or whose entries were read and verified, has
   another cookie now.

Before step 4, readers see no change, so a change that stops at any step does no harm. The next
attempt begins with step 1. The change deletes no former copies, so readers with the former metadata
find all entries.

Source: BookKeeper's issue 4664.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from bookie.cluster import keys
from bookie.env import gather
from bookie.env.pace import Pace
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    BookieError,
    MetadataError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from bookie.ids import vacancy
from bookie.ledger.copies.copy_check import CopyCheck
from bookie.ledger.copies.departures import Departures
from bookie.ledger.copies.entry_copier import EntryCopier
from bookie.ledger.copies.marks import RepairLock, UnderreplicationManager
from bookie.ledger.copies.quorum_plan import (
    SlotDuty,
    check_write_quorum,
    classes_of,
    slot_duties,
    with_write_quorum,
)
from bookie.ledger.copies.replica_plan import (
    EntryRange,
    count_of,
    difference,
    merged,
    runs_by_residue,
    windows,
)
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.read.verification import list_stored
from bookie.metadata.model import TRANSACTION_OPERATIONS_MAX, Check
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

SWAPS_MAX = 10
"""The number of attempts to write the new layout. An attempt fails only if the ledger or a cookie
changed."""

BOOKIES_MAX = TRANSACTION_OPERATIONS_MAX - 2
"""The largest number of cookies that a transaction can check, besides one write of metadata and one
check of the lock."""

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class QuorumChanged:
    """The result of a change of the write quorum."""

    before: LedgerMetadata
    after: LedgerMetadata
    entries: int = 0
    """The number of copied entries; `packet_bytes` is the size of their packets."""
    packet_bytes: int = 0


@dataclass(slots=True)
class _GivenEntries:
    """The bookies whose copies a change needs, and how many entries and bytes the change copied."""

    incarnations: dict[str, str] = field(default_factory=dict)
    relied_on: set[str] = field(default_factory=set)
    entries: int = 0
    packet_bytes: int = 0


class QuorumChange:
    """Changes write quorums of closed ledgers, with the connections of one client."""

    def __init__(
        self, client: LedgerClient, store: MetadataStore, worker: str, pace: Pace | None = None
    ) -> None:
        self._client = client
        self._store = store
        self._marks = UnderreplicationManager(store, worker)
        self._pace = pace

    async def run(self, ledger_id: int, write_quorum_size: int) -> QuorumChanged:
        """Give a ledger another write quorum; return after the metadata was written.

        Raises:
            NoSuchLedgerError: the ledger does not exist, or was deleted during the change.
            BadRequestError: the ledger cannot have this write quorum, repair is disabled, another
                worker repairs the ledger, an entry has no good copy, or another client changed the
                ledger. The write quorum has not changed.
            NotEnoughBookiesError: too few bookies are writable, or placement allows too few bookies
                in one ensemble.
            BookieError: a bookie did not accept entries. The write quorum has not changed.
            MetadataError: the metadata store failed; it is unknown if the new layout was written.
        """
        metadata = (await self._client.ledgers.read_latest(ledger_id)).value
        self._check(metadata, write_quorum_size)
        if not await self._marks.is_enabled():
            raise BadRequestError("repair is disabled in this cluster; enable it first")
        if not await self._marks.acquire(ledger_id, needs_mark=False):
            raise BadRequestError(f"another worker repairs ledger {ledger_id} right now")
        try:
            return await self._run_locked(ledger_id, write_quorum_size)
        finally:
            await self._marks.release(ledger_id)

    async def _run_locked(self, ledger_id: int, write_quorum_size: int) -> QuorumChanged:
        lock = self._marks.lock_of(ledger_id)
        # Read the metadata again, because another repair may have changed it just before the lock
        # was taken.
        old = (await self._client.ledgers.read_latest(ledger_id)).value
        self._check(old, write_quorum_size)
        if old.write_quorum_size == write_quorum_size:
            return QuorumChanged(old, old)
        new = with_write_quorum(
            old, write_quorum_size, await self._newcomers(old, write_quorum_size)
        )
        progress = _GivenEntries(await self._incarnations(new))
        for duty in slot_duties(old, new):
            await self._fill(old, new, duty, progress)
        after = await self._swap(old, new, progress, lock)
        return QuorumChanged(old, after, progress.entries, progress.packet_bytes)

    def _check(self, metadata: LedgerMetadata, write_quorum_size: int) -> None:
        check_write_quorum(metadata, write_quorum_size)
        writable = len(self._client.directory.bookies())
        if metadata.write_quorum_size < write_quorum_size > writable:
            raise NotEnoughBookiesError(
                f"a write quorum of {write_quorum_size} needs as many writable bookies, and "
                f"{writable} are writable"
            )

    async def _newcomers(
        self, metadata: LedgerMetadata, write_quorum_size: int
    ) -> dict[int, tuple[str, ...]]:
        """Choose bookies for the slots by which each ensemble grows."""
        slots = range(metadata.ensemble_size, write_quorum_size)
        if not slots:
            return {}
        gone: set[str] = set()
        for kind in (keys.LOST_BOOKIES, keys.LEAVING_BOOKIES):
            gone |= await Departures(self._store, kind).names()
        chosen = {}
        for fragment in metadata.fragments:
            found = self._client.ensembles.newcomers(
                (*fragment.bookies, *map(vacancy, slots)), slots, write_quorum_size, excluded=gone
            )
            if len(found) < len(slots):
                raise NotEnoughBookiesError(
                    f"the ensemble of the fragment from entry {fragment.first_entry_id} on needs "
                    f"{len(slots)} more bookies, and placement finds {len(found)}"
                )
            chosen[fragment.first_entry_id] = tuple(found[slot] for slot in slots)
        return chosen

    async def _incarnations(self, metadata: LedgerMetadata) -> dict[str, str]:
        """Read the incarnations of all bookies that the metadata names."""
        names = sorted({name for one in metadata.fragments for name in one.bookies})
        if len(names) > BOOKIES_MAX:
            raise BadRequestError(
                f"ledger {metadata.ledger_id} has copies on {len(names)} bookies; a change of its "
                f"write quorum can be about {BOOKIES_MAX} at most"
            )
        cookies = self._client.ensembles.cookies
        found = await gather(cookies.read_latest(name) for name in names)
        for name, cookie in zip(names, found, strict=True):
            if cookie is None:
                raise BadRequestError(
                    f"bookie {name} has left the cluster: repair the ledger first"
                )
            if not cookie.value.incarnation:
                raise BadRequestError(
                    f"bookie {name} has not started since its cookie was restored"
                )
        return {
            name: cookie.value.incarnation
            for name, cookie in zip(names, found, strict=True)
            if cookie is not None
        }

    async def _fill(
        self, old: LedgerMetadata, new: LedgerMetadata, duty: SlotDuty, progress: _GivenEntries
    ) -> None:
        """Copy to a slot's bookie the entries that it lacks for the new layout.

        Entries that only the new layout assigns to the slot are always copied. Other entries are
        copied only if they are missing or, if the quorum shrinks, damaged.
        """
        shrinks = new.write_quorum_size < old.write_quorum_size
        target = duty.bookie_id
        copier = EntryCopier(
            self._client,
            old,
            target,
            pace=self._pace,
            incarnation=progress.incarnations[target],
            needs_room=True,
        )
        try:
            for begin, end in windows(duty.first_entry_id, duty.last_entry_id):
                owed = duty.owed(begin, end)
                if not owed:
                    continue
                # A bookie may list an entry before the entry is durable, so all `added` are copied.
                lacking = await self._lacking(old, duty, owed, copier, shrinks=shrinks)
                wanted = merged([*duty.added(begin, end), *lacking])
                for run, first, until in runs_by_residue(classes_of(old), wanted):
                    if reason := await copier.copy(first, until, run):
                        raise BadRequestError(f"ledger {old.ledger_id}: {reason}")
                if wanted:
                    lacking = await self._lacking(old, duty, owed, copier, shrinks=shrinks)
                if lacking:
                    raise BadRequestError(
                        f"bookie {target} lacks {count_of(lacking)} entries that it took"
                    )
                if wanted or shrinks:
                    progress.relied_on.add(target)
        except (NoSuchLedgerError, MetadataError, BadRequestError):
            raise
        except BookieError as error:
            raise type(error)(f"bookie {target}: {error}") from error
        progress.entries += copier.entries
        progress.packet_bytes += copier.packet_bytes

    async def _lacking(
        self,
        metadata: LedgerMetadata,
        duty: SlotDuty,
        owed: Collection[EntryRange],
        copier: EntryCopier,
        *,
        shrinks: bool,
    ) -> list[EntryRange]:
        """Return the entries of `owed` that are missing or, if the quorum shrinks, damaged."""
        ranges = merged(owed)
        first, last = ranges[0][0], ranges[-1][1]
        pool, incarnation = self._client.pool, await copier.incarnation()
        if not shrinks:
            stored = await list_stored(
                pool, duty.bookie_id, metadata, first, last, incarnation=incarnation
            )
            return difference(ranges, stored)
        check = CopyCheck(metadata, duty.bookie_id, duty.new, pool, incarnation=incarnation)
        found = await check.run(first, last)
        if found.unread:
            raise BadRequestError(f"bookie {duty.bookie_id} does not answer: {found.reason}")
        return merged([*found.missing, *found.corrupt])

    async def _swap(
        self,
        old: LedgerMetadata,
        new: LedgerMetadata,
        progress: _GivenEntries,
        lock: RepairLock,
    ) -> LedgerMetadata:
        """Write the new layout if the old layout, the cookies and the lock are unchanged."""
        ledgers = self._client.ledgers
        for _ in range(SWAPS_MAX):
            conditions = [lock.condition, *await self._conditions(progress)]
            found = await ledgers.read(old.ledger_id, old.c_token)
            if replace(found.value, custom_metadata=old.custom_metadata) != old:
                raise BadRequestError(
                    f"ledger {old.ledger_id} changed during the change of its write quorum; type "
                    "the command again"
                )
            changed = replace(new, custom_metadata=found.value.custom_metadata)
            try:
                await ledgers.write(changed, found.version, conditions)
            except BadVersionError:
                if not await lock.is_held():
                    raise BadRequestError(
                        f"the lock of ledger {old.ledger_id} was lost meanwhile; type the command "
                        "again"
                    ) from None
                continue
            _log.info(
                "write_quorum_changed",
                ledger_id=old.ledger_id,
                former=old.write_quorum_size,
                write_quorum=new.write_quorum_size,
                ensemble=new.ensemble_size,
            )
            return changed
        raise BadRequestError(
            f"ledger {old.ledger_id} or its bookies changed {SWAPS_MAX} times meanwhile; type the "
            "command again"
        )

    async def _conditions(self, progress: _GivenEntries) -> list[Check]:
        """Return conditions that fail if the cookie of a bookie of `relied_on` has changed."""
        cookies = self._client.ensembles.cookies
        names = sorted(progress.relied_on)
        found = await gather(cookies.read_latest(name) for name in names)
        conditions = []
        for name, cookie in zip(names, found, strict=True):
            if cookie is None or cookie.value.incarnation != progress.incarnations[name]:
                raise BadRequestError(f"bookie {name} may have lost what it took")
            conditions.append(cookies.unchanged(name, cookie.version))
        return conditions
