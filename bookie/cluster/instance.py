"""A cluster's identity: the instance id that is made once, and the layout of its keys.

Every bookie and client sends the instance id along, so that nobody ever writes into, or reads from,
a cluster that was formatted anew or belongs to somebody else.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from bookie.cluster import keys
from bookie.errors import FormatError, KeyExistsError, NoSuchKeyError
from bookie.formats import json_record
from bookie.metadata.store import NOT_EXISTS, MetadataStore, Put

_LAYOUT_FORMAT = "bookie-layout"
_LAYOUT_VERSION = 1
_FLAT = "flat"


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What the metadata store says about a cluster as a whole. Bookie ids are sorted."""

    instance_id: str
    layout: str
    writable: tuple[str, ...]
    read_only: tuple[str, ...]
    known: tuple[str, ...]
    """Every bookie that has a cookie, alive or not."""


async def initialize_cluster(store: MetadataStore) -> str:
    """Make a new cluster; returns its instance id.

    Raises:
        KeyExistsError: there is one already; nothing was changed.
    """
    instance_id = str(uuid.uuid4())
    layout = json_record.encode(_LAYOUT_FORMAT, _LAYOUT_VERSION, {"ledgers": _FLAT})
    try:
        await store.transaction(
            [
                Put(keys.LAYOUT, layout, NOT_EXISTS),
                Put(keys.INSTANCE_ID, instance_id.encode(), NOT_EXISTS),
            ]
        )
    except KeyExistsError as error:
        raise KeyExistsError("the cluster is initialized already") from error
    return instance_id


async def read_instance_id(store: MetadataStore) -> str:
    """The instance id, after checking that this program understands the cluster's layout.

    Raises:
        NoSuchKeyError: the cluster was never initialized.
        FormatError: the layout or the id is damaged, or written by a newer version.
    """
    await read_layout(store)
    record = await store.get(keys.INSTANCE_ID)
    if record is None:
        raise NoSuchKeyError(_UNINITIALIZED)
    try:
        return str(uuid.UUID(record.value.decode("ascii")))
    except ValueError as error:
        raise FormatError("the cluster's instance id is not a UUID") from error


async def read_layout(store: MetadataStore) -> str:
    """How ledgers are laid out in the store: ``flat``.

    Raises:
        NoSuchKeyError: the cluster was never initialized.
        FormatError: damaged, or a layout that this program does not know.
    """
    record = await store.get(keys.LAYOUT)
    if record is None:
        raise NoSuchKeyError(_UNINITIALIZED)
    layout = json_record.decode(_LAYOUT_FORMAT, _LAYOUT_VERSION, record.value).text("ledgers")
    if layout != _FLAT:
        raise FormatError(f"the cluster lays its ledgers out as {layout!r}, which is unknown here")
    return layout


async def read_status(store: MetadataStore) -> ClusterStatus:
    """The cluster as a whole; raises what `read_instance_id` does."""
    return ClusterStatus(
        instance_id=await read_instance_id(store),
        layout=await read_layout(store),
        writable=tuple(await store.get_children(keys.WRITABLE)),
        read_only=tuple(await store.get_children(keys.READ_ONLY)),
        known=tuple(await store.get_children(keys.COOKIES)),
    )


_UNINITIALIZED = "the metadata store holds no cluster; make one with `bookie cluster init`"
