"""A client's current placement: the cluster's policy, and the labels and space of its bookies.

The policy is a cluster setting (section ``[placement]``). As with every setting, the client's own
file, environment variables and flags override the cluster's value. The view follows the cluster
setting, so a changed policy applies to the next choice of bookies. An invalid change is logged and
ignored; an invalid setting at the start is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from bookie.cluster import keys
from bookie.cluster.cluster_settings import setting_text
from bookie.cluster.directory import BookieDirectory
from bookie.cluster.registration_record import Registration
from bookie.config import PlacementSettings, Sources, find_setting
from bookie.errors import ConfigurationError
from bookie.ledger.place import Placement, PlacementPolicy, weights_by_free_space
from bookie.metadata.mirror import Mirror
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

_SECTION = "placement."

_log = event_log(__name__)


class PlacementView(Mirror[str]):
    """The placement of one cluster; an async context manager that keeps the placement current.

    Args:
        store: the cluster's metadata store, which must stay open longer than the view.
        directory: the directory of registered bookies, whose async context must be entered first.
        sources: the settings file, environment variables and flags of this process.
    """

    def __init__(self, store: MetadataStore, directory: BookieDirectory, sources: Sources) -> None:
        self._directory = directory
        self._sources = sources
        self._settings = sources.settings().placement
        self._is_entered = False
        super().__init__(store, keys.SETTINGS, (keys.SETTINGS,), setting_text, self._take)

    def now(self) -> Placement:
        """Return the current placement; call this again for each choice of bookies."""
        return placement_of(self._settings, self._directory.all())

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._is_entered = True
        return self

    def _take(self, records: Mapping[str, str]) -> None:
        named = {key.removeprefix(keys.SETTINGS + "/"): text for key, text in records.items()}
        try:
            self._settings = placement_settings(self._sources, named)
        except ConfigurationError as error:
            if not self._is_entered:
                raise
            _log.warning("setting_ignored", key="placement", reason=str(error))


def placement_settings(sources: Sources, cluster: Mapping[str, str]) -> PlacementSettings:
    """Return the section ``[placement]`` with these cluster settings; other sections are ignored.

    Raises:
        ConfigurationError: a setting of the section is wrong.
    """
    return sources.settings(
        {
            name: text
            for name, text in cluster.items()
            if name.startswith(_SECTION) and find_setting(name) is not None
        }
    ).placement


def placement_of(settings: PlacementSettings, bookies: Mapping[str, Registration]) -> Placement:
    """Return the placement for `settings`, with the labels and space of `bookies`."""
    weights = {}
    if settings.weigh_free_space:
        weights = weights_by_free_space(
            {bookie_id: bookie.free_bytes for bookie_id, bookie in bookies.items()}
        )
    return Placement(
        policy=PlacementPolicy(settings.policy),
        labels={bookie_id: bookie.labels for bookie_id, bookie in bookies.items()},
        weights=weights,
        domains_min=settings.domains_min,
        ack_domains_min=settings.ack_domains_min,
        enforce=settings.enforce,
    )
