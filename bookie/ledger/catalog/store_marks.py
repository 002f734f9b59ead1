"""Marks that show whether a metadata store was restored from an older copy.

The marks are the counters of ledger ids, and the `state_number` in a bookie's own cookie. Normally,
marks only increase. A mark that is lower than before, or missing, means that the store was restored
from an older copy, or emptied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie.cluster import keys
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import read_instance_id
from bookie.errors import NoSuchKeyError
from bookie.ledger.catalog.ledger_ids import read_counters
from bookie.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class StoreMarks:
    """The marks of a store; all fields are empty if the store holds no cluster."""

    instance_id: str = ""
    counters: dict[int, int] = field(default_factory=dict)
    """Maps a bucket to its lowest ledger id that is not reserved."""
    cookie_number: int | None = None
    """The `state_number` in the bookie's cookie; None if the bookie has no cookie."""


async def read_marks(store: MetadataStore, bookie_id: str) -> StoreMarks:
    """Sync the store and read its marks, so that the marks are current.

    Raises:
        NoSuchKeyError: the cluster is being removed.
        FormatError: a mark is damaged, or a newer version wrote it.
        MetadataUnavailableError: the store does not answer.
    """
    await store.sync()
    try:
        instance_id = await read_instance_id(store)
    except NoSuchKeyError:
        if await store.exists(keys.REMOVAL):
            raise
        return StoreMarks()
    cookie = await CookieManager(store).read(bookie_id)
    return StoreMarks(
        instance_id,
        await read_counters(store),
        None if cookie is None else cookie.value.state_number,
    )
