"""The outcome of a call to etcd whose stream breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from grpc import aio

from bookie._pb import etcd_pb2 as pb
from bookie.metadata.etcd.client import KEEP_ALIVE, EtcdClient, EtcdEndpoint, LostReplyError
from bookie.metadata.security import MetadataSecurity


class _BrokenCall:
    """A stream whose connection breaks when its request has been written."""

    async def write(self, request: object) -> None:
        pass

    async def done_writing(self) -> None:
        raise aio.InternalError("Failed execute_batch")

    def cancel(self) -> None:
        pass


class _Channel:
    """A channel that opens such streams only."""

    def stream_stream(self, path: str, **_: object) -> Callable[..., _BrokenCall]:
        return lambda **_: _BrokenCall()


async def test_a_stream_that_breaks_while_it_is_being_closed_was_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC raises an error of its core there; it would end the session's monitor."""
    client = EtcdClient(
        ["h:1"], MetadataSecurity(), scope="/s", attempt_seconds=1, operation_seconds=1
    )
    endpoint = EtcdEndpoint("h:1", None)
    await endpoint.close()
    monkeypatch.setattr(endpoint, "_channel", _Channel())
    monkeypatch.setattr(client, "endpoint", lambda: endpoint)
    monkeypatch.setattr(client, "leave", lambda _: None)
    with pytest.raises(LostReplyError, match="without an answer"):
        await client.exchange(KEEP_ALIVE, pb.LeaseKeepAliveRequest(id=1), seconds=1)
    await client.close()
