"""Wrong arguments: one typed error each, and nothing was done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper, connect
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import unpack_packet
from bookie.errors import BadRequestError, ClientClosedError, ConfigurationError
from bookie.wire.client.channel import BookieChannel, ReadCommand
from tests.unit.ledger.real_cluster import RealCluster, real_cluster

SECONDS_MAX = 120.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RealCluster]:
    """Three bookies."""
    async with real_cluster(tmp_path) as running:
        yield running


async def test_a_payload_must_be_bytes(bk: BookKeeper) -> None:
    """Above all an integer: ``bytes(5)`` are five zero bytes."""
    writer: Any = await bk.create_ledger()
    for payload in ("text", 5, True, None, [1, 2], object()):
        with pytest.raises(BadRequestError, match="a payload must be bytes, not"):
            await writer.append(payload)
        with pytest.raises(BadRequestError, match="a payload must be bytes, not"):
            await writer.append_many([b"good", payload])
    for payloads in (b"abc", bytearray(b"abc"), "abc", 5, None):
        with pytest.raises(BadRequestError, match="payloads must be many"):
            await writer.append_many(payloads)
    assert writer.last_entry_id == -1
    assert await writer.append(memoryview(b"abcdef")[::2]) == 0
    assert await writer.append_many(iter([bytearray(b"x"), b"y"])) == range(1, 3)
    reader = await bk.open_ledger(writer.ledger_id)
    assert [entry.payload async for entry in reader.read()] == [b"ace", b"x", b"y"]


async def test_a_refused_payload_leaves_its_place_in_line(cluster: RealCluster) -> None:
    """Those behind it must not wait for ever."""
    async with connect(cluster.uri, in_flight_entries_max=4, batch_entries_max=2) as bk:
        writer: Any = await bk.create_ledger()

        async def append(number: int) -> int:
            payload = b"good" if number % 3 else ("text" if number % 2 else bytes(5 * 2**20))
            try:
                return int(await writer.append(payload))
            except BadRequestError:
                return -1

        async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as group:
            tasks = [group.create_task(append(number)) for number in range(60)]
        assert [task.result() for task in tasks if task.result() >= 0] == list(range(40))
        assert await writer.append(b"more") == 40


@pytest.mark.parametrize("ledger_id", [1.5, "7", None, -1, 2**63])
async def test_a_ledger_id_is_an_integer(bk: BookKeeper, ledger_id: Any) -> None:
    """Anything else would leave a key behind that no listing of ledgers gets over."""
    if ledger_id is not None:
        with pytest.raises(
            BadRequestError, match=r"is not a ledger id|ledger_id must be an integer"
        ):
            await bk.create_ledger(ledger_id=ledger_id)
    for call in (bk.open_ledger, bk.delete_ledger, bk.ledger_metadata, bk.claim_ledger):
        with pytest.raises(
            BadRequestError, match=r"is not a ledger id|ledger_id must be an integer"
        ):
            await call(ledger_id)
    assert [found async for found in bk.list_ledgers()] == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"ensemble_size": "3"},
        {"ensemble_size": 3.0},
        {"ensemble_size": True, "write_quorum_size": True, "ack_quorum_size": True},
        {"password": "text"},
        {"password": None},
        {"digest_type": None},
        {"digest_type": 3},
        {"custom_metadata": {"a": "text"}},
        {"custom_metadata": {1: b"x"}},
        {"custom_metadata": [1]},
    ],
)
async def test_a_ledger_is_not_created_of_wrong_types(
    bk: BookKeeper, arguments: dict[str, Any]
) -> None:
    """Not even its metadata."""
    with pytest.raises(BadRequestError):
        await bk.create_ledger(**arguments)
    assert [found async for found in bk.list_ledgers()] == []


async def test_entry_ids_of_a_reader_are_integers(bk: BookKeeper) -> None:
    """Beyond all ids, too."""
    async with await bk.create_ledger() as writer:
        await writer.append(b"x")
    reader: Any = await bk.open_ledger(writer.ledger_id)
    for first, last in [("0", None), (0.5, None), (None, None), (0, "1"), (2**63, None), (0, -2)]:
        with pytest.raises(BadRequestError):
            await anext(reader.read(first, last))
    for start in (-1, "0", None, 2**63):
        with pytest.raises(BadRequestError):
            await anext(reader.tail(start))


async def test_a_reversed_range_is_refused(bk: BookKeeper) -> None:
    """It would read like an empty ledger; a range that ends before its first entry is empty."""
    async with await bk.create_ledger() as writer:
        await writer.append_many([b"x"] * 9)
    reader = await bk.open_ledger(writer.ledger_id)
    for entries in (reader.read(5, 3), reader.read_batches(5, 3), reader.read(5, -1)):
        with pytest.raises(BadRequestError, match=r"^the range of entries 5 to -?\d is reversed$"):
            await anext(entries)
    for first, last in [(5, 4), (0, -1), (9, 8), (9, None), (20, None)]:
        assert [entry async for entry in reader.read(first, last)] == []


async def test_handles_of_a_closed_client_say_so(cluster: RealCluster) -> None:
    """At once, whatever they are asked."""
    async with connect(cluster.uri) as bk:
        writer = await bk.create_ledger()
        await writer.append(b"x")
        async with await bk.create_ledger() as other:
            await other.append(b"y")
        open_reader = await bk.open_ledger(writer.ledger_id)
        closed_reader = await bk.open_ledger(other.ledger_id)
        with pytest.raises(BadRequestError, match="connected already"):
            await bk.__aenter__()
    async with asyncio.timeout(SECONDS_MAX):
        for call in (writer.force(), writer.append(b"z"), writer.close(), open_reader.refresh()):
            with pytest.raises(ClientClosedError):
                await call
        for reader in (open_reader, closed_reader):
            for entries in (reader.read(), reader.tail()):
                with pytest.raises(ClientClosedError):
                    await anext(entries)
    async with bk:
        assert [found async for found in bk.list_ledgers()] == [0, 1]


async def test_a_metadata_uri_is_a_string() -> None:
    """Whatever else it is."""
    wrong: Any = 5
    with pytest.raises(ConfigurationError, match="must be a string"):
        await connect(wrong).__aenter__()


async def test_digests_can_be_checked_with_the_key_in_the_metadata(
    bk: BookKeeper,
) -> None:
    """So that repair and inspection need no password."""
    async with await bk.create_ledger(digest_type="hmac", password=b"secret") as writer:
        await writer.append(b"payload")
    metadata = await bk.ledger_metadata(writer.ledger_id)
    assert metadata.digest_type is DigestType.HMAC
    digester = digester_for_key(metadata.digest_type, metadata.password_key)
    endpoint = next(iter(bk.bookies().values())).endpoints[0]
    async with asyncio.TaskGroup() as tasks:
        channel = BookieChannel(f"{endpoint.host}:{endpoint.port}", bk.instance_id, tasks)
        reply = await channel.read(ReadCommand(writer.ledger_id, 0, 0), timeout=SECONDS_MAX)
        await channel.close()
    assert reply.batch is not None
    packet = reply.batch.packets()[0]
    assert unpack_packet(writer.ledger_id, 0, packet, digester) == b"payload"
