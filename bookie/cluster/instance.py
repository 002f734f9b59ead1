"""A cluster's identity: the instance id that is made once.

Every bookie and client sends the instance id along, so that nobody ever writes into, or reads from,
a cluster that was formatted anew or belongs to somebody else.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from bookie.cluster import keys
from bookie.cluster.layout import UNINITIALIZED, LayoutManager, encode_layout, layout_of
from bookie.errors import FormatError, KeyExistsError, LayoutExistsError, NoSuchKeyError
from bookie.metadata.store import NOT_EXISTS, MetadataStore, Put


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What the metadata store says about a cluster as a whole. Bookie ids are sorted."""

    instance_id: str
    layout: str
    writable: tuple[str, ...]
    read_only: tuple[str, ...]
    known: tuple[str, ...]
    """Every bookie that has a cookie, alive or not."""


async def initialize_cluster(store: MetadataStore, layout: str | None = None) -> str:
    """Make a new cluster; returns its instance id.

    `layout` is how its ledgers lie: ``flat``, ``hierarchical``, or what fits the store when None.

    Raises:
        LayoutExistsError: there is a cluster already; nothing was changed.
        BadRequestError: there is no such layout.
    """
    instance_id = str(uuid.uuid4())
    value = encode_layout(layout_of(layout, store))
    try:
        await store.transaction(
            [
                Put(keys.LAYOUT, value, NOT_EXISTS),
                Put(keys.INSTANCE_ID, instance_id.encode(), NOT_EXISTS),
            ]
        )
    except KeyExistsError as error:
        raise LayoutExistsError("the cluster is initialized already") from error
    return instance_id


async def read_instance_id(store: MetadataStore) -> str:
    """The instance id, after checking that this program understands the cluster's layout.

    Raises:
        NoSuchKeyError: the cluster was never initialized.
        FormatError: the layout or the id is damaged, or written by a newer version.
    """
    await LayoutManager(store).read()
    record = await store.get(keys.INSTANCE_ID)
    if record is None:
        raise NoSuchKeyError(UNINITIALIZED)
    try:
        return str(uuid.UUID(record.value.decode("ascii")))
    except ValueError as error:
        raise FormatError(f"the metadata key {keys.INSTANCE_ID} is not a UUID") from error


async def read_layout(store: MetadataStore) -> str:
    """How ledgers are laid out in the store; raises what `LayoutManager.read` does."""
    return (await LayoutManager(store).read()).name


async def read_status(store: MetadataStore) -> ClusterStatus:
    """The cluster as a whole; raises what `read_instance_id` does."""
    return ClusterStatus(
        instance_id=await read_instance_id(store),
        layout=await read_layout(store),
        writable=tuple(await store.get_children(keys.WRITABLE)),
        read_only=tuple(await store.get_children(keys.READ_ONLY)),
        known=tuple(await store.get_children(keys.COOKIES)),
    )
