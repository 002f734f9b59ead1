"""Checks if copies are where the placement policy wants them, according to the current labels."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, replace

from bookie.cluster.cluster_settings import ClusterSettings
from bookie.cluster.directory import BookieDirectory
from bookie.cluster.layout import read_layout
from bookie.config import Sources
from bookie.ids import is_vacant
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import Fragment, LedgerMetadata
from bookie.ledger.place import Placement
from bookie.ledger.place.labels import BookieLabels
from bookie.ledger.place.placement_view import placement_of, placement_settings
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned


@dataclass(frozen=True, slots=True)
class FragmentPlacement:
    """The placement of one fragment of a ledger."""

    ledger_id: int
    first_entry_id: int
    bookies: tuple[str, ...]
    domains: tuple[str, ...]
    """The failure domain of each bookie by the policy; empty for a bookie without the label."""
    spans: int
    """The number of domains that the write set with the fewest domains spans."""
    wanted: int
    """The number of domains that each write set should span."""

    @property
    def vacant(self) -> int:
        return sum(map(is_vacant, self.bookies))

    @property
    def is_right(self) -> bool:
        return self.spans >= self.wanted and not self.vacant


class PlacementCheck:
    """Checks the fragments of some or all ledgers.

    Args:
        store: the cluster's metadata.
        sources: the settings file, environment variables and flags of this process.
    """

    def __init__(self, store: MetadataStore, sources: Sources) -> None:
        self._store = store
        self._sources = sources
        self._placement = Placement()

    async def run(
        self, ledger_ids: Collection[int], on_damaged: Callable[[int], object]
    ) -> AsyncIterator[FragmentPlacement]:
        """Yield the placement of each fragment that has entries or is open, ledger by ledger.

        Args:
            ledger_ids: the ledgers to check; empty means all.
            on_damaged: called with the id of a listed ledger whose metadata is unreadable.

        Raises:
            NoSuchLedgerError: one of `ledger_ids` does not exist.
            ConfigurationError: a setting of the section ``[placement]`` is wrong.
            MetadataError: the metadata store failed.
        """
        await read_layout(self._store)  # raises if the address holds no cluster
        settings = placement_settings(self._sources, await ClusterSettings(self._store).read())
        async with BookieDirectory(self._store) as directory:
            self._placement = placement_of(settings, directory.all())
        async for ledger in self._ledgers(ledger_ids, on_damaged):
            for fragment in _used(ledger.value):
                yield await self._look_at(ledger.value, fragment)

    async def _ledgers(
        self, ledger_ids: Collection[int], on_damaged: Callable[[int], object]
    ) -> AsyncIterator[Versioned[LedgerMetadata]]:
        ledgers = LedgerManager(self._store)
        if not ledger_ids:
            async for ledger in ledgers.list_readable(on_damaged):
                yield ledger
        for ledger_id in ledger_ids:
            yield await ledgers.read(ledger_id)

    async def _look_at(self, ledger: LedgerMetadata, fragment: Fragment) -> FragmentPlacement:
        await self._learn(fragment.bookies)
        placement, write_quorum_size = self._placement, ledger.write_quorum_size
        return FragmentPlacement(
            ledger.ledger_id,
            fragment.first_entry_id,
            fragment.bookies,
            placement.domains(fragment.bookies),
            min(placement.spans(fragment.bookies, write_quorum_size)),
            placement.wanted(write_quorum_size),
        )

    async def _learn(self, bookies: Collection[str]) -> None:
        """Read the operator's labels of bookies that are not registered."""
        given = BookieLabels(self._store)
        labels = self._placement.labels
        absent = {
            bookie_id: await given.read(bookie_id)
            for bookie_id in bookies
            if bookie_id not in labels
        }
        if absent:
            self._placement = replace(self._placement, labels={**labels, **absent})


def _used(ledger: LedgerMetadata) -> list[Fragment]:
    """Return the fragments, except fragments that begin after the last entry of a closed ledger."""
    return [
        fragment
        for fragment in ledger.fragments
        if not ledger.is_closed or fragment.first_entry_id <= ledger.last_entry_id
    ]
