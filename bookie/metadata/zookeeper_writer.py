"""Transactions as the store does them: tried with what is known, else read and judged first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from bookie.env import boot_time_seconds
from bookie.errors import BookieError, KeyHasChildrenError, MetadataUnavailableError
from bookie.metadata.judge import judge
from bookie.metadata.keys import parent_of
from bookie.metadata.records import TRANSACTION_OPERATIONS_MAX, Delete, Operation, Put, Stat
from bookie.metadata.zookeeper_births import make_counter
from bookie.metadata.zookeeper_known import KnownRecords
from bookie.metadata.zookeeper_nodes import NodeReader, refusal
from bookie.metadata.zookeeper_numbers import BLOCK, NO_BLOCK, NumberBlocks
from bookie.metadata.zookeeper_outcome import CONFLICTS, Committed, OutdatedError, Receipts
from bookie.metadata.zookeeper_parents import VirtualParents
from bookie.metadata.zookeeper_session import ZooKeeperLink
from bookie.metadata.zookeeper_thread import NodeError
from bookie.metadata.zookeeper_tree import Plan, Planner, Scope, View, overtaken_stat, stat_of
from bookie.metadata.zookeeper_wire import NO_NODE, MultiRefusedError, ZnodeStat

_NO_NUMBER = 10**19
"""Stands for the number that the server is going to give; beyond all that it can."""

_SWEEPS_MAX = 3


class Writer:
    """The writes of one open store."""

    def __init__(
        self,
        link: ZooKeeperLink,
        scope: Scope,
        nodes: NodeReader,
        parents: VirtualParents,
        receipts: Receipts,
        known: KnownRecords,
        numbers: NumberBlocks,
    ) -> None:
        self._link = link
        self._scope = scope
        self._nodes = nodes
        self._parents = parents
        self._receipts = receipts
        self._known = known
        self._numbers = numbers

    async def write(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """As `MetadataStore.transaction`; there is at least one operation, all representable."""
        link = self._link
        deadline, losses = link.deadline(), link.losses
        is_known = True
        is_numbered = any(isinstance(o, Put) and o.sequential for o in operations)
        while True:
            session, view = await link.usable(deadline), None
            connection = link.connection
            if is_known:
                view = self._known.view(operations, self._parents.kept, session)
            if view is None:
                view = await self._judged(operations, deadline)
            begun_at = boot_time_seconds()
            block = await self._numbers.present(deadline) if is_numbered else NO_BLOCK
            plan = Planner(self._scope, operations, view, session, block.prefix).plan()
            try:
                committed = await self._receipts.commit(
                    [*plan.operations, *block.checks], deadline, losses, connection
                )
            except (MultiRefusedError, OutdatedError) as refused:
                if is_numbered:
                    self._numbers.forget()
                if isinstance(refused, MultiRefusedError) and (
                    await self._take_refusal(refused, plan)
                ):
                    deadline = link.deadline()
                if asyncio.get_running_loop().time() >= deadline:
                    raise MetadataUnavailableError(
                        f"others keep writing to {operations[0].key}"
                    ) from refused
                is_known = False
                continue
            link.tell_written(begun_at)
            return await self._finish(operations, plan, committed)

    async def _judged(self, operations: Sequence[Operation], deadline: float) -> View:
        """What there is now, in which the operations can be done; else the error of the first."""
        sweeps = 0
        while True:
            try:
                view = await self._nodes.view(operations, deadline)
                session = self._link.session.to_bytes(8, "big", signed=True)
                try:
                    judge(operations, view, session, _NO_NUMBER)
                except KeyHasChildrenError:
                    keys = [o.key for o in operations if view.has_children(o.key)]
                    if sweeps == _SWEEPS_MAX or not await self._parents.sweep(keys, deadline):
                        raise
                    sweeps += 1
                    continue
            except NodeError as error:
                raise refusal(error, operations[0].key) from error
            return view

    async def leave(self) -> None:
        """Delete what would go with the session, and parents that it leaves empty.

        Best effort: the session ends in any case, and others hide and remove what they find empty.
        """
        if not self._link.is_up:
            return
        keys = self._known.owned_by(self._link.session)
        for start in range(0, len(keys), TRANSACTION_OPERATIONS_MAX):
            some = keys[start : start + TRANSACTION_OPERATIONS_MAX]
            with suppress(BookieError):
                await self.write([Delete(key, version) for key, version in some])
        await self._parents.tidy_up()

    async def _take_refusal(self, refused: MultiRefusedError, plan: Plan) -> bool:
        """Return if the transaction may go through when it is made again of what there is.

        Returns whether something was made for it first, as once on every ensemble.
        """
        if refused.index >= len(plan.operations):
            return False  # the block of numbers is another one
        path = plan.operations[refused.index].path
        if refused.code not in CONFLICTS:
            is_counter = refused.index < plan.counters
            name = path if is_counter else self._scope.key(path)
            raise refusal(NodeError(refused.code), name) from refused
        if refused.index >= plan.counters:
            return False
        self._known.births.forget(path)
        if refused.code != NO_NODE:
            return False
        await make_counter(self._link, path)
        return True

    async def _finish(
        self, operations: Sequence[Operation], plan: Plan, committed: Committed
    ) -> list[Stat | None]:
        if committed.results is not None:
            for counter in range(plan.counters):
                written = committed.results[counter]
                if isinstance(written, ZnodeStat):
                    self._known.births.learn(plan.operations[counter].path, written.version)
        stats: list[Stat | None] = []
        for operation, index in zip(operations, plan.results, strict=True):
            if not isinstance(operation, Put):
                stats.append(None)
                if isinstance(operation, Delete):
                    self._known.forget(operation.key)
                    self._parents.note_deletion(operation.key)  # the event may come later
                    self._parents.tidy(parent_of(operation.key))
                continue
            assert index is not None, "every put has a result"
            stat = await self._written(operation, index, plan, committed)
            stats.append(stat)
            if operation.sequential:
                number = int(stat.key[len(operation.key) :]) % BLOCK
                self._parents.note_kept(parent_of(operation.key), number)
        return stats

    async def _written(self, put: Put, index: int, plan: Plan, committed: Committed) -> Stat:
        key, stat = put.key, None
        if committed.results is not None:
            result = committed.results[index]
            if isinstance(result, ZnodeStat):
                stat = result
            else:
                path, stat = result
                key = self._scope.key(path)
        else:
            found = await self._nodes.stat_written(put, committed.zxid, self._link.deadline())
            if found is None:
                return overtaken_stat(put, plan.operations[index], committed.zxid)
            key, stat = found
        self._known.learn(key, stat)
        return stat_of(key, stat, committed.session)
