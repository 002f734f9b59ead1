"""Changes as etcd tells them: one watch on the whole scope, in commit order, without a gap.

All events of one revision are of one transaction and make one `Commit`; a response that etcd split
(``fragment``) is taken when its last part is there. A broken stream is resumed at the revision
behind the last one delivered, so a reconnection shows nothing and reads nothing. Only where etcd
has forgotten that revision (compaction), or answers as another cluster, is continuity lost: then
`Resync` is due, and the watch goes on from the present.

A stream can die without a sign. Whenever one was silent for the time of an attempt, it is asked for
its progress; one that does not answer that either is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
)
from bookie.metadata.etcd_keys import Scope
from bookie.metadata.keys import ROOT


class EtcdWatch:
    """The watch of one store. Runs from `run` on, until cancelled.

    Args:
        client: the way to etcd.
        scope: the keys.
        tasks: where tasks beside `run` are born.
        on_commit: takes every commit of the scope from `start` on, once and in order.
        on_resync: is called where commits may be missing.
    """

    def __init__(
        self,
        client: EtcdClient,
        scope: Scope,
        tasks: asyncio.TaskGroup,
        on_commit: Callable[[Commit], None],
        on_resync: Callable[[], None],
    ) -> None:
        self._client = client
        self._scope = scope
        self._tasks = tasks
        self._on_commit = on_commit
        self._on_resync = on_resync
        self._next = 0
        """The first revision that was not delivered."""
        self._cluster = 0
        self._parts: list[Any] = []
        self._heard_at = 0.0

    async def present(self) -> int:
        """The revision of the last commit of the cluster, by a read that it agreed on."""
        start, end = self._scope.below(ROOT)
        request = pb.RangeRequest(key=start, range_end=end, count_only=True, limit=1)
        response = await self._client.read(RANGE, request)
        self._cluster = response.header.cluster_id
        return int(response.header.revision)

    async def run(self, revision: int) -> None:
        """Deliver what was committed after `revision`, for ever."""
        self._next = revision + 1
        retries = self._client.retries()
        while True:
            try:
                if not self._next:
                    self._next = await self.present() + 1
                    self._on_resync()
                await self._follow()
            except CompactedError:
                self._next = 0
            except BookieError:
                # Not answered, or refused: our user's rights may come back.
                await asyncio.sleep(retries.pause())
            else:
                retries = self._client.retries()

    async def _follow(self) -> None:
        """Run one stream until it breaks.

        Raises:
            CompactedError: continuity is lost.
            MetadataUnavailableError: the stream broke before it delivered anything.
        """
        began_at, endpoint = self._next, self._client.endpoint()
        self._parts = []
        self._heard_at = asyncio.get_running_loop().time()
        call = self._client.open_stream(endpoint, WATCH)
        guard = self._tasks.create_task(self._guard(call))
        try:
            await self._read(call, endpoint)
        except MetadataUnavailableError:
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
            start_revision=self._next,
            progress_notify=True,
            fragment=True,
        )
        try:
            await call.write(pb.WatchRequest(create_request=create))
            while (response := await call.read()) is not aio.EOF:
                self._heard_at = asyncio.get_running_loop().time()
                self._client.hear()
                self._take(response, endpoint)
        except aio.AioRpcError as error:
            raise self._client.explain(error, endpoint) from None
        except asyncio.InvalidStateError:
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
                except (TimeoutError, aio.AioRpcError, asyncio.InvalidStateError):
                    call.cancel()
                    return

    def _take(self, response: Any, endpoint: Endpoint) -> None:
        if response.header.cluster_id != self._cluster:
            raise CompactedError(f"etcd at {endpoint.address} is another cluster than before")
        if response.canceled:
            if response.compact_revision:
                raise CompactedError(f"etcd at {endpoint.address} has forgotten {self._next}")
            raise LostReplyError(
                f"etcd at {endpoint.address} ended a watch: {response.cancel_reason}"
            )
        self._parts += response.events
        if response.fragment or response.created:
            return
        if not self._parts and response.watch_id == 0:
            # Progress: everything up to this revision was delivered. The answer to our own question
            # has no watch id; servers before 3.4.25 and 3.5.8 send it too early.
            self._next = max(self._next, response.header.revision + 1)
        events, self._parts = self._parts, []
        for revision, together in groupby(events, key=lambda event: event.kv.mod_revision):
            if revision < self._next:
                continue
            self._next = revision + 1
            self._on_commit(Commit(revision, tuple(map(self._event, together))))

    def _event(self, event: Any) -> WatchEvent:
        kv = event.kv
        if event.type == pb.Event.DELETE:
            kind = ChangeKind.DELETED
        elif kv.create_revision == kv.mod_revision:
            kind = ChangeKind.CREATED
        else:
            kind = ChangeKind.MODIFIED
        return WatchEvent(kind, self._scope.name(kv.key), kv.mod_revision)
