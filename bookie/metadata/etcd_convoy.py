"""Writes that wait while others are under way, and then travel together in one Txn.

Each is a Txn of its own inside of it, with its own compares and its own outcome; they share the
receipt, the message and one entry in etcd's log. No write waits for another unless enough are under
way, and no two of a convoy have anything to do with each other: etcd decides about all of them by
the state before it. Their changes are one commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from bookie._pb import etcd_pb2 as pb
from bookie.errors import BookieError, MetadataClosedError
from bookie.metadata import etcd_messages as messages
from bookie.metadata.etcd_receipts import Receipt, mark
from bookie.metadata.etcd_transactions import Transaction, session_lost
from bookie.metadata.keys import ancestors
from bookie.metadata.records import Stat

UNDER_WAY_MAX = 4
"""Light writes and convoys under way at once; more writes wait for one another."""

RIDERS_MAX = 32
"""Writes in one convoy."""

Results: TypeAlias = list[Stat | None]


@dataclass(slots=True, eq=False)
class Rider:
    """One write, and where its results are waited for."""

    transaction: Transaction
    future: asyncio.Future[Results]

    def arrive(self, get: Callable[[], Results | None]) -> bool:
        """Take what came of it; False = it has to go again."""
        try:
            results = get()
        except BookieError as error:
            self.fail(error)
            return True
        if results is not None and not self.future.done():
            self.future.set_result(results)
        return results is not None

    def fail(self, error: BookieError) -> None:
        """Raise `error` where the results are waited for."""
        if not self.future.done():
            self.future.set_exception(error)


class Convoy:
    """Several transactions as one, for whoever makes a Txn of it, settles it and makes it again."""

    def __init__(self, riders: list[Rider]) -> None:
        self.riders = riders

    def request(self, receipt: Receipt) -> pb.TxnRequest:
        """See `Transaction.request`."""
        parts = [rider.transaction.part(receipt.lease) for rider in self.riders]
        return pb.TxnRequest(
            compare=[messages.mod(receipt.key, receipt.revision)],
            success=[mark(receipt), *parts],
            failure=[messages.stat(receipt.key)],
        )

    def take(self, receipt: Receipt, response: Any) -> Results | None:
        """Let those arrive that are done; None = some have to go again."""
        if not response.succeeded:
            raise session_lost()
        receipt.revision = revision = response.header.revision
        parts = [part.response_txn for part in response.responses[1:]]
        return self._arrive(lambda transaction, part: transaction.take_part(revision, part), parts)

    def confirmation(self, revision: int) -> pb.TxnRequest:
        """See `Transaction.confirmation`."""
        return pb.TxnRequest(
            success=[rider.transaction.part_confirmation(revision) for rider in self.riders]
        )

    def confirmed(self, receipt: Receipt, response: Any) -> Results | None:
        """As `take`, by what `confirmation` read."""
        revision = receipt.revision
        parts = [part.response_txn for part in response.responses]
        return self._arrive(
            lambda transaction, part: transaction.confirm_part(revision, part), parts
        )

    def _arrive(
        self, get: Callable[[Transaction, Any], Results | None], parts: list[Any]
    ) -> Results | None:
        again = []
        for rider, part in zip(self.riders, parts, strict=True):
            if not rider.arrive(lambda r=rider, p=part: get(r.transaction, p)):  # type: ignore[misc]
                again.append(rider)
        self.riders = again
        return None if again else []


class Convoys:
    """The light writes of one store.

    Args:
        tasks: where convoys run.
        transact: carries a transaction or a convoy out, however often its Txn has to be made.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        transact: Callable[[Transaction | Convoy], Awaitable[Results]],
    ) -> None:
        self._tasks = tasks
        self._transact = transact
        self._under_way = 0
        self._waiting: deque[Rider] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def carry(self, transaction: Transaction) -> Results:
        """Carry out a light transaction, alone or with others.

        A caller that is cancelled while it waits for others does not take the write back.
        """
        if self._under_way >= UNDER_WAY_MAX or self._waiting:
            rider = Rider(transaction, asyncio.get_running_loop().create_future())
            self._waiting.append(rider)
            return await rider.future
        self._under_way += 1
        try:
            return await self._transact(transaction)
        finally:
            self._under_way -= 1
            self._depart()

    def close(self) -> None:
        """Cancel what is under way; what waits raises MetadataClosedError."""
        for task in self._running:
            task.cancel()
        for rider in self._waiting:
            rider.fail(MetadataClosedError("the metadata store is closed"))
        self._waiting.clear()

    def _depart(self) -> None:
        while self._waiting and self._under_way < UNDER_WAY_MAX:
            self._under_way += 1
            task = self._tasks.create_task(self._travel(Convoy(self._board())))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _board(self) -> list[Rider]:
        """Riders from the front of the line that have nothing to do with each other."""
        riders: list[Rider] = []
        stay: list[Rider] = []
        keys: set[str] = set()
        above: set[str] = set()
        while self._waiting and len(riders) < RIDERS_MAX:
            rider = self._waiting.popleft()
            key = rider.transaction.key
            higher = ancestors(key)
            if rider.future.cancelled():
                continue
            if key in keys or key in above or not keys.isdisjoint(higher):
                stay.append(rider)
                continue
            keys.add(key)
            above.update(higher)
            riders.append(rider)
        self._waiting.extendleft(reversed(stay))
        return riders

    async def _travel(self, convoy: Convoy) -> None:
        error: BookieError = MetadataClosedError("the metadata store is closed")
        try:
            if convoy.riders:
                await self._transact(convoy)
        except BookieError as raised:
            error = raised
        finally:
            for rider in convoy.riders:
                rider.fail(error)
            self._under_way -= 1
            self._depart()
