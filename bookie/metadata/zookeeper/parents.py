"""The parent nodes of records: made when a create needs them, removed with their last child.

If several writes of a store need the same missing parents, the first write makes the parents, and
the others wait for it.

A parent is removed only if it is still the same node that was read before (see `REMOVALS`). If
several stores remove parents at the same time, all removals but one fail and are tried again; after
`_REMOVAL_ATTEMPTS` failures, the parent stays. A later delete below that parent, or a recursive
delete, removes the parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from bookie.errors import BookieError, InvalidKeyError, MetadataUnavailableError
from bookie.metadata.model import ROOT, ancestors, parent_of
from bookie.metadata.zookeeper.client import LostError, NoAnswerError, NotSentError
from bookie.metadata.zookeeper.nodes import NodeReader, may_have_no_record, refusal
from bookie.metadata.zookeeper.requests import (
    ACL,
    BAD_VERSION,
    NO_CHILDREN_FOR_EPHEMERALS,
    NO_NODE,
    NODE_EXISTS,
    CreateNode,
    DeleteNode,
    Exists,
    GetData,
    Id,
    Multi,
    MultiRefusedError,
    NodeError,
    Permissions,
    SetData,
)
from bookie.metadata.zookeeper.session import ZooKeeperLink
from bookie.metadata.zookeeper.tree import HOME, KEPT, LASTING_ACL, PARENT, REMOVALS, Scope

_REMOVAL_ATTEMPTS = 20
_REMEMBERED_MAX = 10_000
_GUARD_ACL = [ACL(Permissions.READ | Permissions.WRITE, Id("world", "anyone"))]


class Parents:
    """Makes and removes the parent nodes of one open store."""

    def __init__(self, link: ZooKeeperLink, scope: Scope, nodes: NodeReader) -> None:
        self._link = link
        self._scope = scope
        self._nodes = nodes
        self._kept: dict[str, None] = {}
        """The parents that stay even without children, as far as this connection knows."""
        self._making: dict[tuple[tuple[str, bool], ...], asyncio.Event] = {}
        """Pairs (parent, True if it must stay) of a running `make` → an event, set at its end."""
        self._removing = asyncio.Lock()
        """Permits one removal at a time, because two at the same time would conflict."""

    def clear(self) -> None:
        """Forget which parents stay: events may have been missed before the new connection."""
        self._kept.clear()

    def note_deletion(self, key: str) -> None:
        self._kept.pop(key, None)

    def all_kept(self, keys: Iterable[str]) -> bool:
        """True if all these parents are known to stay without children.

        A parent of persistent sequential nodes must stay, because its numbers must not begin anew.
        """
        return all(key in self._kept for key in keys)

    # ---- making

    async def make(self, creates: Iterable[CreateNode]) -> None:
        """Make the missing parents of new nodes, except parents that `creates` itself creates.

        Parents of persistent sequential nodes stay from now on, even without children.

        Raises:
            InvalidKeyError: a parent would lie below an ephemeral record.
            UnauthorizedError: the server denies the creation.
            MetadataUnavailableError: the server does not answer, or refuses for another reason.
        """
        made = {create.path for create in creates}
        wanted: dict[str, bool] = {}
        for create in creates:
            parent = parent_of(self._scope.key(create.path))
            if parent != ROOT and self._scope.path(parent) not in made:
                for key in ancestors(parent):
                    wanted.setdefault(key, False)
                wanted[parent] = wanted.get(parent, False) or create.is_numbered
        which = tuple(wanted.items())
        if (other := self._making.get(which)) is not None:
            await other.wait()
            return
        done = self._making[which] = asyncio.Event()
        try:
            await self._make(wanted)
        except (LostError, NotSentError):
            return  # the next attempt finds the parents that are still missing
        except NoAnswerError as error:
            raise MetadataUnavailableError("the metadata store does not answer") from error
        finally:
            del self._making[which]
            done.set()

    async def _make(self, wanted: Mapping[str, bool]) -> None:
        mark = self._scope.mark
        keys = sorted(wanted, key=lambda one: one.count("/"))
        paths = [self._scope.path(key) for key in keys]
        try:
            await self._link.make_root()
            stats = await self._nodes.ask(map(Exists, paths), self._link.deadline())
            creates = [
                CreateNode(path, KEPT if wanted[key] else PARENT, self._scope.acl(key))
                for key, path, stat in zip(keys, paths, stats, strict=True)
                if stat is None
            ]
            # Send the creates from the top down, because each create needs the parent above it.
            sent = [self._link.send(Multi([mark, create, mark])).answer for create in creates]
            for answer in sent:
                try:
                    await answer
                except MultiRefusedError as refused:
                    if refused.code not in (NODE_EXISTS, NO_NODE):
                        raise
            for key, path in zip(keys, paths, strict=True):
                if wanted[key]:
                    await self._keep(key, path)
        except NodeError as error:
            if error.code == NO_CHILDREN_FOR_EPHEMERALS:
                raise InvalidKeyError(f"{keys[-1]} is below an ephemeral record") from error
            # NO_NODE: another client has deleted a parent that was just made. The next attempt
            # makes it again.
            if error.code != NO_NODE:
                raise refusal(error, keys[-1] if keys else ROOT) from error

    async def _keep(self, key: str, path: str) -> None:
        """Mark a parent to stay, so that ZooKeeper keeps the count of its children."""
        while key not in self._kept:
            data, stat = await self._link.send(GetData(path)).answer
            if data is None or data == PARENT:
                mark = self._scope.mark
                try:
                    await self._link.send(
                        Multi([mark, SetData(path, KEPT, stat.version), mark])
                    ).answer
                except MultiRefusedError as refused:
                    if refused.code != BAD_VERSION:
                        raise
                    continue
            self._kept[key] = None
            if len(self._kept) > _REMEMBERED_MAX:
                del self._kept[next(iter(self._kept))]

    # ---- removing

    async def make_guard(self) -> None:
        """Make the node `REMOVALS`; raises the errors of `ZooKeeperLink.make`."""
        await self._link.make(HOME, CreateNode(HOME, b"", LASTING_ACL))
        await self._link.make(REMOVALS, CreateNode(REMOVALS, b"", _GUARD_ACL))

    async def remove_empty(self, keys: Iterable[str]) -> None:
        """Remove each of `keys` that is a parent without children, then the empty parents above.

        Errors are ignored: if a parent stays, a later delete below the parent, or a recursive
        delete, removes the parent.
        """
        deadline = self._link.deadline()
        try:
            async with asyncio.timeout_at(deadline):
                for parent in keys:
                    key = parent
                    while key != ROOT and await self._remove(key):
                        key = parent_of(key)
        except (TimeoutError, BookieError, NodeError, LostError, NotSentError, NoAnswerError):
            return

    async def _remove(self, key: str) -> bool:
        """Remove `key` if it is an empty parent; return True if this call removed it."""
        path, mark = self._scope.path(key), self._scope.mark
        seen = await self._link.read(Exists(path), self._link.deadline())
        if seen is None or seen.numChildren or not may_have_no_record(seen):
            return False
        async with self._removing:
            for _ in range(_REMOVAL_ATTEMPTS):
                guard, found = await self._nodes.ask(
                    [Exists(REMOVALS), GetData(path)], self._link.deadline()
                )
                if found is None:
                    return False
                if guard is None:
                    await self.make_guard()
                    continue
                data, stat = found
                if stat.numChildren or not (data is None or data == PARENT):
                    return False
                removal = SetData(REMOVALS, b"", guard.version)
                delete = DeleteNode(path, stat.version)
                try:
                    await self._link.send(Multi([removal, mark, delete, mark])).answer
                except MultiRefusedError:
                    continue
                return True
        return False
