"""Writes with an outcome that is known even when the answer is lost.

A connection that breaks between a write and its answer leaves the outcome unknown. Reading the
record does not help: another client may have written the same value, or the next one. So each
write carries a *receipt*: one more operation in its transaction. It writes a mark, which is used
once, into a small ephemeral node of the store. After a reconnection the store reads that node. With
the mark the write was done, and the node's zxid is that of the write. Without the mark it will
never be done: a server refuses what a session sent before it moved.

Receipts are a few nodes. Each belongs to one write until its outcome is known, which also bounds
the writes under way. A refused or cancelled write gives its receipt to the next one. Receipts lie
outside of all scopes, where no store lists, watches or deletes them. Their names begin with the
number of their session, and they go with it.

Before a receipt is read, the store makes a write of its own, the barrier. It needs the quorum, so a
deposed leader cannot answer it. On every server it comes after all that was sent before.
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
    ACL,
    BAD_VERSION,
    NO_AUTH,
    NO_CHILDREN_FOR_EPHEMERALS,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    OPEN_ACL_UNSAFE,
    CreateNode,
    GetData,
    Id,
    Multi,
    MultiRefusedError,
    NodeError,
    NodeOperation,
    Permissions,
    SetData,
    ZnodeStat,
)
from bookie.metadata.zookeeper.session import ZooKeeperLink
from bookie.metadata.zookeeper.tree import HOME

RECEIPTS_MAX = 128
"""Writes under way at once; more wait."""

CONFLICTS = {BAD_VERSION, NO_NODE, NODE_EXISTS, NOT_EMPTY, NO_CHILDREN_FOR_EPHEMERALS}
"""Codes of refusals that say: the view of the tree is out of date."""

LASTING_ACL = [ACL(Permissions.READ | Permissions.CREATE, Id("world", "anyone"))]
"""Access control of a node below which all clients may create nodes. None may delete the node."""

RECEIPTS = f"{HOME}/receipts"
"""The node below which the receipts of all sessions lie."""

_BARRIER = "barrier"


class OutdatedError(Exception):
    """Nothing was done, because the write rests on a view that is out of date."""


class Committed(NamedTuple):
    """A write that was done."""

    results: Sequence[Any] | None
    """The answer of the `Multi`; None if it was lost."""

    stat: ZnodeStat
    """The stat of the receipt, with the write's place among all commits and its time."""

    session: int

    def stat_of_new(self, put: Put) -> ZnodeStat:
        """The stat of a node that it created for `put`."""
        zxid, time_ms = self.stat.mzxid, self.stat.mtime
        owner = self.session if put.ephemeral else 0
        return ZnodeStat(zxid, zxid, time_ms, time_ms, 0, 0, 0, owner, len(put.value), 0, zxid)


class Receipts:
    """The receipts of one store."""

    def __init__(self, link: ZooKeeperLink) -> None:
        self.found_done = 0
        """Writes so far that were done although their answer was lost."""
        self.commits = 0
        """Attempts so far, refused ones included."""
        self._link = link
        self._free: list[str] = []
        self._count = 0
        self._writes = asyncio.Semaphore(RECEIPTS_MAX)
        self._session = 0
        self._written: dict[str, str] = {}
        """The paths of the receipts that exist, as ephemeral nodes of `_session`."""
        self._marks = 0

    async def commit(
        self,
        operations: Sequence[NodeOperation],
        deadline: float,
        losses: int,
        connection: int | None = None,
        may_hold: Callable[[], bool] = lambda: True,
    ) -> Committed:
        """Do all operations at once; returns when that is certain.

        `losses` is `ZooKeeperLink.losses` at the time when the caller began. If a session was lost
        since then, what the caller knows is out of date. If the operations rest on what one
        connection told, `connection` is its number, and they are sent through no other. `may_hold`
        is called right before they are sent. It is False if an event has refuted what they rest on.

        Raises:
            OutdatedError: there is another connection now, or an event came; nothing was done.
            MultiRefusedError: nothing was done, because of the operation at its index.
            SessionLostError: the session ended; nothing was done, or what was done went with it.
            MetadataUnavailableError: no answer until `deadline`. Either its text says that
                the outcome is unknown, or nothing was done.
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
        """The receipt's stat if the unanswered write was done; None if it never will be."""
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
        """The write of a mark. If its node may be missing, a create is sent first."""
        path = self._written.get(name) if session == self._session else None
        if path is None:
            path = self._path(session, name)
            self._link.send(CreateNode(path, b"", OPEN_ACL_UNSAFE, ephemeral=True), session)
        return SetData(path, mark, -1)

    def _note(self, session: int, name: str, *, exists: bool = True) -> None:
        if session != self._session:
            # The receipts of an older session went with it.
            self._session, self._written = session, {}
        if not exists:
            self._written.pop(name, None)
        elif name not in self._written:
            self._written[name] = self._path(session, name)

    def _path(self, session: int, name: str) -> str:
        return f"{RECEIPTS}/{session & 0xFFFFFFFFFFFFFFFF:016x}-{name}"

    async def _mend(self, session: int, name: str, code: int) -> None:
        """Correct our state of a receipt: the server refused its write."""
        if code == NO_NODE:
            self._note(session, name, exists=False)
            self._link.send(CreateNode(HOME, b""))  # the next answer tells whether it exists
            try:
                await self._link.send(CreateNode(RECEIPTS, b"", LASTING_ACL)).answer
            except NodeError as error:
                if error.code != NODE_EXISTS:
                    raise _refusal(error.code) from error
            except (NotSentError, LostError, NoAnswerError):
                return  # the next attempt asks again
        else:
            raise _refusal(code)

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
    """Raise `MetadataUnavailableError` if it is too late, by the loop's clock, to try again."""
    if asyncio.get_running_loop().time() >= deadline:
        raise MetadataUnavailableError("the metadata store did not do the write in time")


def _refusal(code: int) -> BookieError:
    if code in (NO_AUTH, NO_NODE):
        return UnauthorizedError(f"ZooKeeper does not let us create nodes below {RECEIPTS}")
    return MetadataUnavailableError(f"ZooKeeper refuses a receipt in {RECEIPTS}: error {code}")


def _ended(operations: Sequence[NodeOperation]) -> Exception:
    """The error of a write that may have been the last one of its session."""
    if operations and all(isinstance(o, CreateNode) and o.ephemeral for o in operations):
        # If it was done, the records went with their session.
        return SessionLostError("the session with the metadata store ended; nothing was written")
    return MetadataUnavailableError(
        "the session with the metadata store ended before the answer to a write came"
    )
