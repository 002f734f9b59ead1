"""Replaces bookies in those fragments of one ledger whose entries no longer change.

For each fragment that names a bookie of `gone`, or has a vacant slot:

1. Placement chooses a newcomer for the slot. The newcomer's incarnation is read from the metadata
   store.
2. `EntryCopier` verifies and copies the slot's entries. Each add names the newcomer's incarnation,
   so the newcomer refuses the add if it has another incarnation now. An accepted entry is durable.
3. The newcomer is asked to list its entries of the slot. If an entry is missing, the move fails.
4. One transaction puts the newcomer into the metadata by compare-and-set, with two checks. The
   newcomer's cookie must not have changed, because a newcomer that lost its data has another
   incarnation. The ledger's lock must still be the lock of step 3, because a bookie reclaims copies
   only under this lock.

If a newcomer loses its data *after* step 4, it lists the ledgers that name it, and finds this
ledger among them. Before step 4, readers and recoveries use the old bookies. So a move that stops
at any step does no harm. The last fragment of an open ledger belongs to its writer, and no move
changes it.

Source: BookKeeper's LedgerFragmentReplicator, which does not check versions or incarnations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bookie.env.pace import Pace
from bookie.errors import (
    BadVersionError,
    BookieError,
    FormatError,
    MetadataError,
    NoSuchLedgerError,
)
from bookie.ids import is_vacant
from bookie.ledger.copies.entry_copier import EntryCopier
from bookie.ledger.copies.marks import RepairLock
from bookie.ledger.copies.replica_plan import (
    EntryRange,
    count_of,
    difference,
    quorum_of,
    runs_by_residue,
    settled_fragments,
    stripe_ranges,
    windows,
    with_newcomers,
)
from bookie.ledger.copies.replica_repair import RepairOutcome
from bookie.ledger.ledger_client import LedgerClient
from bookie.ledger.metadata import Fragment, LedgerMetadata
from bookie.ledger.read.verification import list_stored
from bookie.telemetry import event_log

BEGUN_MAX = 1000
"""The largest number of unfinished moves that a process remembers, to continue the moves later."""

SWAPS_MAX = 10
"""The number of attempts to write the metadata. An attempt fails only if the ledger, a cookie or
the lock changed."""

OPEN = "open"
LEFT_OPEN = "its writer, or a recovery, replaces the bookies of its last fragment"
"""`OPEN` and `LEFT_OPEN`: the outcome and its detail if only the writer's fragment still names a
bookie that must be replaced."""

_log = event_log(__name__)


class _MoveError(Exception):
    """Raised to end a fragment's move; arguments: outcome, detail, bookies that refused."""


class _NewcomerError(Exception):
    """Raised if a newcomer lacks entries that it has acknowledged."""


@dataclass(slots=True)
class _BegunMove:
    """An unfinished move of one fragment; the next attempt of this process continues it."""

    newcomers: dict[int, str]
    """Maps each slot to its newcomer."""
    incarnations: dict[str, str] = field(default_factory=dict)
    following: dict[int, int] = field(default_factory=dict)
    """Maps a slot to the first entry that is not copied yet; the newcomer has stored all entries
    before it."""


@dataclass(frozen=True, slots=True)
class _MovedFragment:
    """The result of a move of one fragment."""

    is_swapped: bool = False
    """True if this move put the newcomers into the metadata."""
    entries: int = 0
    """The number of copied entries; `packet_bytes` is the size of their packets."""
    packet_bytes: int = 0


class ReplicaMove:
    """Moves copies of one ledger at a time with the connections of one client."""

    def __init__(self, client: LedgerClient, pace: Pace | None = None) -> None:
        self._client = client
        self._pace = pace
        self._begun: dict[tuple[int, int, int, Fragment], _BegunMove] = {}

    async def run(
        self, ledger_id: int, gone: Collection[str], lock: RepairLock | None
    ) -> RepairOutcome:
        """Replace the bookies `gone`, and fill vacant slots, in all fragments that are settled.

        One outcome covers all fragments: ``repaired``, ``was-fine``, ``no-spare`` (no bookie may
        replace a bookie of `gone`), ``no-good-copy``, ``refused`` (a newcomer did not accept the
        entries), ``open`` (only the writer's fragment still names a bookie of `gone`), ``deleted``,
        ``locked`` (the lock was lost).

        Args:
            ledger_id: the ledger.
            gone: the bookies to replace.
            lock: the ledger's lock. `lock` may be None only if no bookie reclaims copies, as in a
                simulation.

        Raises:
            MetadataError: the metadata store failed; it is unknown if the metadata was written.
        """
        names = ",".join(sorted(gone))
        done = RepairOutcome(ledger_id, names, "was-fine")
        excluded: set[str] = set()
        while True:
            try:
                metadata = (await self._client.ledgers.read_latest(ledger_id)).value
                found = _first_with(metadata, gone)
                if found is None:
                    break
                copied = await self._move(metadata, *found, gone, excluded, lock)
            except NoSuchLedgerError:
                return RepairOutcome(ledger_id, names, "deleted", done.entries, done.packet_bytes)
            except _MoveError as error:
                outcome, detail, *refused = error.args
                for newcomer in refused:
                    # The next attempt begins with another bookie.
                    self._client.ensembles.quarantine.put(newcomer)
                return RepairOutcome(
                    ledger_id, names, outcome, done.entries, done.packet_bytes, detail
                )
            done = RepairOutcome(
                ledger_id,
                names,
                "repaired" if copied.is_swapped else done.outcome,
                done.entries + copied.entries,
                done.packet_bytes + copied.packet_bytes,
            )
        if not metadata.is_closed and _is_named(metadata.last_fragment, gone):
            return RepairOutcome(
                ledger_id,
                names,
                OPEN,
                done.entries,
                done.packet_bytes,
                LEFT_OPEN,
            )
        return done

    async def exchange(
        self,
        ledger_id: int,
        first_entry_id: int,
        former: str,
        newcomer: str,
        lock: RepairLock | None,
    ) -> RepairOutcome:
        """Replace `former` by `newcomer` in one fragment whose entries no longer change.

        `exchange` returns the same outcomes, and raises the same errors, as `run`. The outcome is
        ``was-fine`` if the fragment no longer names `former`, for example because another worker
        moved the copy. The outcome is ``no-spare`` if placement forbids `newcomer`, or if
        `newcomer` has no readable cookie.
        """

        def outcome(kind: str, detail: str = "") -> RepairOutcome:
            return RepairOutcome(ledger_id, former, kind, detail=detail)

        excluded = set(self._client.directory.bookies()) - {newcomer}
        try:
            metadata = (await self._client.ledgers.read_latest(ledger_id)).value
            for fragment, last in settled_fragments(metadata):
                if any(map(is_vacant, fragment.bookies)):
                    continue  # repair fills a vacant slot first
                if fragment.first_entry_id == first_entry_id and former in fragment.bookies:
                    copied = await self._move(metadata, fragment, last, {former}, excluded, lock)
                    if newcomer in excluded:
                        return outcome("no-spare", f"{newcomer} has no cookie that can be read")
                    kind = "repaired" if copied.is_swapped else "was-fine"
                    return RepairOutcome(
                        ledger_id, former, kind, copied.entries, copied.packet_bytes
                    )
        except NoSuchLedgerError:
            return outcome("deleted")
        except _MoveError as error:
            kind, detail, *_ = error.args
            return outcome(kind, detail)
        return outcome("was-fine")

    async def _move(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        last: int,
        gone: Collection[str],
        excluded: set[str],
        lock: RepairLock | None,
    ) -> _MovedFragment:
        """Move one fragment, unless another worker moves the fragment first.

        If a newcomer has no readable cookie, add the newcomer to `excluded`, and move nothing.
        """
        ensembles = self._client.ensembles
        # The key contains the write quorum, because with another write quorum the same slot stores
        # other entries.
        key = metadata.ledger_id, metadata.c_token, metadata.write_quorum_size, fragment
        slots = [slot for slot, name in enumerate(fragment.bookies) if _is_gone(name, gone)]
        begun = self._begun.get(key)
        if begun is None or not self._may_go_on(begun, slots, excluded):
            begun = _BegunMove(self._choose(metadata, fragment, slots, {*gone, *excluded}))
        incarnations: dict[str, str] = {}
        for bookie_id in begun.newcomers.values():
            found = None
            with suppress(FormatError):  # a damaged cookie has no incarnation
                found = await ensembles.cookies.read_latest(bookie_id)
            if found is None:
                excluded.add(bookie_id)
                return _MovedFragment()
            incarnations[bookie_id] = found.value.incarnation
        if not incarnations.items() <= begun.incarnations.items():
            begun.incarnations, begun.following = incarnations, {}
        self._begun.pop(key, None)
        self._begun[key] = begun  # at the end, as the newest move
        while len(self._begun) > BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        newcomers = begun.newcomers
        entries = packet_bytes = 0
        for slot, bookie_id in newcomers.items():
            copier = EntryCopier(
                self._client,
                metadata,
                bookie_id,
                pace=self._pace,
                incarnation=incarnations[bookie_id],
                needs_room=True,
            )
            before = begun.following.get(slot)
            try:
                await self._fill(metadata, fragment, last, slot, copier, begun.following)
            except (NoSuchLedgerError, MetadataError):
                raise
            except (BookieError, _NewcomerError) as error:
                refused = []
                if begun.following.get(slot) == before:
                    del newcomers[slot]
                    refused.append(bookie_id)
                raise _MoveError("refused", f"{bookie_id}: {error}", *refused) from error
            entries += copier.entries
            packet_bytes += copier.packet_bytes
        is_swapped = await self._swap(metadata, fragment, last, newcomers, incarnations, lock)
        self._begun.pop(key, None)
        return _MovedFragment(is_swapped, entries, packet_bytes)

    def _may_go_on(
        self, begun: _BegunMove, slots: Collection[int], excluded: Collection[str]
    ) -> bool:
        """Keep only newcomers for `slots`; return False if the move needs other newcomers."""
        begun.newcomers = {slot: name for slot, name in begun.newcomers.items() if slot in slots}
        writable = self._client.directory.bookies()
        return bool(begun.newcomers) and all(
            name in writable and name not in excluded for name in begun.newcomers.values()
        )

    def _choose(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        slots: Sequence[int],
        excluded: Collection[str],
    ) -> dict[int, str]:
        """Choose newcomers by slot; a slot for which placement finds no bookie is omitted."""
        newcomers = self._client.ensembles.newcomers(
            fragment.bookies, slots, metadata.write_quorum_size, excluded=excluded
        )
        if not newcomers:
            raise _MoveError(
                "no-spare",
                f"no writable bookie may take the place of {fragment.bookies[slots[0]]} in the "
                f"fragment from entry {fragment.first_entry_id} on",
            )
        return newcomers

    async def _fill(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        last: int,
        slot: int,
        copier: EntryCopier,
        following: dict[int, int],
    ) -> None:
        """Copy all entries of a slot, and check that the newcomer lists them.

        Entries that the newcomer already lists are copied, too, because they may be damaged or not
        durable yet. An earlier attempt of this process copied the entries below `following[slot]`.
        These entries are copied again only if the newcomer no longer lists them: it may have
        reclaimed them while this process did not hold the lock.
        """
        stripe = quorum_of(metadata).stripe_of(slot)
        done = following.get(slot, fragment.first_entry_id)
        for begin, end in windows(fragment.first_entry_id, last):
            owed = stripe_ranges(stripe, begin, end)
            if not owed or (end < done and not await self._lacking(metadata, copier, owed)):
                continue
            for run, first, until in runs_by_residue(stripe, owed):
                if reason := await copier.copy(first, until, run):
                    raise _MoveError("no-good-copy", reason)
            if lacking := await self._lacking(metadata, copier, owed):
                raise _NewcomerError(f"it lacks {lacking} entries that it took")
            following[slot] = max(done, end + 1)

    async def _lacking(
        self, metadata: LedgerMetadata, copier: EntryCopier, owed: Sequence[EntryRange]
    ) -> int:
        """Count the entries that the newcomer does not list."""
        pool, target = self._client.pool, copier.target
        incarnation = await copier.incarnation()
        stored = await list_stored(
            pool, target, metadata, owed[0][0], owed[-1][1], incarnation=incarnation
        )
        return count_of(difference(owed, stored))

    async def _swap(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        last: int,
        newcomers: Mapping[int, str],
        incarnations: Mapping[str, str],
        lock: RepairLock | None,
    ) -> bool:
        """Put the newcomers into the metadata, if the fragment, cookies and lock are unchanged.

        Return False if another worker moved the fragment, or changed the write quorum.
        """
        client = self._client
        cookies = client.ensembles.cookies
        for _ in range(SWAPS_MAX):
            conditions = [] if lock is None else [lock.condition]
            for bookie_id, incarnation in incarnations.items():
                cookie = await cookies.read_latest(bookie_id)
                if cookie is None or cookie.value.incarnation != incarnation:
                    raise _MoveError("refused", f"{bookie_id} may have lost what it took")
                conditions.append(cookies.unchanged(bookie_id, cookie.version))
            found = await client.ledgers.read(metadata.ledger_id, metadata.c_token)
            if found.value.write_quorum_size != metadata.write_quorum_size or (
                (fragment, last) not in settled_fragments(found.value)
            ):
                return False
            swapped = with_newcomers(found.value, fragment.first_entry_id, newcomers)
            try:
                await client.ledgers.write(swapped, found.version, conditions)
            except BadVersionError:
                if lock is not None and not await lock.is_held():
                    raise _MoveError("locked", "the ledger's lock was lost meanwhile") from None
                continue
            _log.info(
                "copies_moved",
                ledger_id=metadata.ledger_id,
                first_entry_id=fragment.first_entry_id,
                former=[fragment.bookies[slot] for slot in newcomers],
                newcomers=list(newcomers.values()),
            )
            return True
        raise _MoveError("refused", f"the metadata changed {SWAPS_MAX} times during the swap")


def _is_gone(bookie_id: str, gone: Collection[str]) -> bool:
    return bookie_id in gone or is_vacant(bookie_id)


def _is_named(fragment: Fragment, gone: Collection[str]) -> bool:
    return any(_is_gone(name, gone) for name in fragment.bookies)


def _first_with(metadata: LedgerMetadata, gone: Collection[str]) -> tuple[Fragment, int] | None:
    """Return the first settled fragment that names a bookie of `gone` or has a vacant slot."""
    for fragment, last in settled_fragments(metadata):
        if _is_named(fragment, gone):
            return fragment, last
    return None
