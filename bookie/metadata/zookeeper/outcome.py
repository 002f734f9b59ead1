"""Receipts show the outcome of a write whose answer from the server was lost.

If a connection breaks between a write and its answer, the outcome of the write is unknown. Reading
the record does not help: another client may have written the same or a later value. So each write
carries a *receipt*: one more operation in its transaction. The receipt writes a mark, which is used
only once, into a small ephemeral node of the store. After a reconnection the store reads that node.
If the node has the mark, the write was done, and the node has the zxid of the write. If the node
lacks the mark, the write will never be done. The reason: when a session has moved to a new
connection, servers refuse its requests from older connections.

A store has up to `RECEIPTS_MAX` receipts. Each receipt belongs to one write until the outcome of
the write is known. So the number of receipts limits the number of writes under way. After a write
that was refused or cancelled, the next write may use its receipt. Receipts lie outside of all
scopes, where no store lists, watches or deletes receipts. The name of a receipt's node begins with
the id of its session. ZooKeeper deletes the receipt when the session ends.

Before the store reads a receipt, it does another write, the barrier. The barrier needs a quorum of
servers, so a deposed leader cannot answer it. Each server handles the barrier after all requests
that were sent before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bookie.errors import BookieError, MetadataUnavailableError, SessionLostError, UnauthorizedError
from bookie.metadata.model import Put
from bookie.metadata.zookeeper.client import (
    LostError,
    NoAnswerError,
    NotSentError,
    SessionEndedError,
)
from bookie.metadata.zookeeper.requests import (
    BAD_VERSION,
    NO_AUTH,
    NO_CHILDREN_FOR_EPHEMERALS,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    OPEN_ACL_UNSAFE,
    CreateNode,
    GetData,
    Multi,
    MultiRefusedError,
    NodeError,
    NodeOperation,
    SetData,
    ZnodeStat,
)
from bookie.metadata.zookeeper.session import ZooKeeperLink
from bookie.metadata.zookeeper.tree import HOME, LASTING_ACL

RECEIPTS_MAX = 128
"""The most writes that run at the same time; more writes wait."""

CONFLICTS = {BAD_VERSION, NO_NODE, NODE_EXISTS, NOT_EMPTY, NO_CHILDREN_FOR_EPHEMERALS}
"""Error codes with which the server refuses a write because our view of the tree is outdated."""

RECEIPTS = f"{HOME}/receipts"
"""The parent node of all sessions' receipts; a receipt shows if a write was done."""

_BARRIER = "barrier"


class OutdatedError(Exception):
    """Nothing was written, because our view of the nodes was outdated: read them again."""


class Committed(NamedTuple):
    """A write that was done, with its results."""

    results: Sequence[Any] | None
    """The answer to the `Multi` request; None if the answer was lost."""

    stat: ZnodeStat
    """The stat of the receipt; its `mzxid` and `mtime` are the zxid and the time of the write."""

    session: int

    def stat_of_new(self, put: Put) -> ZnodeStat:
        """Compute the stat of the node that this write created for `put`."""
        zxid, time_ms = self.stat.mzxid, self.stat.mtime
        owner = self.session if put.ephemeral else 0
        return ZnodeStat(zxid, zxid, time_ms, time_ms, 0, 0, 0, owner, len(put.value), 0, zxid)


class Receipts:
    """Commits the writes of one store, each with a receipt."""

    def __init__(self, link: ZooKeeperLink) -> None:
        self.found_done = 0
        """The number of writes so far whose answer was lost, but which were done."""
        self.commits = 0
        """The number of calls of `commit` so far, including calls whose write was refused."""
        self._link = link
        self._free: list[str] = []
        self._count = 0
        self._writes = asyncio.Semaphore(RECEIPTS_MAX)
        self._session = 0
        self._written: dict[str, str] = {}
        """Receipt name → the path of its node, which exists in the session `_session`."""
        self._creates: dict[str, asyncio.Future[Any]] = {}
        """Receipt name → the answer to the latest create of its node."""
        self._marks = 0

    async def commit(
        self,
        operations: Sequence[NodeOperation],
        deadline: float,
        losses: int,
        connection: int | None = None,
        may_hold: Callable[[], bool] = lambda: True,
    ) -> Committed:
        """Do all operations at once; return when it is certain that they were done.

        `losses` is the value of `ZooKeeperLink.losses` when the caller began; if a session was lost
        since then, what the caller knows is out of date. If the operations are based on what one
        connection has shown, `connection` is its number, and no other connection may send the
        operations. `may_hold` is called right before the operations are sent; it returns False if
        an event shows that this knowledge is outdated.

        Raises:
            OutdatedError: there is a new connection, or an event changed the facts; nothing was
                done.
            MultiRefusedError: nothing was done, because the operation at `index` failed.
            SessionLostError: the session ended; nothing was done, or only ephemeral nodes were
                created, which ended with the session.
            MetadataUnavailableError: the server did not answer until `deadline`. If the error's
                text does not say that the outcome is unknown, nothing was done.
        """
        name = await self._take(deadline)
        self.commits += 1
        try:
            return await self._commit(operations, name, deadline, losses, connection, may_hold)
        finally:
            self._give_back(name)

    async def _commit(
        self,
        operations: Sequence[NodeOperation],
        name: str,
        deadline: float,
        losses: int,
        connection: int | None,
        may_hold: Callable[[], bool],
    ) -> Committed:
        self._marks += 1
        mark = b"%d" % self._marks
        while True:
            session = await self._link.usable(deadline)
            if self._link.losses != losses:
                raise SessionLostError(
                    "the session with the metadata store ended before the write; nothing was done"
                )
            if connection not in (None, self._link.connection) or not may_hold():
                raise OutdatedError
            receipt = self._receipt(session, name, mark)
            try:
                multi = Multi([*operations, receipt])
                results = await self._link.send(multi, session, connection).answer
            except NotSentError:
                _require_time(deadline)
                continue
            except LostError as lost:
                try:
                    if isinstance(lost, SessionEndedError):
                        raise _ended(operations)
                    stat = await self._find_out(session, name, mark, operations, deadline)
                except (MetadataUnavailableError, UnauthorizedError) as error:
                    raise MetadataUnavailableError(
                        f"whether the write was done is unknown: {error}"
                    ) from error
                if stat is None:
                    _require_time(deadline)
                    continue
                self.found_done += 1
                return Committed(None, stat, session)
            except NoAnswerError as error:
                raise MetadataUnavailableError(
                    "the metadata store did not answer; whether the write was done is unknown"
                ) from error
            except MultiRefusedError as refused:
                if refused.index < len(operations):
                    raise
                await self._mend(session, name, refused.code)
                _require_time(deadline)
                continue
            self._note(session, name)
            return Committed(results[:-1], results[-1], session)

    async def _find_out(
        self,
        session: int,
        name: str,
        mark: bytes,
        operations: Sequence[NodeOperation],
        deadline: float,
    ) -> ZnodeStat | None:
        """Return the receipt's stat if the write was done; None if it can never be done."""
        while True:
            if await self._link.usable(deadline) != session:
                raise _ended(operations)
            self._marks += 1
            behind = self._receipt(session, _BARRIER, b"%d" % self._marks)
            barrier = self._link.send(Multi([behind]), session)
            receipt = self._link.send(GetData(self._path(session, name)), session)
            await asyncio.wait([barrier.answer, receipt.answer])
            error, missing = barrier.answer.exception(), receipt.answer.exception()
            if isinstance(error, MultiRefusedError):
                await self._mend(session, _BARRIER, error.code)
            elif error is None:
                self._note(session, _BARRIER)
                if isinstance(missing, NodeError) and missing.code == NO_NODE:
                    return None
                if missing is None:
                    data, stat = receipt.answer.result()
                    self._note(session, name)
                    return stat if data == mark else None
            elif isinstance(error, NoAnswerError):
                raise MetadataUnavailableError("the metadata store did not answer") from error
            _require_time(deadline)

    def _receipt(self, session: int, name: str, mark: bytes) -> NodeOperation:
        """Return the operation that writes a mark; first create the receipt's node if necessary."""
        path = self._written.get(name) if session == self._session else None
        if path is None:
            path = self._path(session, name)
            create = CreateNode(path, b"", OPEN_ACL_UNSAFE, ephemeral=True)
            self._creates[name] = self._link.send(create, session).answer
        return SetData(path, mark, -1)

    def _note(self, session: int, name: str, *, exists: bool = True) -> None:
        if session != self._session:
            # The receipts of an older session ended with that session.
            self._session, self._written = session, {}
        if not exists:
            self._written.pop(name, None)
        elif name not in self._written:
            self._written[name] = self._path(session, name)

    def _path(self, session: int, name: str) -> str:
        return f"{RECEIPTS}/{session & 0xFFFFFFFFFFFFFFFF:016x}-{name}"

    async def _mend(self, session: int, name: str, code: int) -> None:
        """Make another attempt possible after the server refused to write a receipt's mark."""
        if code == NO_NODE:
            self._note(session, name, exists=False)
            if await self._is_create_denied(name):
                raise _refusal(NO_AUTH)
            # Do not wait for this answer: if `HOME` cannot be created, the next request fails.
            self._link.send(CreateNode(HOME, b"", LASTING_ACL))
            try:
                await self._link.send(CreateNode(RECEIPTS, b"", LASTING_ACL)).answer
            except NodeError as error:
                if error.code != NODE_EXISTS:
                    raise _refusal(error.code) from error
            except (NotSentError, LostError, NoAnswerError):
                return  # the next attempt repeats these requests
        else:
            raise _refusal(code)

    async def _is_create_denied(self, name: str) -> bool:
        """True if we have no right to create the receipt, so that every attempt would fail."""
        create = self._creates.pop(name, None)
        if create is None:
            return False
        await asyncio.wait([create])
        error = None if create.cancelled() else create.exception()
        return isinstance(error, NodeError) and error.code == NO_AUTH

    # ---- receipts in use

    async def _take(self, deadline: float) -> str:
        try:
            async with asyncio.timeout_at(deadline):
                await self._writes.acquire()
        except TimeoutError as error:
            raise MetadataUnavailableError("the metadata store does not answer") from error
        if self._free:
            return self._free.pop()
        self._count += 1
        return str(self._count)

    def _give_back(self, name: str) -> None:
        self._free.append(name)
        self._writes.release()


def _require_time(deadline: float) -> None:
    """Raise `MetadataUnavailableError` if `deadline` (the loop's time) has passed."""
    if asyncio.get_running_loop().time() >= deadline:
        raise MetadataUnavailableError("the metadata store did not do the write in time")


def _refusal(code: int) -> BookieError:
    if code in (NO_AUTH, NO_NODE):
        return UnauthorizedError(f"ZooKeeper does not let us create nodes below {RECEIPTS}")
    return MetadataUnavailableError(f"ZooKeeper refuses a receipt in {RECEIPTS}: error {code}")


def _ended(operations: Sequence[NodeOperation]) -> Exception:
    """Return the error for a write whose session ended before the answer came."""
    if operations and all(isinstance(o, CreateNode) and o.ephemeral for o in operations):
        # Even if the write was done, its ephemeral records ended with the session.
        return SessionLostError("the session with the metadata store ended; nothing was written")
    return MetadataUnavailableError(
        "the session with the metadata store ended before the answer to a write came"
    )
