"""A process has a bounded number of requests under way at a metadata server; further ones wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookie._pb import etcd_pb2 as pb
from bookie.errors import MetadataUnavailableError
from bookie.metadata.etcd.client import CALLS_MAX, RANGE, EtcdClient, EtcdEndpoint
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.zookeeper.client import Pending
from bookie.metadata.zookeeper.nodes import NodeReader
from bookie.metadata.zookeeper.requests import OPEN_ACL_UNSAFE, Exists, Request
from bookie.metadata.zookeeper.session import READS_MAX, ZooKeeperLink
from bookie.metadata.zookeeper.tree import Scope
from tests.unit.wire.fake_node import until

LONG = 600.0
"""A time that no test waits for."""


class FakeBridge:
    """Keeps what was sent; the test answers."""

    def __init__(self) -> None:
        self.sent: list[Pending] = []

    def send(self, request: Request, *_: object) -> Pending:
        loop = asyncio.get_running_loop()
        self.sent.append(Pending(request, loop.create_future(), loop.time()))
        return self.sent[-1]

    def waiting(self) -> list[Pending]:
        """The requests that no answer has come to."""
        return [one for one in self.sent if not one.answer.done()]


@pytest.fixture(name="link")
def _link() -> ZooKeeperLink:
    """A link that believes to be connected."""
    link = ZooKeeperLink(
        "h:1",
        "/root",
        OPEN_ACL_UNSAFE,
        session_timeout_seconds=10,
        security=MetadataSecurity(),
        on_event=lambda _: None,
        on_quiet=lambda: None,
        on_missed=lambda: None,
        announce=lambda _: None,
    )
    link._bridge = FakeBridge()  # type: ignore[assignment]
    link._up.set()
    return link


def sent_by(link: ZooKeeperLink) -> FakeBridge:
    bridge: Any = link._bridge
    assert isinstance(bridge, FakeBridge)
    return bridge


async def turns() -> None:
    """Let every task do what it can."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["read", "ask"])
async def test_reads_of_zookeeper_are_bounded(link: ZooKeeperLink, kind: str) -> None:
    """Each answer lets one more go, in the order of the calls; what proves the session goes by."""
    bridge, deadline = sent_by(link), asyncio.get_running_loop().time() + LONG
    reader = NodeReader(link, Scope("/root"))

    async def read(number: int) -> object:
        request = Exists(f"/{number}")
        if kind == "read":
            return await link.read(request, deadline)
        (answer,) = await reader.ask([request], deadline)
        return answer

    async with asyncio.TaskGroup() as tasks:
        reads = [tasks.create_task(read(number)) for number in range(2 * READS_MAX)]
        await turns()
        assert len(bridge.sent) == READS_MAX
        link.send(Exists("/proof"))
        assert len(bridge.sent) == READS_MAX + 1
        bridge.sent.pop()
        for answered in range(1, READS_MAX + 1):
            bridge.waiting()[0].answer.set_result(None)
            await turns()
            assert len(bridge.sent) == READS_MAX + answered
        for one in bridge.waiting():
            one.answer.set_result(None)
    assert [one.result() for one in reads] == [None] * len(reads)
    assert [one.request for one in bridge.sent] == [Exists(f"/{n}") for n in range(len(reads))]


@pytest.mark.parametrize("kind", ["read", "ask"])
async def test_reads_of_zookeeper_wait_no_longer_than_they_may(
    link: ZooKeeperLink, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent server: those that waited for a place until their deadline are not sent."""
    bridge, loop = sent_by(link), asyncio.get_running_loop()
    reader = NodeReader(link, Scope("/root"))
    async with asyncio.TaskGroup() as tasks:
        first = [
            tasks.create_task(link.read(Exists("/a"), loop.time() + LONG)) for _ in range(READS_MAX)
        ]
        await turns()
        deadline, request = loop.time() + 1, Exists("/late")
        late = tasks.create_task(
            refused(
                link.read(request, deadline) if kind == "read" else reader.ask([request], deadline)
            )
        )
        gone = tasks.create_task(link.read(Exists("/gone"), loop.time() + LONG))
        await turns()
        gone.cancel()
        later = loop.time() + 2
        monkeypatch.setattr(loop, "time", lambda: later)
        for one in bridge.waiting():
            one.answer.set_result(None)
        assert "the metadata store" in await late
        await asyncio.wait(first)
        # All places are free again.
        again = [tasks.create_task(link.read(Exists("/b"), later + LONG)) for _ in range(READS_MAX)]
        await turns()
        assert [one.request for one in bridge.waiting()] == [Exists("/b")] * READS_MAX
        for one in bridge.waiting():
            one.answer.set_result(None)
        await asyncio.wait(again)
    assert Exists("/late") not in [one.request for one in bridge.sent]


async def refused(read: Any) -> str:
    with pytest.raises(MetadataUnavailableError) as caught:
        await read
    return str(caught.value)


class SilentEtcd:
    """A channel whose calls the test answers."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[object]] = []

    def unary_unary(self, path: str, **_: object) -> Any:
        def call(*_: object, **__: object) -> asyncio.Future[object]:
            self.calls.append(asyncio.get_running_loop().create_future())
            return self.calls[-1]

        return call


async def test_reads_of_etcd_wait_no_longer_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that waited for a place as long as an operation takes are not sent."""
    client = EtcdClient(
        ["h:1"], MetadataSecurity(), scope="/s", attempt_seconds=LONG, operation_seconds=1
    )
    endpoint, etcd = EtcdEndpoint("h:1", None), SilentEtcd()
    await endpoint.close()
    monkeypatch.setattr(endpoint, "_channel", etcd)
    monkeypatch.setattr(client, "endpoint", lambda: endpoint)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLS_MAX):
            tasks.create_task(client.read(RANGE, pb.RangeRequest()))
        late = tasks.create_task(refused(client.read(RANGE, pb.RangeRequest())))
        await until(lambda: len(etcd.calls) == CALLS_MAX)
        later = loop.time() + 2
        monkeypatch.setattr(loop, "time", lambda: later)
        for call in etcd.calls:
            call.set_result(pb.RangeResponse())
        assert "too many requests" in await late
    assert len(etcd.calls) == CALLS_MAX
    await client.close()
