"""Give all nodes of a scope the access control lists of the table in `rights`.

New nodes get their lists when they are created. `restrict` changes the lists of existing nodes, and
creates the nodes of the table's parts, which only admins can create.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from bookie.errors import ConfigurationError, MetadataUnavailableError, UnauthorizedError
from bookie.metadata.model import ROOT
from bookie.metadata.rights import PARTS
from bookie.metadata.zookeeper.client import LostError, NoAnswerError, NotSentError
from bookie.metadata.zookeeper.nodes import NodeReader, refusal
from bookie.metadata.zookeeper.requests import (
    ACL,
    BAD_VERSION,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    CreateNode,
    DeleteNode,
    GetACL,
    GetChildren,
    GetData,
    Multi,
    NodeError,
    SetACL,
    SetData,
)
from bookie.metadata.zookeeper.session import ZooKeeperLink
from bookie.metadata.zookeeper.tree import ANY, KEPT, PARENT, Scope

_WINDOW = 64
"""The number of nodes for which requests are sent together."""


async def restrict(link: ZooKeeperLink, nodes: NodeReader, scope: Scope) -> int:
    """Make the nodes of all parts, give each node its list, and return how many lists changed.

    If this call was interrupted, call it again. Other processes give new nodes the lists of their
    own settings, even while this call runs.

    Raises:
        ConfigurationError: the settings name no users, or our user is not one of the admins.
        UnauthorizedError: our user may not change the list of a node.
        MetadataUnavailableError: ZooKeeper does not answer.
    """
    if not scope.has_kinds:
        raise ConfigurationError('this needs metadata.access = "kinds" and metadata.acl_admins')
    try:
        await link.make_root()
        await _require_admin(link, scope)
        for part in sorted(PARTS):
            await _keep_part(link, scope, part)
        return await _restrict_all(link, nodes, scope)
    except (LostError, NotSentError, NoAnswerError) as error:
        raise MetadataUnavailableError(
            "ZooKeeper stopped answering before all nodes had their lists; repeat this"
        ) from error


async def _require_admin(link: ZooKeeperLink, scope: Scope) -> None:
    """Check, on a temporary node with the new list, that our user may still change lists."""
    path = scope.path(f"/rights-{uuid.uuid4().hex}")
    acl = scope.acl(ROOT)
    mark = scope.mark
    try:
        await link.send(Multi([mark, CreateNode(path, PARENT, acl, ephemeral=True), mark])).answer
        try:
            await link.send(SetACL(path, acl)).answer
        finally:
            await link.send(Multi([mark, DeleteNode(path, ANY), mark])).answer
    except NodeError as error:
        if error.code != NO_AUTH:
            raise refusal(error, ROOT) from error
        raise ConfigurationError(
            "ZooKeeper does not count our user among metadata.acl_admins, or to the owners of the"
            " scope; nothing was changed"
        ) from error


async def _keep_part(link: ZooKeeperLink, scope: Scope, part: str) -> None:
    """Make the node of a part if it is missing, and mark it, so that it stays when it is empty."""
    path, mark = scope.path(part), scope.mark
    while True:
        try:
            data, stat = await link.send(GetData(path)).answer
            if data is not None and data != PARENT:
                return  # the node is a record, or is already marked
            await link.send(Multi([mark, SetData(path, KEPT, stat.version), mark])).answer
            return
        except NodeError as error:
            if error.code == BAD_VERSION:
                continue
            if error.code != NO_NODE:
                raise refusal(error, part) from error
        try:
            await link.send(Multi([mark, CreateNode(path, KEPT, scope.acl(part)), mark])).answer
            return
        except NodeError as error:
            if error.code != NODE_EXISTS:
                raise refusal(error, part) from error


async def _restrict_all(link: ZooKeeperLink, nodes: NodeReader, scope: Scope) -> int:
    changed, waiting = 0, [ROOT]
    while waiting:
        some, waiting = waiting[-_WINDOW:], waiting[:-_WINDOW]
        paths = [scope.path(key) for key in some]
        try:
            names = await nodes.ask(map(GetChildren, paths), link.deadline())
            acls = await nodes.ask(map(GetACL, paths), link.deadline())
            wrong = [
                SetACL(path, scope.acl(key))
                for key, path, found in zip(some, paths, acls, strict=True)
                if found is not None and not _are_equal(found[0], scope.acl(key))
            ]
            await nodes.ask(wrong, link.deadline())
        except NodeError as error:
            raise UnauthorizedError(
                f"ZooKeeper does not let us restrict what lies below {some[0]}"
            ) from error
        changed += len(wrong)
        for key, below in zip(some, names, strict=True):
            waiting += [f"{key.rstrip('/')}/{name}" for name in below or ()]
    return changed


def _are_equal(found: Sequence[ACL], wanted: Sequence[ACL]) -> bool:
    return {(one.id, one.perms) for one in found} == {(one.id, one.perms) for one in wanted}
