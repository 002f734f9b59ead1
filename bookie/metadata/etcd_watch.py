"""Changes as etcd tells them: one watch on the whole scope, in commit order, without a gap.

All events of one revision are of one transaction and make one `Commit`; a response that etcd split
(``fragment``) is taken when its last part is there. A broken stream is resumed behind the last
revision delivered, so a reconnection shows nothing and reads nothing. Only where etcd
has forgotten that revision (compaction), or answers as another cluster, is continuity lost: then
`Resync` is due, and the watch goes on from the present.

A cluster that was restored from a backup looks like the same one, at an older revision; a watch
from the revision behind the last one delivered would wait there in silence. A stream says at its
beginning where its server is. If that is before what was seen, a read tells a server that lags from
a cluster that went back; that, too, is a `Resync`. A cluster that went back may have come further
again than it was. So a stream begins with the last commit that was delivered, not behind it: a
cluster that does not tell of it again, in the same words, has another history. (Where that commit
only deleted, or etcd has forgotten it but nothing behind it, there is nothing to recognise, and
another history goes unnoticed that is as long as the former one.)

A stream can die without a sign. Whenever one was silent for the time of an attempt, it is asked for
its progress; one that does not answer that either is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from grpc import aio

from bookie._pb import etcd_pb2 as pb
from bookie.errors import BookieError, MetadataUnavailableError
from bookie.metadata.changes import ChangeKind, Commit, WatchEvent
from bookie.metadata.etcd_client import (
    RANGE,
    WATCH,
    CompactedError,
    Endpoint,
    EtcdClient,
    LostReplyError,
    StaleTokenError,
)
from bookie.metadata.etcd_keys import Scope
from bookie.metadata.keys import ROOT


@dataclass(frozen=True, slots=True)
class Position:
    """Where a cluster is: which one, at which revision, led for which time."""

    cluster: int
    revision: int
    term: int

    @classmethod
    def of(cls, header: Any) -> Position:
        """The position that the header of a response tells."""
        return cls(header.cluster_id, header.revision, header.raft_term)

    def is_behind(self, other: Position) -> bool:
        """Whether this cannot be what became of `other`."""
        return self.revision < other.revision or self.term < other.term


@dataclass(frozen=True, slots=True)
class _Last:
    """A commit that was delivered."""

    revision: int
    told: list[bytes]
    """What it wrote; deletions are forgotten when their revision is compacted, the rest is not."""


_NOTHING = _Last(0, [])


def _told(events: list[Any]) -> list[bytes]:
    return [event.kv.SerializeToString() for event in events if event.type == pb.Event.PUT]


class EtcdWatch:
    """The watch of one store. Runs from `run` on, until cancelled.

    Args:
        client: the way to etcd.
        scope: the keys.
        tasks: where tasks beside `run` are born.
        on_commit: takes every commit of the scope from `start` on, once and in order.
        on_resync: is called where commits may be missing, with the revision of the last commit
            before those that come next: less than what was delivered if the cluster is another.
    """

    def __init__(
        self,
        client: EtcdClient,
        scope: Scope,
        tasks: asyncio.TaskGroup,
        on_commit: Callable[[Commit], None],
        on_resync: Callable[[int], None],
    ) -> None:
        self._client = client
        self._scope = scope
        self._tasks = tasks
        self._on_commit = on_commit
        self._on_resync = on_resync
        self._next = 0
        """The first revision that was not delivered."""
        self._seen = Position(0, 0, 0)
        """The furthest that streams, and the reads that they were begun after, have told."""
        self._refused_token = -1
        """Number of the token with which the last stream was refused; -1 = it was not."""
        self._last = _NOTHING
        """The last commit delivered; its revision is `_next` - 1 at the most."""
        self._awaited = _NOTHING
        """What the stream must begin with."""
        self._answered_at = 0.0
        """When the stream answered a question of ours first, and had not begun."""
        self._parts: list[Any] = []
        self._heard_at = 0.0

    async def present(self) -> Position:
        """Where the cluster is, by a read that it agreed on."""
        start, end = self._scope.below(ROOT)
        request = pb.RangeRequest(key=start, range_end=end, count_only=True, limit=1)
        response = await self._client.read(RANGE, request)
        return Position.of(response.header)

    async def run(self, position: Position) -> None:
        """Deliver what was committed after `position`, for ever."""
        self._begin(position)
        retries = self._client.retries()
        while True:
            try:
                if not self._next:
                    self._begin(await self.present())
                    self._on_resync(self._next - 1)
                await self._follow()
            except CompactedError:
                self._next = 0
            except BookieError:
                # Not answered, or refused: the next stream has a new token, and our user's rights
                # may come back.
                await asyncio.sleep(retries.pause())
            else:
                retries = self._client.retries()

    def _begin(self, position: Position) -> None:
        self._seen = position
        self._next = position.revision + 1
        self._last = _NOTHING

    async def _follow(self) -> None:
        """Run one stream until it breaks.

        Raises:
            CompactedError: continuity is lost.
            MetadataUnavailableError: the stream broke before it delivered anything.
        """
        if self._refused_token >= 0:
            await self._client.authenticate(self._refused_token)
            self._refused_token = -1
        began_at, endpoint, token = self._next, self._client.endpoint(), self._client.token
        self._parts = []
        self._awaited, self._answered_at = self._last, 0.0
        self._heard_at = asyncio.get_running_loop().time()
        call = self._client.open_stream(endpoint, WATCH)
        guard = self._tasks.create_task(self._guard(call))
        try:
            await self._read(call, endpoint)
        except MetadataUnavailableError as error:
            if isinstance(error, StaleTokenError):
                self._refused_token = token
            self._client.leave(endpoint)
            if self._next == began_at:
                raise
        finally:
            guard.cancel()
            call.cancel()

    async def _read(self, call: Any, endpoint: Endpoint) -> None:
        start, end = self._scope.below(ROOT)
        create = pb.WatchCreateRequest(
            key=start,
            range_end=end,
            start_revision=self._awaited.revision or self._next,
            progress_notify=True,
            fragment=True,
        )
        try:
            # gRPC lets a write wait for ever if its call is cancelled before its headers were sent.
            async with asyncio.timeout(2 * self._client.attempt_seconds):
                await call.write(pb.WatchRequest(create_request=create))
            while (response := await call.read()) is not aio.EOF:
                self._heard_at = asyncio.get_running_loop().time()
                self._client.hear()
                if response.created and not response.canceled:
                    await self._compare(Position.of(response.header), endpoint)
                self._take(response, endpoint)
        except aio.AioRpcError as error:
            raise self._client.explain(error, endpoint) from None
        except (asyncio.InvalidStateError, aio.InternalError, TimeoutError):
            pass  # it ended before the request was written
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Only the guard cancelled it.
        raise LostReplyError(f"etcd at {endpoint.address} ended a watch or fell silent")

    async def _guard(self, call: Any) -> None:
        """Ask a silent stream for its progress, and end one that does not answer."""
        patience = self._client.attempt_seconds
        while True:
            await asyncio.sleep(patience / 2)
            silent = asyncio.get_running_loop().time() - self._heard_at
            if silent >= 2 * patience:
                call.cancel()
                return
            if silent >= patience:
                try:
                    async with asyncio.timeout(patience):
                        await call.write(pb.WatchRequest(progress_request={}))
                except (
                    TimeoutError,
                    aio.AioRpcError,
                    aio.InternalError,
                    asyncio.InvalidStateError,
                ):
                    call.cancel()
                    return

    async def _compare(self, position: Position, endpoint: Endpoint) -> None:
        """Find out whether a cluster that says it is at `position` went back."""
        if position.is_behind(self._seen) and (await self.present()).is_behind(self._seen):
            raise CompactedError(f"etcd at {endpoint.address} was restored to an older state")

    def _take(self, response: Any, endpoint: Endpoint) -> None:
        if response.header.cluster_id != self._seen.cluster:
            raise CompactedError(f"etcd at {endpoint.address} is another cluster than before")
        if response.canceled:
            if response.compact_revision:
                if self._awaited.revision and response.compact_revision <= self._next:
                    self._last = _NOTHING
                    raise LostReplyError(f"etcd at {endpoint.address} has forgotten one we know")
                raise CompactedError(f"etcd at {endpoint.address} has forgotten {self._next}")
            # Most of all because of our token, which cannot be told from the reason everywhere.
            raise StaleTokenError(
                f"etcd at {endpoint.address} ended a watch: {response.cancel_reason}"
            )
        self._see(response.header)
        self._parts += response.events
        if response.fragment or response.created:
            return
        if self._awaited.revision and response.header.revision >= self._awaited.revision:
            if response.watch_id and not self._parts and self._may_be_early():
                return
            self._recognise(endpoint)
        if not self._parts and response.watch_id == 0:
            # Progress: everything up to this revision was delivered. The answer to our own question
            # has no watch id; servers before 3.4.25 and 3.5.8 send it too early.
            self._next = max(self._next, response.header.revision + 1)
        events, self._parts = self._parts, []
        for revision, together in groupby(events, key=lambda event: event.kv.mod_revision):
            if revision < self._next:
                continue
            self._next = revision + 1
            commit = list(together)
            self._last = _Last(revision, _told(commit))
            self._on_commit(Commit(revision, tuple(map(self._event, commit))))

    def _may_be_early(self) -> bool:
        """Whether an answer to our question may have overtaken what the stream must begin with.

        Servers before 3.4.25 and 3.5.8 answer while the stream still catches up. All questions of
        a while may be answered at once; one that is answered much later is believed.
        """
        now = asyncio.get_running_loop().time()
        if not self._answered_at:
            self._answered_at = now
        return now < self._answered_at + 2 * self._client.attempt_seconds

    def _recognise(self, endpoint: Endpoint) -> None:
        """Compare what the stream begins with: the last commit delivered, or no news of it."""
        awaited, self._awaited = self._awaited, _NOTHING
        first = [event for event in self._parts if event.kv.mod_revision == awaited.revision]
        if _told(first) != awaited.told:
            raise CompactedError(
                f"etcd at {endpoint.address} has another history since {awaited.revision}"
            )

    def _see(self, header: Any) -> None:
        seen = self._seen
        self._seen = Position(
            seen.cluster, max(seen.revision, header.revision), max(seen.term, header.raft_term)
        )

    def _event(self, event: Any) -> WatchEvent:
        kv = event.kv
        if event.type == pb.Event.DELETE:
            kind = ChangeKind.DELETED
        elif kv.create_revision == kv.mod_revision:
            kind = ChangeKind.CREATED
        else:
            kind = ChangeKind.MODIFIED
        return WatchEvent(kind, self._scope.name(kv.key), kv.mod_revision)
