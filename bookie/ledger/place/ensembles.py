"""Chooses the bookies of a client's ledgers; remembers failed bookies and incarnations.

After a bookie failed for one ledger, this client avoids the bookie for all ledgers, for 15 to 45
seconds. When a failed bookie registers again, the client may choose the bookie again. A bookie that
lost its data may take over its former slot, as a new bookie without entries.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from bookie.cluster.cookies import CookieManager
from bookie.cluster.directory import BookieDirectory
from bookie.env import Backoff, gather
from bookie.errors import FormatError, MetadataError, NotEnoughBookiesError, StoreWentBackError
from bookie.ids import is_vacant
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.place import AckDomains, vacant_slots
from bookie.ledger.place.placement_view import PlacementView
from bookie.ledger.quorum import Quorum, slots_of

QUARANTINE_SECONDS = 30.0
"""The mean time, in seconds, for which a failed bookie is avoided."""

_REREAD_SECONDS_MIN = 0.05
_REREAD_SECONDS_MAX = 1.0


class Quarantine:
    """Bookies that recently failed for one of this client's ledgers.

    A bookie leaves the quarantine after a random time, or when it registers again.
    """

    def __init__(self, directory: BookieDirectory) -> None:
        self._directory = directory
        self._until: dict[str, tuple[float, int]] = {}
        """Maps a bookie to the end of its quarantine, and to the number of its registrations when
        the quarantine began."""

    def put(self, bookie_id: str) -> None:
        """Quarantine a bookie; the time is random, so clients use it again at different times."""
        seconds = QUARANTINE_SECONDS * random.uniform(0.5, 1.5)  # noqa: S311  (jitter)
        until = asyncio.get_running_loop().time() + seconds
        self._until[bookie_id] = until, self._directory.arrivals(bookie_id)

    def members(self) -> set[str]:
        """Return the bookies that are in quarantine now."""
        now, arrivals = asyncio.get_running_loop().time(), self._directory.arrivals
        self._until = {
            bookie_id: (until, arrived)
            for bookie_id, (until, arrived) in self._until.items()
            if until > now and arrivals(bookie_id) == arrived
        }
        return set(self._until)


class Incarnations:
    """Remembers the valid incarnation of each bookie, as the store had it at the first request.

    Answers of another incarnation do not count: an old process of a bookie may still run, and would
    deny entries that the new process acknowledged.
    """

    def __init__(self, cookies: CookieManager) -> None:
        self.known: dict[str, str] = {}
        self._cookies = cookies

    async def of(self, bookie_id: str) -> str:
        """Return the incarnation of a bookie; empty if the bookie has no cookie.

        Raises:
            MetadataError: the store does not answer.
            FormatError: the cookie is damaged, or a newer version wrote the cookie.
        """
        if bookie_id not in self.known:
            found = await self._cookies.read_latest(bookie_id)
            self.known[bookie_id] = "" if found is None else found.value.incarnation
        return self.known[bookie_id]


class Ensembles:
    """Chooses bookies for the ledgers of one client."""

    def __init__(
        self, directory: BookieDirectory, placement: PlacementView, cookies: CookieManager
    ) -> None:
        self.directory = directory
        self.placement = placement
        self.cookies = cookies
        self.quarantine = Quarantine(directory)
        self._pick = random.SystemRandom().randrange

    # -- choice ----------------------------------------------------------------------------------

    def choose(self, quorum: Quorum, *, allow_degraded: bool) -> tuple[str, ...]:
        """Choose the bookies of a new ledger; use quarantined bookies only if others are too few.

        Raises:
            NotEnoughBookiesError: there are too few bookies, or they are in too few domains.
            StoreWentBackError: a bookie reports that the metadata store may be an older copy.
        """
        self._require_store()
        writable = self.directory.bookies()
        healthy = writable.keys() - self.quarantine.members()
        try:
            return self._choose(healthy, quorum)
        except NotEnoughBookiesError:
            lacking = max(0, quorum.ensemble_size - len(writable)) if allow_degraded else 0
            return self._choose(writable.keys(), quorum, lacking)

    def _require_store(self) -> None:
        """Raise an error if a bookie reports that the metadata store may be an older copy.

        An older copy of the store may assign ids that are in use.
        """
        for bookie_id, one in sorted(self.directory.all().items()):
            if one.store_doubt:
                raise StoreWentBackError(
                    f"no ledger is created: bookie {bookie_id} says that {one.store_doubt}; an "
                    "operator must raise the counter of ids and confirm the store"
                )

    def _choose(
        self, candidates: Collection[str], quorum: Quorum, lacking: int = 0
    ) -> tuple[str, ...]:
        placement = self.placement.now()
        chosen = placement.ensemble(
            candidates,
            quorum.ensemble_size,
            pick=self._pick,
            write_quorum_size=quorum.write_quorum_size,
            vacant=vacant_slots(quorum, lacking) if lacking else (),
        )
        domains = placement.ack_domains(chosen)
        if domains is not None and not domains.is_enough(quorum.every_slot, quorum.windows):
            raise NotEnoughBookiesError(
                f"placement.ack_domains_min is {placement.ack_domains_min}, and the writable "
                f"bookies stand in too few of them ({placement.policy.value})"
            )
        return chosen

    def ack_domains(self, bookies: Iterable[str]) -> AckDomains | None:
        """Return the domains that acknowledgements must span, by current labels and settings."""
        return self.placement.now().ack_domains(bookies)

    def mended(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Put available bookies into the vacant slots of an unclaimed ledger.

        An unclaimed ledger has no entries, so the bookies of its one fragment may change.
        """
        bookies = metadata.last_fragment.bookies
        vacant = [slot for slot, bookie_id in enumerate(bookies) if is_vacant(bookie_id)]
        newcomers = self.newcomers(bookies, vacant, metadata.write_quorum_size)
        mended = tuple(newcomers.get(slot, bookie_id) for slot, bookie_id in enumerate(bookies))
        last = replace(metadata.last_fragment, bookies=mended)
        return replace(metadata, fragments=(*metadata.fragments[:-1], last))

    def newcomers(
        self,
        ensemble: tuple[str, ...],
        slots: Collection[int],
        write_quorum_size: int,
        *,
        excluded: Collection[str] = (),
    ) -> dict[int, str]:
        """Choose new bookies, by slot; a slot for which no bookie is found is omitted."""
        candidates = self.directory.bookies().keys() - self.quarantine.members()
        return self.placement.now().newcomers(
            ensemble,
            slots,
            candidates.difference(excluded),
            pick=self._pick,
            write_quorum_size=write_quorum_size,
        )

    def newcomers_or_renewed(
        self,
        ensemble: tuple[str, ...],
        slots: int,
        write_quorum_size: int,
        incarnations: Mapping[str, str],
    ) -> dict[int, str]:
        """Choose newcomers, or let a bookie with a new incarnation take over its own slot.

        `incarnations` are the incarnations known to the writer. A slot without a newcomer keeps its
        bookie if this bookie is writable and has another incarnation.
        """
        found = self.newcomers(ensemble, list(slots_of(slots)), write_quorum_size)
        writable = self.directory.bookies()
        for slot in slots_of(slots):
            bookie_id = ensemble[slot]
            if slot not in found and bookie_id in writable:
                incarnation = writable[bookie_id].incarnation
                if incarnation != incarnations.get(bookie_id, incarnation):
                    found[slot] = bookie_id
        return found

    # -- incarnations ----------------------------------------------------------------------------

    async def incarnations(self, bookies: Iterable[str]) -> dict[str, str]:
        """Return the incarnation of each bookie of `bookies`; empty if a bookie has none.

        The incarnation of a bookie that this client never saw registered is read from the store.

        Raises:
            MetadataUnavailableError: the store does not answer.
            FormatError: a cookie is damaged, or a newer version wrote the cookie.
        """
        known = {bookie_id: self.directory.incarnation(bookie_id) for bookie_id in bookies}
        for bookie_id in [name for name, incarnation in known.items() if not incarnation]:
            found = await self.cookies.read(bookie_id)
            known[bookie_id] = "" if found is None else found.value.incarnation
        return known

    async def lost_since(self, incarnations: Mapping[str, str]) -> set[str]:
        """Return bookies whose incarnation has changed; call this after the ledger is stored.

        When a bookie may have lost data, it first writes a new incarnation to the metadata store,
        and only then lists the ledgers that name the bookie. If the store still has the incarnation
        in `incarnations`, the bookie's later listing will contain the new ledger. If the store has
        another incarnation, the result contains the bookie: its old process may still acknowledge
        entries that will be lost.

        Raises:
            MetadataUnavailableError: the store does not answer.
            FormatError: a cookie is damaged, or a newer version wrote the cookie.
        """
        named = [bookie_id for bookie_id, incarnation in incarnations.items() if incarnation]
        cookies = await gather(self.cookies.read(bookie_id) for bookie_id in named)
        return {
            bookie_id
            for bookie_id, found in zip(named, cookies, strict=True)
            if found is None or found.value.incarnation != incarnations[bookie_id]
        }

    async def incarnation_of_newcomer(self, bookie_id: str) -> str | None:
        """Read the incarnation of a ledger's new bookie; None if it has no readable cookie.

        Call this after the ledger's metadata names the bookie; `lost_since` explains why. The
        method repeats the read until the store answers.
        """
        pauses = Backoff(_REREAD_SECONDS_MIN, _REREAD_SECONDS_MAX)
        while True:
            try:
                found = await self.cookies.read(bookie_id)
            except FormatError:
                return None  # the bookie's cookie is damaged
            except MetadataError:
                await asyncio.sleep(pauses.next())
            else:
                return None if found is None else found.value.incarnation
