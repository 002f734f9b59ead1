"""Carries out transactions of a store as ZooKeeper transactions.

If the cache has all needed nodes, the writer sends a transaction at once. If the cache lacks a
node, the writer first reads all needed nodes and evaluates the transaction. ZooKeeper refuses a
create whose parents are missing; then the writer makes the parents and tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from bookie.env import boot_time_seconds
from bookie.errors import MetadataUnavailableError
from bookie.metadata.evaluate import evaluate
from bookie.metadata.model import Delete, Operation, Put, Stat, parent_of
from bookie.metadata.zookeeper.cached import KnownRecords
from bookie.metadata.zookeeper.client import LostError, NoAnswerError, NotSentError
from bookie.metadata.zookeeper.nodes import SEQUENCE_MAX, NodeReader, refusal
from bookie.metadata.zookeeper.outcome import CONFLICTS, Committed, OutdatedError, Receipts
from bookie.metadata.zookeeper.parents import Parents
from bookie.metadata.zookeeper.requests import (
    NO_NODE,
    CreateNode,
    MultiRefusedError,
    NodeError,
    ZnodeStat,
)
from bookie.metadata.zookeeper.session import ZooKeeperLink
from bookie.metadata.zookeeper.tree import (
    REMOVALS,
    Plan,
    Planner,
    Scope,
    View,
    overtaken_stat,
    stat_of,
)

_NO_NUMBER = 10**19
"""A placeholder for the number that the server will choose; the server's numbers are smaller."""

_FULL_PARENTS_MAX = 1000
"""The most parents that are remembered in `Writer._full`."""


class Writer:
    """Writes the transactions of one open store."""

    def __init__(
        self,
        link: ZooKeeperLink,
        scope: Scope,
        nodes: NodeReader,
        parents: Parents,
        receipts: Receipts,
        known: KnownRecords,
    ) -> None:
        self._link = link
        self._scope = scope
        self._nodes = nodes
        self._parents = parents
        self._receipts = receipts
        self._known = known
        self._full: dict[str, None] = {}
        """Parents that have nearly used up ZooKeeper's numbers for sequential children."""

    async def write(
        self, operations: Sequence[Operation], *, with_parents: bool = False
    ) -> list[Stat | None]:
        """Carry out a transaction; return results like `MetadataStore.transaction`.

        Args:
            operations: at least one operation; the caller has called `require_representable`.
            with_parents: if True, deletes may also remove nodes that are only parents.
        """
        link = self._link
        deadline, losses = link.deadline(), link.losses
        numbered = {parent_of(o.key) for o in operations if isinstance(o, Put) and o.sequential}
        is_known = self._full.keys().isdisjoint(numbered)
        while True:
            session, view = await link.usable(deadline), None
            connection = link.connection
            if is_known:
                view = self._known.view(operations, session)
            if view is None:
                view = await self._evaluated(operations, deadline, with_parents=with_parents)
            begun_at = boot_time_seconds()
            plan = Planner(self._scope, operations, view, session).plan()
            if not self._parents.all_kept(plan.numbered_below):
                await self._parents.make(plan.creates)
            try:
                committed = await self._receipts.commit(
                    plan.operations,
                    deadline,
                    losses,
                    connection,
                    partial(self._known.may_hold, view),
                )
            except (MultiRefusedError, OutdatedError) as refused:
                made = await self._take_refusal(refused, plan)
                is_known = is_known and made
                if made:
                    deadline = link.deadline()
                if asyncio.get_running_loop().time() >= deadline:
                    raise MetadataUnavailableError(
                        f"others keep writing to {operations[0].key}"
                    ) from refused
                continue
            link.tell_written(begun_at)
            stats = await self._finish(operations, plan, committed)
            emptied = {parent_of(o.key): None for o in operations if isinstance(o, Delete)}
            await self._parents.remove_empty(emptied)
            return stats

    async def _evaluated(
        self, operations: Sequence[Operation], deadline: float, *, with_parents: bool
    ) -> View:
        """Read and return the current nodes; raise the error of the first operation that fails."""
        try:
            view = await self._nodes.view(operations, deadline)
        except NodeError as error:
            raise refusal(error, operations[0].key) from error
        evaluated = view
        if with_parents:
            nodes = view.nodes.items()
            evaluated = View({key: node and node._replace(is_record=True) for key, node in nodes})
        session = self._link.session.to_bytes(8, "big", signed=True)
        evaluate(operations, evaluated, session, _NO_NUMBER)
        return view

    async def _take_refusal(self, refused: MultiRefusedError | OutdatedError, plan: Plan) -> bool:
        """Make the nodes whose absence caused the refusal; return False if it had another reason.

        Raises:
            MetadataError: the refusal is final: another attempt cannot succeed.
        """
        if isinstance(refused, OutdatedError):
            return False
        operation = plan.operations[refused.index]
        if refused.code not in CONFLICTS:
            raise refusal(NodeError(refused.code), self._scope.key(operation.path)) from refused
        if refused.code != NO_NODE:
            return False
        if operation.path == REMOVALS:
            await self._make_guard()
        elif isinstance(operation, CreateNode) or operation.path == self._scope.root:
            await self._parents.make(plan.creates)
        else:
            return False
        return True

    async def _make_guard(self) -> None:
        try:
            await self._parents.make_guard()
        except (LostError, NotSentError):
            return  # the next attempt makes it, if it is still missing
        except NoAnswerError as error:
            raise MetadataUnavailableError("the metadata store does not answer") from error
        except NodeError as error:
            raise refusal(error, REMOVALS) from error

    # ---- after it was done

    async def _finish(
        self, operations: Sequence[Operation], plan: Plan, committed: Committed
    ) -> list[Stat | None]:
        stats: list[Stat | None] = []
        for operation, index in zip(operations, plan.results, strict=True):
            if not isinstance(operation, Put):
                stats.append(None)
                if isinstance(operation, Delete):
                    self._known.forget(operation.key)  # the event of the deletion may come later
                continue
            assert index is not None, "every put has a result"
            stat = await self._written(operation, index, plan, committed)
            stats.append(stat)
            if operation.sequential:
                self._note_number(operation, stat.key)
        return stats

    def _note_number(self, put: Put, key: str) -> None:
        if int(key[len(put.key) :]) >= SEQUENCE_MAX:
            self._full[parent_of(put.key)] = None  # the next put reads the parent and is refused
            if len(self._full) > _FULL_PARENTS_MAX:
                del self._full[next(iter(self._full))]

    async def _written(self, put: Put, index: int, plan: Plan, committed: Committed) -> Stat:
        key, stat = put.key, None
        if committed.results is not None:
            result = committed.results[index]
            if isinstance(result, ZnodeStat):
                stat = result
            else:
                key, stat = self._scope.key(result), committed.stat_of_new(put)
        else:
            zxid = committed.stat.mzxid
            found = await self._nodes.stat_written(put, zxid, self._link.deadline())
            if found is None:
                return overtaken_stat(put, plan.operations[index], zxid)
            key, stat = found
        self._known.learn(key, stat)
        return stat_of(key, stat, committed.session)
