"""Peers that make a bookie keep as much as they can for as long as they can."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from bookie._pb import bookie_pb2 as pb
from bookie.api import connect
from bookie.entry.checksum import crc32c
from bookie.entry.digest import Crc32cDigester
from bookie.entry.entry import pack_batch
from bookie.wire.interfaces import SERVICE
from bookie.wire.unary_codec import WATCH_IDS_MAX
from tests.abuse.frames import Answers, listen, message, open_windows, send_all
from tests.abuse.target import MIB, Target
from tests.fault.raw_calls import KEY
from tests.unit.wire.http2_peer import DATA, END_STREAM, Peer

Tell = Callable[[str, object], None]

ATTACK_SECONDS = 8.0

MESSAGE_BYTES = 8 * MIB - 64
"""What each message announces: almost as much as it may."""


TINY_LEDGER = 10_001


def tiny_add(entry_id: int) -> bytes:
    """A message that adds one byte."""
    batch = pack_batch(TINY_LEDGER, entry_id, entry_id - 1, entry_id, [b"x"], Crc32cDigester())
    payload = bytes(batch.payload)
    request = pb.AddRequest(
        request_id=entry_id + 1,
        ledger_id=TINY_LEDGER,
        master_key=KEY,
        first_entry_id=entry_id,
        entry_sizes=[len(payload)],
        payload_crc32c=crc32c(payload),
        payload=payload,
    ).SerializeToString()
    return message(len(request), request)


@asynccontextmanager
async def listening(target: Target) -> AsyncIterator[tuple[Peer, Answers]]:
    """A connection whose answers are taken."""
    answers = Answers()
    async with target.peer() as peer, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(listen(peer, answers))
        yield peer, answers
        task.cancel()


async def test_tiny_adds_without_waiting(
    target: Target, record_property: Tell, is_soak: bool
) -> None:
    """As fast as the bookie takes them; each is stored."""
    count = 1_000_000 if is_soak else 40_000
    content = b"".join(map(tiny_add, range(count)))
    async with (
        target.under_attack(f"{count} tiny adds", record_property) as on,
        listening(target) as (peer, answers),
    ):
        stream_id, began = peer.open("AddStream"), time.monotonic()
        await send_all(peer, answers, stream_id, content)
        on.note(f"sent after {time.monotonic() - began:.1f} s")
        while await last_entry(target) < count - 1:  # noqa: ASYNC110  (the bookie tells nobody)
            await asyncio.sleep(0.5)
        on.note(f"stored after {time.monotonic() - began:.1f} s")


async def last_entry(target: Target) -> int:
    """The last entry of `TINY_LEDGER` that the bookie has; -1 for none."""
    async with target.raw() as bookie:
        request = pb.ListEntriesRequest(ledger_id=TINY_LEDGER, last_entry_id=-1)
        pages = await bookie.pages("ListEntries", request, pb.ListEntriesResponse)
    return max((last for page in pages for last in page.range_last), default=-1)


async def large_ledger(target: Target) -> int:
    """A ledger of 32 MB; its id."""
    async with (
        connect(target.home.metadata_uri) as client,
        client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer,
    ):
        for _ in range(32):
            await writer.append(bytes(MIB))
        return int(writer.ledger_id)


@pytest.mark.parametrize("takes", [True, False])
async def test_huge_reads(target: Target, record_property: Tell, takes: bool) -> None:
    """Answers of 4 MB on 32 streams of 4 connections; they are taken, or never are."""
    ledger_id = await large_ledger(target)
    request = pb.ReadRequest(ledger_id=ledger_id, last_entry_id=31, request_id=1)
    data = request.SerializeToString()
    name = "huge reads" if takes else "huge reads that nobody takes"
    async with (
        target.under_attack(name, record_property) as on,
        AsyncExitStack() as stack,
    ):
        every = []
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                peer, answers = await stack.enter_async_context(target.peer()), Answers()
                open_windows(peer)
                every.append(answers)
                if takes:
                    tasks.create_task(listen(peer, answers))
                for _ in range(8):
                    stream_id = peer.open("ReadStream")
                    for _ in range(16):
                        peer.frame(DATA, 0, stream_id, message(len(data), data))
                await peer.flush()
            await asyncio.sleep(ATTACK_SECONDS)
            await stack.aclose()
        on.note(f"{sum(answers.data_bytes for answers in every) // MIB} MiB taken")


async def test_answers_that_nobody_takes(target: Target, record_property: Tell) -> None:
    """Of garbage on streams of adds and reads, of listings, and of updates."""
    async with (
        target.under_attack("answers that nobody takes", record_property) as on,
        AsyncExitStack() as stack,
    ):
        watched = pb.WatchLacRequest(subscribe=[target.honest.ledger_id]).SerializeToString()
        for _ in range(8):
            peer = await stack.enter_async_context(target.peer())
            for number in range(120):
                rpc = ("AddStream", "ReadStream", "WatchLac", "ListLedgers")[number % 4]
                if rpc == "ListLedgers":
                    peer.call(rpc, b"")
                    continue
                stream_id = peer.open(rpc)
                if rpc == "WatchLac":
                    peer.frame(DATA, 0, stream_id, message(len(watched), watched))
                else:
                    peer.frame(DATA, 0, stream_id, message(1, b"\xff") * 80)
            await peer.flush()
        await asyncio.sleep(ATTACK_SECONDS)
        on.note("960 calls")


@pytest.mark.parametrize("connections", [8, 80])
async def test_watches_of_a_busy_ledger(
    target: Target, record_property: Tell, connections: int
) -> None:
    """Each of 128 streams of a connection is told of each append of the honest client."""
    request = pb.WatchLacRequest(subscribe=[target.honest.ledger_id]).SerializeToString()
    async with (
        target.under_attack(f"{128 * connections} watches", record_property) as on,
        AsyncExitStack() as stack,
        asyncio.TaskGroup() as tasks,
    ):
        every = []
        for _ in range(connections):
            peer, answers = await stack.enter_async_context(target.peer()), Answers()
            every.append((tasks.create_task(listen(peer, answers)), answers))
            for _ in range(128):
                peer.frame(DATA, 0, peer.open("WatchLac"), message(len(request), request))
            await peer.flush()
        await asyncio.sleep(ATTACK_SECONDS)
        updates = sum(answers.frames[DATA] for _, answers in every)
        on.note(f"{updates / ATTACK_SECONDS:.0f} updates/s")
        for task, _ in every:
            task.cancel()


async def test_watches_of_many_ledgers(target: Target, record_property: Tell) -> None:
    """Ten streams watch 20 000 ledgers each, more than a bookie allows."""
    async with (
        target.under_attack("200 000 watched ledgers", record_property) as on,
        listening(target) as (peer, answers),
    ):
        await answers.introduced.wait()
        for number in range(10):
            stream_id = peer.open("WatchLac")
            for first in range(20_000 * number, 20_000 * number + 20_000, WATCH_IDS_MAX):
                ids = range(first, first + WATCH_IDS_MAX)
                request = pb.WatchLacRequest(subscribe=ids).SerializeToString()
                await send_all(peer, answers, stream_id, message(len(request), request))
        await asyncio.sleep(ATTACK_SECONDS)
        taken = await target.metric("bookie_lac_watches")
        on.note(f"{taken:.0f} taken")
        assert 0 < taken <= 100_000


async def test_oversize_messages(target: Target, record_property: Tell) -> None:
    """Messages of 9 MB on streams and calls are refused as too large.

    Nobody takes their bytes. So the bookie may end the connection for what is unfinished there, and
    gRPC opens another one.
    """
    sample = 'bookie_connections_ended_total{reason="unfinished"}'
    async with target.under_attack("oversize messages", record_property) as on, target.raw() as raw:
        refused = cut = 0
        until = time.monotonic() + ATTACK_SECONDS
        while time.monotonic() < until:
            for rpc in ("AddStream", "ReadStream", "Fence"):
                call = raw.channel.stream_unary(f"/{SERVICE}/{rpc}")
                with pytest.raises(grpc.RpcError) as caught:
                    await call(iter([bytes(9 * MIB)]), metadata=raw.metadata)
                if caught.value.code() is grpc.StatusCode.UNAVAILABLE:
                    cut += 1
                    continue
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                refused += 1
        on.note(f"{refused} refused, {cut} cut off")
        assert refused
        assert cut <= await target.metric(sample)


async def test_compressed_messages(target: Target, record_property: Tell) -> None:
    """Of 8 KB that are 8 MB once they are unpacked: nobody unpacks them."""
    bomb = gzip.compress(bytes(MESSAGE_BYTES))
    content = b"\1" + message(len(bomb), bomb)[1:]
    async with target.under_attack("compressed messages", record_property) as on:
        count, until = 0, time.monotonic() + ATTACK_SECONDS
        while time.monotonic() < until:
            async with listening(target) as (peer, _):
                for _ in range(100):
                    stream_id = peer.open("AddStream", (("grpc-encoding", "gzip"),))
                    peer.frame(DATA, END_STREAM, stream_id, content)
                await peer.flush()
                count += 100
                await asyncio.sleep(0.5)
        on.note(f"{count} sent")
