"""Watch the changes below a key prefix in etcd, in commit order, without a gap.

All events of one revision belong to one transaction and make one `Commit`. If etcd splits a
response (``fragment``), the watch handles the response when its last part has arrived. If a stream
breaks, a new stream begins after the last delivered revision, so consumers do not notice the break.
Commits may be missing in two cases: etcd has compacted away the next revision, or a different
cluster answers. In both cases the consumers get `Resync`, and the watch continues from the newest
revision.

A cluster that was restored from a backup looks like the same cluster at an older revision. A watch
that continued at its former, greater revision would get no events until the cluster reaches this
revision again. So when a stream begins, the watch compares the server's position with the newest
position that the watch has seen. If the server is behind, the watch does a linearizable read. If
the read shows that only this server lags, the stream is used; if the whole cluster is behind, the
consumers get `Resync`. If a restored cluster has already passed its old position, the watch does
not notice the restore.

A stream can die silently. If no message arrives for `attempt_seconds`, the watch asks the server
for a progress notification. A stream that does not answer is replaced.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from grpc import aio

from bookie._pb import etcd_pb2 as pb
from bookie.errors import BookieError, MetadataUnavailableError
from bookie.metadata.etcd.client import (
    RANGE,
    WATCH,
    CompactedError,
    EtcdClient,
    EtcdEndpoint,
    LostReplyError,
    StaleTokenError,
)
from bookie.metadata.etcd.key_layout import KeyLayout
from bookie.metadata.model import ROOT, ChangeKind, WatchEvent
from bookie.metadata.watches import Watches


@dataclass(frozen=True, slots=True)
class Position:
    """A cluster's position: its id, its revision, and the term of its leader."""

    cluster: int
    revision: int
    term: int

    @classmethod
    def of(cls, header: Any) -> Position:
        return cls(header.cluster_id, header.revision, header.raft_term)

    def is_behind(self, other: Position) -> bool:
        """True if this position is before `other` in the history of the same cluster."""
        return self.revision < other.revision or self.term < other.term


async def present(client: EtcdClient, scope: KeyLayout) -> Position:
    """Return the cluster's current position, by a linearizable read."""
    request = pb.RangeRequest(key=scope.below(ROOT)[0], count_only=True)
    return Position.of((await client.read(RANGE, request)).header)


class EtcdWatch:
    """A watch on the record of `prefix` and all records below it; `run` runs until cancelled.

    Args:
        client: sends the requests to etcd.
        scope: the layout of keys in etcd.
        prefix: a key, or the root.
        tasks: the group that runs further tasks beside `run`.
        watches: the receivers: they get every commit at or below `prefix`, once and in order. A
            commit may also contain changes of siblings of `prefix`. If commits may be missing, the
            receivers get a resync with the revision after which commits are delivered again. If a
            different cluster answers, this revision may be lower than the revision of the last
            delivered commit.
    """

    def __init__(
        self,
        client: EtcdClient,
        scope: KeyLayout,
        prefix: str,
        tasks: asyncio.TaskGroup,
        watches: Watches,
    ) -> None:
        self._client = client
        self._scope = scope
        self._range = scope.watched(prefix)
        self._tasks = tasks
        self._watches = watches
        self._next = 0
        """The first revision that was not delivered yet."""
        self._seen = Position(0, 0, 0)
        """The cluster's newest position that a stream, or the read before a stream, has shown."""
        self._refused_token = -1
        """If etcd refused the token of the last stream, the number of this token; otherwise -1."""
        self._parts: list[Any] = []
        self._heard_at = 0.0

    async def run(self, position: Position) -> None:
        """Deliver all commits after `position`, until cancelled."""
        self._begin(position)
        retries = self._client.retries()
        while True:
            try:
                if not self._next:
                    self._begin(await present(self._client, self._scope))
                    self._watches.resync(self._next - 1)
                await self._follow()
            except CompactedError:
                self._next = 0
            except BookieError:
                # etcd did not answer, or refused the stream. Try again even after a refusal: the
                # next stream has a new token, or our user gets its rights back.
                await asyncio.sleep(retries.pause())
            else:
                retries = self._client.retries()

    def _begin(self, position: Position) -> None:
        self._seen = position
        self._next = position.revision + 1

    async def _follow(self) -> None:
        """Run one stream until it breaks.

        Raises:
            CompactedError: commits may be missing.
            MetadataUnavailableError: the stream broke before it delivered anything.
        """
        if self._refused_token >= 0:
            await self._client.authenticate(self._refused_token)
            self._refused_token = -1
        began_at, endpoint, token = self._next, self._client.endpoint(), self._client.token
        self._parts = []
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

    async def _read(self, call: Any, endpoint: EtcdEndpoint) -> None:
        start, end = self._range
        create = pb.WatchCreateRequest(
            key=start, range_end=end, start_revision=self._next, progress_notify=True, fragment=True
        )
        try:
            # If a call is cancelled before its headers were sent, gRPC's `write` waits for ever:
            # limit it.
            async with asyncio.timeout(2 * self._client.attempt_seconds):
                await call.write(pb.WatchRequest(create_request=create))
            while (response := await call.read()) is not aio.EOF:
                self._heard_at = asyncio.get_running_loop().time()
                self._client.note_sign_of_life()
                if response.created and not response.canceled:
                    await self._compare(Position.of(response.header), endpoint)
                self._take(response, endpoint)
        except aio.AioRpcError as error:
            raise self._client.explain(error, endpoint) from None
        except (asyncio.InvalidStateError, aio.InternalError, TimeoutError):
            pass  # the stream ended before the request was written
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: `_guard` cancelled the call of a silent stream.
        raise LostReplyError(f"etcd at {endpoint.address} ended a watch or fell silent")

    async def _guard(self, call: Any) -> None:
        """Ask a silent stream for its progress, and cancel a stream that does not answer."""
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

    async def _compare(self, position: Position, endpoint: EtcdEndpoint) -> None:
        """Raise CompactedError if the whole cluster, not only this server, has an older state."""
        if not position.is_behind(self._seen):
            return
        if (await present(self._client, self._scope)).is_behind(self._seen):
            raise CompactedError(f"etcd at {endpoint.address} was restored to an older state")

    def _take(self, response: Any, endpoint: EtcdEndpoint) -> None:
        if response.header.cluster_id != self._seen.cluster:
            raise CompactedError(f"etcd at {endpoint.address} is another cluster than before")
        if response.canceled:
            if response.compact_revision:
                raise CompactedError(f"etcd at {endpoint.address} has forgotten {self._next}")
            # etcd probably refused our token; some servers name no reason.
            raise StaleTokenError(
                f"etcd at {endpoint.address} ended a watch: {response.cancel_reason}"
            )
        self._see(response.header)
        self._parts += response.events
        if response.fragment or response.created:
            return
        if not self._parts and response.watch_id == 0:
            # This response is a progress notification: all commits up to its revision were
            # delivered. An answer to our own progress request has no watch id. It does not count
            # here, because servers before 3.4.25 and 3.5.8 send it too early.
            self._next = max(self._next, response.header.revision + 1)
        events, self._parts = self._parts, []
        for revision, together in groupby(events, key=lambda event: event.kv.mod_revision):
            if revision < self._next:
                continue
            self._next = revision + 1
            commit = list(together)
            records = tuple(event for one in commit if (event := self._event(one)) is not None)
            if records:
                self._watches.deliver(revision, records)

    def _see(self, header: Any) -> None:
        seen = self._seen
        self._seen = Position(
            seen.cluster, max(seen.revision, header.revision), max(seen.term, header.raft_term)
        )

    def _event(self, event: Any) -> WatchEvent | None:
        kv = event.kv
        key = self._scope.name(kv.key)
        if key is None:
            return None
        if event.type == pb.Event.DELETE:
            kind = ChangeKind.DELETED
        elif kv.create_revision == kv.mod_revision:
            kind = ChangeKind.CREATED
        else:
            kind = ChangeKind.MODIFIED
        return WatchEvent(kind, key, kv.mod_revision)
