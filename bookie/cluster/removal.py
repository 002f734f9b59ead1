"""The end of a cluster, and a new beginning in its place.

Everything below the cluster's scope goes, and nothing else: keys of a store never leave its scope,
and a scope that holds keys of somebody else is left alone. Both are refused while bookies are
registered, because they would go on serving ledgers that nobody can find any more.
"""

from __future__ import annotations

from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.errors import BadVersionError, ClusterInUseError, NoSuchKeyError
from bookie.metadata.store import NOT_EXISTS, Delete, MetadataStore, Put, Record


async def cluster_exists(store: MetadataStore) -> bool:
    """Whether any of a cluster's keys is there, whole or damaged."""
    return bool(keys.OWN.intersection(await store.get_children("/")))


async def nuke_cluster(store: MetadataStore) -> bool:
    """Delete a cluster with everything in it; whether there was one.

    First its identity goes, in one step, so that nobody joins any more; a bookie that registered at
    the last moment brings it back. A removal that was interrupted goes on when it is called again.

    Raises:
        ClusterInUseError: bookies are registered, or a key is not a cluster's; nothing was deleted.
    """
    await _refuse_strangers(store)
    if not await cluster_exists(store):
        return False
    await _refuse_registered(store)
    identity = await _take_identity(store)
    try:
        await _refuse_registered(store)
    except ClusterInUseError:
        await store.transaction([Put(r.key, r.value, NOT_EXISTS) for r in identity])
        raise
    for name in sorted(keys.OWN):
        await store.delete_recursive(f"/{name}")
    return True


async def format_cluster(
    store: MetadataStore, layout: str | None = None, *, force: bool = False
) -> str:
    """Delete a cluster, if there is one, and make a new one in its place; its new instance id.

    With `force` also while bookies are registered: they find out by the instance id, and their
    clients too.

    Raises:
        ClusterInUseError: as `nuke_cluster` says; nothing was deleted.
    """
    if not force:
        await nuke_cluster(store)
        return await initialize_cluster(store, layout)
    await _refuse_strangers(store)
    await _take_identity(store)
    for name in sorted(keys.OWN - {"available"}):
        await store.delete_recursive(f"/{name}")
    return await initialize_cluster(store, layout)


async def registered_bookies(store: MetadataStore) -> list[str]:
    """The ids of all bookies that are registered now, sorted."""
    found: set[str] = set()
    # Writable first and last: a bookie that changes sides in between is in one of the listings.
    for parent in (keys.WRITABLE, keys.READ_ONLY, keys.WRITABLE):
        found.update(await store.get_children(parent))
    return sorted(found)


async def _refuse_strangers(store: MetadataStore) -> None:
    strangers = sorted(set(await store.get_children("/")) - keys.OWN)
    if strangers:
        raise ClusterInUseError(
            f"the metadata scope also holds /{strangers[0]}, which is no cluster's; nothing was "
            "deleted"
        )


async def _refuse_registered(store: MetadataStore) -> None:
    await store.sync()
    registered = await registered_bookies(store)
    if registered:
        more = f" and {len(registered) - 1} more" if registered[1:] else ""
        raise ClusterInUseError(
            f"bookie {registered[0]}{more} registered with this cluster; stop what is running first"
        )


async def _take_identity(store: MetadataStore) -> list[Record]:
    """Delete the layout and the instance id, in one step; what they were."""
    while True:
        found = [await store.get(key) for key in (keys.LAYOUT, keys.INSTANCE_ID)]
        records = [record for record in found if record is not None]
        try:
            await store.transaction([Delete(record.key, record.version) for record in records])
        except (BadVersionError, NoSuchKeyError):
            continue  # somebody formats the cluster just now
        return records
