"""A daemon from ready to stopped: what it tells the cluster, the service manager and probes."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket

import aiohttp
import crc32c

from bookie.cluster.directory import BookieDirectory
from bookie.cluster.instance import read_instance_id
from bookie.daemon.inspection import inspect_file
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import pack_batch
from bookie.ids import Status
from bookie.metadata.connect import open_store
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import encode_add_request
from tests.fault.daemon_process import Home, serving

DIGESTER = digester_for_key(DigestType.CRC32C, b"")
DISK_FAILED = 74


async def add_entries(home: Home, first: int, count: int, size: int) -> list[Status]:
    """Add `count` entries of `size` bytes to ledger 7, one a request, up to the first refusal."""
    answers: asyncio.Queue[Status] = asyncio.Queue()
    async with open_store(home.metadata_uri) as store:
        instance_id = await read_instance_id(store)
    got = []
    async with asyncio.TaskGroup() as tasks:
        address = f"127.0.0.1:{home.sections['listen']['port']}"
        channel = BookieChannel(address, instance_id, tasks)
        stream = channel.add_stream(
            lambda _id, status, *_: answers.put_nowait(status),
            lambda _error: answers.put_nowait(Status.IO_ERROR),
        )
        for entry_id in range(first, first + count):
            batch = pack_batch(7, entry_id, -1, 0, [bytes(size)], DIGESTER)
            crc = crc32c.crc32c(batch.payload)
            stream.send(encode_add_request(entry_id, 7, batch, payload_crc32c=crc))
            got.append(await answers.get())
            if got[-1] is not Status.OK:
                break
        await channel.close()
    return got


async def test_registration_comes_with_ready_and_goes_with_sigterm(home: Home) -> None:
    """The cluster sees the bookie while it serves; SIGTERM takes it off the list first."""
    async with (
        open_store(home.metadata_uri) as store,
        BookieDirectory(store) as directory,
        serving(home.write()) as daemon,
    ):
        while "b1" not in directory.bookies():
            await directory.wait_for_change()
        endpoint = directory.resolve("b1")
        assert (endpoint.host, endpoint.port) == ("127.0.0.1", home.sections["listen"]["port"])
        assert directory.bookies()["b1"].free_bytes > 0
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            # Scripts that reload daemons or rotate logs send these; a bookie must not die of them.
            daemon.lines.clear()
            daemon.process.send_signal(number)
            await daemon.until("signal_ignored")
            assert json.loads(daemon.lines[-1])["signal"] == number.name
        daemon.process.send_signal(signal.SIGTERM)
        while "b1" in directory.bookies():
            await directory.wait_for_change()
        assert await daemon.end() == 0
    events = [json.loads(line)["event"] for line in daemon.lines]
    assert events[-1] == "stopped"


async def test_service_manager_and_probes(home: Home) -> None:
    """READY=1 comes when /readyz says 200; STOPPING=1 with SIGTERM; WATCHDOG=1 in between."""
    loop = asyncio.get_running_loop()
    http = f"http://127.0.0.1:{home.sections['http']['port']}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        manager.bind(str(home.path / "notify"))
        variables = {"NOTIFY_SOCKET": str(home.path / "notify"), "WATCHDOG_USEC": "200000"}
        async with serving(home.write(), **variables) as daemon, asyncio.timeout(60):
            heard: list[bytes] = []
            while not any(b"READY=1" in message for message in heard):
                heard.append(await loop.sock_recv(manager, 4096))
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{http}/readyz") as response:
                    assert (response.status, (await response.json())["ready"]) == (200, True)
                async with session.get(f"{http}/metrics") as response:
                    assert "bookie_server_status 1.0" in await response.text()
            assert await loop.sock_recv(manager, 4096) == b"WATCHDOG=1"
            daemon.process.send_signal(signal.SIGTERM)
            while not any(b"STOPPING=1" in message for message in heard):
                heard.append(await loop.sock_recv(manager, 4096))
            assert await daemon.end() == 0


async def test_clean_stop_vouches_for_the_journal(home: Home) -> None:
    """After an orderly stop the last block says that everything before it was synced."""
    async with serving(home.write()) as daemon:
        await daemon.until("registered")
        assert await add_entries(home, 0, 3, 100) == [Status.OK] * 3
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0
    summary = inspect_file(max(home.journal.glob("*.journal")))
    assert summary.entries == 3
    assert summary.blocks_beyond == 0
    assert summary.blocks[-1].durable_upto >= summary.blocks[-2].end


async def test_failed_disk_ends_the_process_at_once(home: Home) -> None:
    """A write that fails is never answered with OK, and the process ends with status 74."""
    async with serving(home.write()) as daemon:
        await daemon.until("registered")
        assert await add_entries(home, 0, 1, 100) == [Status.OK]
        # A limit on the size of files makes the next writes fail, as a broken device would.
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        assert await add_entries(home, 1, 2, 100_000) == [Status.IO_ERROR]
        assert await daemon.end() == DISK_FAILED
    assert any('"event": "disk_failed"' in line for line in daemon.lines)


async def test_second_signal_does_not_wait(home: Home) -> None:
    """SIGTERM twice ends a daemon that still drains."""
    async with serving(home.write()) as daemon:
        await daemon.until("registered")
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() in (0, -signal.SIGTERM)
