"""The carriers by which a client reaches real bookies, and what happens when one is not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.api import BookKeeper, connect
from bookie.cluster import keys
from bookie.config import RpcSettings, Transport
from bookie.errors import BookieError, BookieUnreachableError, LedgerFencedError
from bookie.ledger.connection import chosen_channel
from bookie.wire.frames.client import FAILURES_MAX
from bookie.wire.frames.server import hold_frames_port
from tests.servers.proxy import Proxy
from tests.unit.ledger.real_cluster import RealCluster, real_cluster, until


@pytest.fixture
async def framed(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """Three bookies that offer frames."""
    async with real_cluster(tmp_path, offers_frames=True) as started:
        yield started


def carriers(bk: BookKeeper) -> dict[str, bool | None]:
    """Tell of each bookie if frames reach it; None if it was never called."""
    connections = bk._connected.pool._connections
    return {
        bookie_id: None if one._chosen._channel is None else one._chosen._channel.is_framed
        for bookie_id, one in connections.items()
    }


def is_choosing(bk: BookKeeper) -> bool:
    """Whether frames to b1 are being tried."""
    return bk._connected.pool.connection("b1")._chosen._is_choosing


class LaneUser:
    """A user of a lane to one bookie; it notes what it is told, and each turn of the loop after."""

    def __init__(self, bk: BookKeeper, bookie_id: str) -> None:
        self.told: list[str] = []
        directory = bk._connected.pool.directory
        self.lane = bk._connected.pool.connection(bookie_id).plain(directory.incarnation(bookie_id))
        self.lane.join(self)

    @property
    def goes_by_frames(self) -> bool:
        channel = self.lane._channel
        return channel is not None and channel.is_framed and self.lane.is_up

    def on_up(self) -> None:
        self.told.append("up")

    def on_down(self) -> None:
        self.told.append("down")
        asyncio.get_running_loop().call_soon(self.told.append, "a turn later")

    def on_silent(self) -> None:
        self.told.append("silent")

    def on_lost(self) -> None:
        self.told.append("lost")


async def register_anew(cluster: RealCluster, bk: BookKeeper, bookie_id: str) -> None:
    """As after the end of its session: the bookie goes on, and its record is written again."""
    directory = bk._connected.pool.directory
    before = directory.arrivals(bookie_id)
    await cluster.store.delete(f"{keys.WRITABLE}/{bookie_id}")
    await until(lambda: directory.arrivals(bookie_id) > before)


async def payloads_of(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    reader = await bk.open_ledger(ledger_id)
    return [entry.payload async for entry in reader.read()]


@pytest.mark.parametrize(
    ("transport", "is_framed"), [("auto", True), ("frames", True), ("grpc", False)]
)
async def test_a_client_takes_the_carrier_that_its_settings_want(
    framed: RealCluster, transport: Transport, is_framed: bool
) -> None:
    """Every kind of call works by it: adds, reads, tails, fences, recovery, deletion."""
    async with connect(framed.uri, transport=transport) as bk:
        writer = await bk.create_ledger()
        payloads = [b"%d" % number for number in range(300)] + [bytes(900_000)]
        tail = await bk.open_ledger(writer.ledger_id)

        async def follow() -> list[bytes]:
            return [entry.payload async for entry in tail.tail(start=0)]

        async with asyncio.TaskGroup() as tasks:
            followed = tasks.create_task(follow())
            for payload in payloads:
                await writer.append(payload)
            async with connect(framed.uri, transport=transport) as other:
                reader = await other.open_ledger(writer.ledger_id, recover=True)
                assert reader.last_entry_id == len(payloads) - 1
            with pytest.raises(LedgerFencedError):
                await writer.append(b"late")
            assert await followed == payloads
        assert await payloads_of(bk, writer.ledger_id) == payloads
        await until(lambda: set(carriers(bk).values()) == {is_framed})
        assert await payloads_of(bk, writer.ledger_id) == payloads


async def test_a_client_goes_by_grpc_where_frames_are_not_offered(framed: RealCluster) -> None:
    """One bookie of an earlier version among others: each is reached by what it has."""
    await framed.stop(1)
    framed.offers_frames = False
    await framed.start(1)
    async with connect(framed.uri) as bk:
        writer = await bk.create_ledger()
        await writer.append_many([b"a", b"b"])
        await until(lambda: carriers(bk) == {"b0": True, "b1": False, "b2": True})


@pytest.fixture
async def proxied(framed: RealCluster) -> AsyncIterator[tuple[RealCluster, Proxy]]:
    """The bookie b1 offers frames at the address of a proxy."""
    with Proxy(framed.frames_ports[1]) as proxy:
        await framed.stop(1)
        framed.offered_frames[1] = proxy.port
        await framed.start(1)
        yield framed, proxy


@pytest.mark.parametrize("is_silent", [True, False])
async def test_frames_that_lead_nowhere_are_never_taken(
    proxied: tuple[RealCluster, Proxy], is_silent: bool
) -> None:
    """Such as behind a firewall. Writers notice nothing, and frames are tried at each arrival."""
    cluster, proxy = proxied
    if is_silent:
        proxy.hold()
    else:
        proxy.refuse()
    async with connect(cluster.uri, connect_timeout_seconds=0.3) as bk:
        user = LaneUser(bk, "b1")
        writer = await bk.create_ledger()
        await writer.append(b"a")
        channel = bk._connected.pool.connection("b1").channel()
        await until(lambda: proxy.accepted == 1 and not is_choosing(bk))
        await register_anew(cluster, bk, "b1")
        await until(lambda: proxy.accepted == 2 and not is_choosing(bk))
        await writer.append(b"b")
        assert bk._connected.pool.connection("b1").channel() is channel
        assert not channel.is_framed
        assert user.told == ["up"]
        proxy.heal()
        await register_anew(cluster, bk, "b1")
        # Nobody calls the bookie meanwhile, as if its client only appends.
        await until(lambda: user.goes_by_frames)
        assert user.told == ["up", "up"]
        await writer.append(b"c")
        await writer.close()
        assert await payloads_of(bk, writer.ledger_id) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_silent", [True, False])
async def test_a_client_goes_back_to_grpc_when_frames_fail(
    proxied: tuple[RealCluster, Proxy], is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that only appends, although frames have worked; and back again when they do."""
    monkeypatch.setattr(chosen_channel, "DOUBT_SECONDS", 0.1)
    cluster, proxy = proxied
    async with connect(cluster.uri, connect_timeout_seconds=0.3, replace_after_seconds=60) as bk:
        writer = await bk.create_ledger()
        await writer.append(b"a")
        user = LaneUser(bk, "b1")
        await until(lambda: user.goes_by_frames)
        monkeypatch.setattr(chosen_channel, "PROBE_AGAIN_SECONDS", 0.5)
        if is_silent:
            proxy.hold()
            proxy.reset()
        else:
            proxy.refuse()
        await writer.append(b"b")
        await until(lambda: not carriers(bk)["b1"] and user.lane.is_up)
        await writer.append(b"c")
        proxy.heal()
        await until(lambda: user.goes_by_frames)
        await writer.append(b"d")
        await writer.close()
        assert await payloads_of(bk, writer.ledger_id) == [b"a", b"b", b"c", b"d"]
        assert len(writer.metadata.fragments) == 1


async def test_a_bookie_that_was_away_is_back_at_once_by_either_carrier(
    proxied: tuple[RealCluster, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed and has another port for frames; its old registration stands, as on etcd."""
    monkeypatch.setattr(chosen_channel, "DOUBT_SECONDS", 0.0)
    cluster, frames = proxied
    with Proxy(cluster.ports[1]) as grpc:
        await cluster.stop(1)
        cluster.offered_grpc[1] = grpc.port
        await cluster.start(1)
        async with connect(cluster.uri, replace_after_seconds=60) as bk:
            writer = await bk.create_ledger()
            user = LaneUser(bk, "b1")
            await until(lambda: user.goes_by_frames)
            monkeypatch.setattr(chosen_channel, "DOUBT_SECONDS", 1000.0)
            frames.refuse()
            grpc.refuse()
            await until(lambda: is_choosing(bk))
            await until(lambda: not is_choosing(bk))
            grpc.heal()
            await until(lambda: not carriers(bk)["b1"] and user.lane.is_up)
            await writer.append(b"a")
            assert len(writer.metadata.fragments) == 1


async def test_frames_that_lead_to_another_bookie_are_not_taken(
    proxied: tuple[RealCluster, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as if ports are mapped: at once, or when the other one takes the address later."""
    monkeypatch.setattr(chosen_channel, "DOUBT_SECONDS", 0.1)
    cluster, proxy = proxied
    async with connect(cluster.uri, replace_after_seconds=60) as bk:
        user = LaneUser(bk, "b1")
        await until(lambda: user.goes_by_frames)
        proxy.target_port = cluster.frames_ports[2]
        proxy.reset()
        await until(lambda: not carriers(bk)["b1"] and user.lane.is_up)
    async with connect(cluster.uri) as bk:
        user, accepted = LaneUser(bk, "b1"), proxy.accepted
        await until(lambda: proxy.accepted > accepted and not is_choosing(bk))
        assert carriers(bk)["b1"] is False
        await until(lambda: bool(user.told))
        assert user.told == ["up"]


async def test_a_bookie_that_starts_is_no_reason_to_leave_frames(framed: RealCluster) -> None:
    """Its refusals show that frames reach it."""
    async with connect(framed.uri, transport="frames") as bk:
        channel = bk._connected.pool.connection("b1").channel()
        await channel.info(timeout=60)
        await framed.stop(1)
        for _ in range(FAILURES_MAX):
            with pytest.raises(BookieUnreachableError):
                await channel.info(timeout=60)
        assert channel.is_failing
        async with hold_frames_port("127.0.0.1", framed.frames_ports[1], RpcSettings()):
            with pytest.raises(BookieUnreachableError, match="the bookie is starting"):
                await channel.info(timeout=60)
        assert not channel.is_failing


async def test_a_bookie_may_come_back_with_the_ports_swapped(framed: RealCluster) -> None:
    """The same address then needs another carrier."""
    await framed.stop(1)
    framed.offers_frames = False
    await framed.start(1)
    async with connect(framed.uri) as bk:
        writer = await bk.create_ledger()
        await writer.append(b"a")
        await framed.stop(1)
        framed.offers_frames = True
        framed.ports[1], framed.frames_ports[1] = framed.frames_ports[1], framed.ports[1]
        await framed.start(1)
        await until(lambda: bool(carriers(bk)["b1"]))
        assert (await bk._connected.pool.connection("b1").channel().info(timeout=60)).bookie_id
        await writer.append(b"b")
        await writer.close()
        assert await payloads_of(bk, writer.ledger_id) == [b"a", b"b"]


async def test_a_change_of_the_carrier_voids_no_acknowledgement(
    proxied: tuple[RealCluster, Proxy],
) -> None:
    """Of adds that are not yet durable: the bookie's process is the same."""
    cluster, proxy = proxied
    proxy.refuse()
    async with connect(cluster.uri, replace_after_seconds=60) as bk:
        writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=3,
                                        deferred_sync=True)  # fmt: skip
        user = LaneUser(bk, "b1")
        await until(lambda: proxy.accepted == 1 and not is_choosing(bk))
        await writer.append(b"a")
        proxy.heal()
        await register_anew(cluster, bk, "b1")
        await until(lambda: user.goes_by_frames)
        await writer.force()
        assert writer.last_add_confirmed == 0
        await writer.close()


async def test_a_lane_that_moves_to_another_process_was_down(framed: RealCluster) -> None:
    """What the former process has acknowledged may be gone."""
    async with connect(framed.uri, transport="grpc") as bk:
        user = LaneUser(bk, "b1")
        await until(lambda: user.lane.is_up)
        assert user.lane._stream is not None
        user.lane._stream.life = "another"
        pool = bk._connected.pool
        channel = pool.open_channel(pool.directory.resolve("b1", transport="auto"), "b1")
        user.lane.move(channel)
        try:
            await until(lambda: user.goes_by_frames)
            assert user.told == ["up", "down", "up", "a turn later"]
        finally:
            await channel.close()


async def test_a_change_of_the_carrier_ends_no_call(
    framed: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call on the former channel has time to be answered; then the channel is closed."""
    async with connect(framed.uri) as bk:
        former = bk._connected.pool.connection("b1").channel()
        assert not former.is_framed
        await until(lambda: bool(carriers(bk)["b1"]))
        assert (await former.info(timeout=60)).bookie_id == "b1"
    monkeypatch.setattr(chosen_channel, "RETIRE_SECONDS", 0.05)
    async with connect(framed.uri) as bk:
        former = bk._connected.pool.connection("b1").channel()
        error: BookieError | None = None
        async with asyncio.timeout(60):
            while error is None:
                try:
                    await former.info(timeout=60)
                except BookieError as found:
                    error = found
        assert "has another address now" in str(error)
        assert (await bk._connected.pool.connection("b1").channel().info(timeout=60)).bookie_id


async def test_a_writer_survives_the_restart_of_every_bookie(framed: RealCluster) -> None:
    """One after the other, at another address: the writer finds each again."""
    async with connect(framed.uri) as bk:
        writer = await bk.create_ledger()
        for number in range(3):
            await framed.stop(number)
            await writer.append(b"%d" % number)
            await framed.start(number, same_port=False)
            await writer.append(b"%d again" % number)
        await writer.close()
        assert len(await payloads_of(bk, writer.ledger_id)) == 6
        await until(lambda: set(carriers(bk).values()) == {True})


async def test_a_client_that_wants_only_frames_says_what_is_missing(framed: RealCluster) -> None:
    """It never goes by gRPC."""
    await framed.stop(1)
    framed.offers_frames = False
    await framed.start(1)
    async with connect(framed.uri, transport="frames") as bk:
        with pytest.raises(BookieUnreachableError, match="names no address for frames"):
            bk._connected.pool.connection("b1").channel()
