"""A cluster's identity: the instance id that is made once.

Every bookie and client sends the instance id along, so that nobody ever writes into, or reads from,
a cluster that was formatted anew or belongs to somebody else.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from bookie.cluster import keys
from bookie.cluster.layout import (
    UNINITIALIZED,
    LayoutManager,
    LedgerLayout,
    encode_layout,
    layout_of,
)
from bookie.errors import (
    BadVersionError,
    ClusterInUseError,
    FormatError,
    LayoutExistsError,
    NoSuchKeyError,
)
from bookie.metadata.store import NOT_EXISTS, Check, MetadataStore, Operation, Put

_IDENTITY = frozenset({"LAYOUT", "INSTANCEID"})


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
        ClusterInUseError: something is left of a former cluster, whose ledger ids would be used
            again beside its ledgers; nothing was changed.
        BadRequestError: there is no such layout.
    """
    instance_id, identity = new_identity(layout_of(layout, store))
    await store.sync()
    found = set(await store.get_children("/"))
    if not found & _IDENTITY:
        _refuse_remains(found)
    try:
        # What is left of a cluster whose removal began after the listing is guarded by its record.
        await store.transaction([*identity, Check(keys.REMOVAL, NOT_EXISTS)])
    except BadVersionError as error:
        if await store.exists(keys.REMOVAL):
            _refuse_remains({"REMOVAL"})
        raise LayoutExistsError("the cluster is initialized already") from error
    return instance_id


def new_identity(layout: LedgerLayout) -> tuple[str, list[Operation]]:
    """The instance id of a new cluster, and what writes it down together with its layout."""
    instance_id = str(uuid.uuid4())
    return instance_id, [
        Put(keys.LAYOUT, encode_layout(layout), NOT_EXISTS),
        Put(keys.INSTANCE_ID, instance_id.encode(), NOT_EXISTS),
    ]


def _refuse_remains(found: set[str]) -> None:
    remains = sorted(found & (keys.OWN - {"config"}))  # settings may be there before the cluster
    if remains:
        raise ClusterInUseError(
            f"the metadata scope holds /{remains[0]} of a cluster that was not removed whole; "
            "remove it with `bookie cluster nuke --yes` first"
        )


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
