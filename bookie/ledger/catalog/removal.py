"""Removes a whole cluster from the metadata store.

A removal deletes everything below the cluster's scope, and nothing else. A removal is refused if
the scope holds keys of another owner or another cluster. While bookies are registered, a removal is
also refused, because these bookies would serve ledgers that clients cannot find.

The record ``REMOVAL`` exists from the first step of a removal to the last step:

1. One transaction moves the cluster's identity (layout and instance id) into the record. While the
   record exists, no bookie can register and no cluster can be created. Before step 2 nothing is
   lost: after a failure, the removal restores the identity. If the restore fails, the next call
   that finds registered bookies tries to restore the identity again.
2. When no bookie is registered, the removal stores in its record that the deletion has begun.
3. Every deletion requires that this record is unchanged since step 2. So a delayed call cannot
   delete keys of a cluster that was created later. The counters of ledger ids are deleted last:
   while a ledger exists, its id cannot be assigned again.
4. The removal deletes its record.

If a removal stops after step 2, the next call continues this removal.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from bookie.cluster import keys
from bookie.cluster.instance import refuse_inner_cluster
from bookie.errors import (
    BadVersionError,
    BookieError,
    ClusterInUseError,
    FormatError,
    NoSuchKeyError,
)
from bookie.metadata import json_record
from bookie.metadata.model import NOT_EXISTS, Check, Delete, Operation, Put
from bookie.metadata.store import MetadataStore

_FORMAT = "bookie-removal"
_VERSION = 1
_ORDER = (*sorted(keys.OWN - {"REMOVAL", "IDGEN"}), "IDGEN")


@dataclass(frozen=True, slots=True)
class _Removal:
    """The record of a removal and its version."""

    identity: dict[str, bytes]
    """Former values of the keys that identify the cluster; keys that did not exist are omitted."""

    has_begun: bool
    version: int = NOT_EXISTS


async def cluster_exists(store: MetadataStore) -> bool:
    """True if any key of a cluster exists, even of a damaged cluster."""
    return bool(keys.OWN.intersection(await store.get_children("/")))


async def nuke_cluster(store: MetadataStore, *, foreign: bool = False) -> bool:
    """Delete a cluster with all of its content; return False if the store holds no cluster.

    With `foreign`, also delete `MetadataStore.foreign_keys`, which other programs wrote. Without
    `foreign`, such keys cause ClusterInUseError.

    Raises:
        ClusterInUseError: bookies are registered, a key has another owner, or another cluster's
            scope is inside this scope. A call that raises this error has deleted nothing.
    """
    await refuse_inner_cluster(store)
    await _refuse_strangers(store, foreign=foreign)
    removal = await _begin(store) if await cluster_exists(store) else None
    if foreign:
        await store.delete_foreign()  # only now is it known that no bookie is registered
    if removal is None:
        return False
    try:
        condition = Check(keys.REMOVAL, removal.version)
        for name in _ORDER:
            await store.delete_recursive(f"/{name}", condition=condition)
        await store.delete(keys.REMOVAL, version=removal.version)
    except (BadVersionError, NoSuchKeyError):
        return True  # another call has finished this removal
    return True


async def registered_bookies(store: MetadataStore) -> list[str]:
    """Return the ids of all bookies that are registered now, sorted."""
    found: set[str] = set()
    # List the writable bookies before and after the read-only bookies, so that a bookie that
    # switches meanwhile is in one of the listings.
    for parent in (keys.WRITABLE, keys.READ_ONLY, keys.WRITABLE):
        found.update(await store.get_children(parent))
    return sorted(found)


async def _refuse_strangers(store: MetadataStore, *, foreign: bool = False) -> None:
    strangers = sorted(set(await store.get_children("/")) - keys.OWN)
    if strangers:
        raise ClusterInUseError(
            f"the metadata scope also holds /{strangers[0]}, which belongs to no cluster; nothing "
            "was deleted"
        )
    if not foreign and (odd := await store.foreign_keys()):
        raise ClusterInUseError(
            f"the metadata scope also holds {odd[0]!r}, which another program wrote; nothing was "
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


async def _begin(store: MetadataStore) -> _Removal:
    """Begin a removal, or find the removal that has begun; return its record.

    Raises:
        ClusterInUseError: bookies are registered. The cluster is unchanged, unless a removal had
            begun before.
    """
    try:
        while True:
            await _refuse_registered(store)
            removal = await _take_identity(store)
            # List the bookies again, because a bookie may have registered after the first listing
            # and before the identity was removed.
            await _refuse_registered(store)
            if removal.has_begun:
                return removal
            begun = replace(removal, has_begun=True)
            try:
                stat = await store.put(keys.REMOVAL, _encode(begun), version=removal.version)
            except BadVersionError:
                continue  # another call began the removal, or restored the identity
            return replace(begun, version=stat.version)
    except BaseException:
        await _restore(store)
        raise


async def _take_identity(store: MetadataStore) -> _Removal:
    """Move the layout and the instance id into a removal record, unless the record exists."""
    while True:
        removal = await _find(store)
        if removal is not None:
            return removal
        found = {key: await store.get(key) for key in (keys.LAYOUT, keys.INSTANCE_ID)}
        identity = {key: record.value for key, record in found.items() if record is not None}
        removal = _Removal(identity, has_begun=False)
        operations: list[Operation] = [Put(keys.REMOVAL, _encode(removal), NOT_EXISTS)]
        for key, record in found.items():
            if record is None:
                operations.append(Check(key, NOT_EXISTS))
            else:
                operations.append(Delete(key, record.version))
        try:
            stat = (await store.transaction(operations))[0]
        except (BadVersionError, NoSuchKeyError):
            continue  # another call creates or removes the cluster at the same time
        assert stat is not None
        return replace(removal, version=stat.version)


async def _restore(store: MetadataStore) -> None:
    """Restore the cluster's identity, if the store answers and the removal has not begun."""
    with suppress(BookieError):
        removal = await _find(store)
        if removal is not None and not removal.has_begun:
            identity = [Put(key, value, NOT_EXISTS) for key, value in removal.identity.items()]
            await store.transaction([Delete(keys.REMOVAL, removal.version), *identity])


async def _find(store: MetadataStore) -> _Removal | None:
    record = await store.get(keys.REMOVAL)
    if record is None:
        return None
    try:
        fields = json_record.decode(_FORMAT, _VERSION, record.value)
        identity = {
            one.text("key"): bytes.fromhex(one.text("value")) for one in fields.objects("identity")
        }
        return _Removal(identity, fields.boolean("has_begun"), record.version)
    except (FormatError, ValueError) as error:
        raise FormatError(f"the metadata key {keys.REMOVAL}: {error}") from error


def _encode(removal: _Removal) -> bytes:
    identity = [{"key": key, "value": value.hex()} for key, value in removal.identity.items()]
    fields = {"identity": identity, "has_begun": removal.has_begun}
    return json_record.encode(_FORMAT, _VERSION, fields)
