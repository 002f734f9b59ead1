"""A cluster's identity: the instance id, which is created with the cluster and never changes.

Every bookie and client sends the instance id with its requests, and a bookie refuses any other id.
So no client can read or write entries of another cluster, or of an earlier cluster in the same
scope.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from bookie.cluster import keys
from bookie.cluster.layout import UNINITIALIZED, encode_layout, layout_of, read_layout
from bookie.env import gather
from bookie.errors import (
    BadVersionError,
    ClusterInUseError,
    FormatError,
    LayoutExistsError,
    NoSuchKeyError,
    WrongClusterError,
)
from bookie.metadata.model import NOT_EXISTS, Check, Delete, Put, Record, is_under
from bookie.metadata.store import MetadataStore

_IDENTITY = frozenset({"LAYOUT", "INSTANCEID"})
_TRACES = (*_IDENTITY, "REMOVAL")
"""Names of top-level records; at every moment, a cluster has at least one of these records."""

_OF_LEDGERS = (keys.LEDGERS, keys.DELETED, keys.UNDERREPLICATION)
_WINDOW = 64
"""The largest number of keys whose children are listed at the same time."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of a cluster as the metadata store shows it; all bookie ids are sorted."""

    instance_id: str
    layout: str
    writable: tuple[str, ...]
    read_only: tuple[str, ...]
    known: tuple[str, ...]
    """Every bookie that has a cookie, running or not."""


async def initialize_cluster(store: MetadataStore, layout: str | None = None) -> str:
    """Create a new cluster and return its instance id.

    `layout` is the name of the ledgers' layout: ``flat`` or ``hierarchical``. If `layout` is None,
    the function chooses the layout that suits the kind of store.

    Raises:
        LayoutExistsError: the scope already holds a cluster; nothing was changed.
        ClusterInUseError: records of a former cluster remain, so the new cluster could use the same
            ledger ids again. The error is also raised if one cluster's scope would lie inside
            another cluster's scope. After ClusterInUseError, no record of the new cluster remains.
            If two clusters are created at the same time, and one scope lies inside the other, at
            most one cluster remains.
        BadRequestError: the layout is unknown.
    """
    instance_id = str(uuid.uuid4())
    identity = [
        Put(keys.LAYOUT, encode_layout(layout_of(layout, store)), NOT_EXISTS),
        Put(keys.INSTANCE_ID, instance_id.encode(), NOT_EXISTS),
    ]
    await _refuse_overlap(store)
    found = set(await store.get_children("/"))
    if not found & _IDENTITY:
        _refuse_remains(found)
    try:
        # This check fails if the removal of a cluster began after the listing.
        made = await store.transaction([*identity, Check(keys.REMOVAL, NOT_EXISTS)])
    except BadVersionError as error:
        if await store.exists(keys.REMOVAL):
            _refuse_remains({"REMOVAL"})
        raise LayoutExistsError("the cluster is initialized already") from error
    try:
        await _refuse_overlap(store)  # another process may have created an inner or outer cluster
    except ClusterInUseError:
        ours = zip(identity, made, strict=False)
        await store.transaction([Delete(put.key, stat.version) for put, stat in ours if stat])
        raise
    return instance_id


async def _refuse_overlap(store: MetadataStore) -> None:
    await store.sync()
    await refuse_inner_cluster(store)
    if outer := await store.enclosing_scopes(_TRACES):
        raise ClusterInUseError(
            f"the scope lies in {outer[0]}, which holds another cluster; choose a scope beside it"
        )


async def refuse_inner_cluster(store: MetadataStore) -> None:
    """Check that the scope contains no other cluster's scope, at any depth.

    The search skips all keys below the key of a ledger.

    Raises:
        ClusterInUseError: the scope contains a cluster; the message names it.
    """
    level = [f"/{name}" for name in await store.get_children("/")]
    while level:
        below: list[str] = []
        for start in range(0, len(level), _WINDOW):
            some = level[start : start + _WINDOW]
            for key, names in zip(some, await gather(map(store.get_children, some)), strict=True):
                if _IDENTITY.issubset(names) or (
                    "REMOVAL" in names and await store.get(f"{key}/REMOVAL") is not None
                ):
                    raise ClusterInUseError(
                        f"the scope contains another cluster at {key}; nothing was changed"
                    )
                below += [f"{key}/{name}" for name in names if not _is_number(key, name)]
        level = below


def _is_number(parent: str, name: str) -> bool:
    is_of_ledgers = any(is_under(root, parent) for root in _OF_LEDGERS)
    return is_of_ledgers and name.removeprefix("L").isdigit()


def _refuse_remains(found: set[str]) -> None:
    remains = sorted(found & (keys.OWN - {"config"}))  # settings may exist before the cluster
    if remains:
        raise ClusterInUseError(
            f"the metadata scope holds /{remains[0]} of a cluster that was not removed whole; "
            "remove it with `bookie cluster nuke --yes` first"
        )


async def read_instance_id(store: MetadataStore) -> str:
    """Check that this program knows the cluster's layout, and return the instance id.

    Raises:
        NoSuchKeyError: the cluster was never initialized.
        FormatError: the layout or the id is damaged, or a newer version wrote it.
    """
    await read_layout(store)
    record = await store.get(keys.INSTANCE_ID)
    if record is None:
        raise NoSuchKeyError(UNINITIALIZED)
    return _instance_id(record)


async def require_instance(store: MetadataStore, instance_id: str) -> Check:
    """Check that the store holds the cluster `instance_id`.

    The check is necessary because after an outage, another store or an empty store may answer. The
    result is a transaction condition that makes the same check.

    Raises:
        WrongClusterError: the store holds another cluster, or none.
    """
    record = await store.get(keys.INSTANCE_ID)
    try:
        held = None if record is None else _instance_id(record)
    except FormatError:
        held = "with a damaged id"
    if record is None or held != instance_id:
        found = "no cluster" if record is None else f"the cluster {held}"
        raise WrongClusterError(
            f"the metadata store holds {found} now; bring back the store of {instance_id}"
        )
    return Check(keys.INSTANCE_ID, record.version)


def _instance_id(record: Record) -> str:
    try:
        return str(uuid.UUID(record.value.decode("ascii")))
    except ValueError as error:
        raise FormatError(f"the metadata key {keys.INSTANCE_ID} is not a UUID") from error


async def read_status(store: MetadataStore) -> ClusterStatus:
    """Return the status of the cluster; raise the errors of `read_instance_id`."""
    return ClusterStatus(
        instance_id=await read_instance_id(store),
        layout=(await read_layout(store)).name,
        writable=tuple(await store.get_children(keys.WRITABLE)),
        read_only=tuple(await store.get_children(keys.READ_ONLY)),
        known=tuple(await store.get_children(keys.COOKIES)),
    )
