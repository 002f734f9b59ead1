"""Peers that abuse the HTTP port, from an address of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from tests.abuse.target import HOSTILE_ADDRESS, Target

Tell = Callable[[str, object], None]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

ATTACK_SECONDS = 5.0
READ_BYTES = 65536


@asynccontextmanager
async def opened(target: Target) -> AsyncIterator[Stream]:
    """A connection to the HTTP port."""
    streams = await asyncio.open_connection(
        "127.0.0.1", target.http_port, local_addr=(HOSTILE_ADDRESS, 0)
    )
    try:
        yield streams
    finally:
        streams[1].transport.abort()


async def asked(target: Target, request: bytes) -> bytes:
    """The answer to these bytes, as far as the bookie sends one before it hangs up."""
    answer = b""
    async with opened(target) as (reader, writer):
        writer.write(request)
        with suppress(ConnectionError):
            while part := await reader.read(READ_BYTES):
                answer += part
    return answer


PATHS = (
    "/../../../../etc/passwd",
    "/..%2f..%2f..%2fetc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/metrics/../../etc/passwd",
    "/metrics/..;/bookie",
    "//etc/passwd",
    "/./../journal",
    "/\\..\\..\\etc\\passwd",
    "/check%00/../../etc/passwd",
    "/%c0%ae%c0%ae/etc/passwd",
    "http://127.0.0.1:1/etc/passwd",
    "/" + "a/../" * 1000 + "etc/passwd",
    "/" + "b" * 9000,
)


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_paths_that_lead_elsewhere(
    target: Target, record_property: Tell, method: str
) -> None:
    """No path leads out of the pages that there are."""
    async with target.under_attack(f"HTTP paths by {method}", record_property) as on:
        count, until = 0, time.monotonic() + 2
        while time.monotonic() < until:
            for path in PATHS:
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nBookie-Id: b1\r\nConnection: close"
                answer = await asked(target, f"{head}\r\nContent-Length: 0\r\n\r\n".encode())
                status, _, body = answer.partition(b"\r\n")
                assert status.split()[1] in (b"400", b"403", b"404", b"405"), (path, answer)
                assert b"root:" not in body
                count += 1
        on.note(f"{count} refused")


BOMBS: dict[str, bytes] = {
    "a header without end": b"GET /readyz HTTP/1.1\r\nX: " + b"b" * 1_000_000,
    "a line without end": b"GET /" + b"b" * 1_000_000,
    "thousands of headers": b"GET /readyz HTTP/1.1\r\n" + b"X: b\r\n" * 100_000,
    "chunks without end": b"PUT /read-only HTTP/1.1\r\nHost: x\r\nBookie-Id: b1\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1\r\nb\r\n"
    * 200_000,
    "a body that is too large": b"PUT /read-only HTTP/1.1\r\nHost: x\r\nBookie-Id: b1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n" + b"b" * 1_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
async def test_bombs(target: Target, record_property: Tell, name: str) -> None:
    """Large requests by eight connections at a time, again and again."""
    async with target.under_attack(f"HTTP, {name}", record_property) as on:
        count, until = 0, time.monotonic() + ATTACK_SECONDS
        while time.monotonic() < until:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(8):
                    tasks.create_task(_until_refused(target, BOMBS[name]))
            count += 8
        on.note(f"{count} sent")


async def _until_refused(target: Target, request: bytes) -> None:
    async with opened(target) as (reader, writer):
        writer.write(request)
        with suppress(ConnectionError):
            answer = await reader.read(READ_BYTES)
            assert not answer.startswith(b"HTTP/1.1 2"), answer


async def _drip(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(b"b")
        await asyncio.sleep(0.5)


SLOW: dict[str, bytes] = {
    "1 000 silent connections": b"",
    "1 000 slow heads": b"GET /readyz HTTP/1.1\r\nX: ",
    "1 000 slow bodies": b"PUT /read-only HTTP/1.1\r\nHost: x\r\nBookie-Id: b1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n",
}


@pytest.mark.parametrize("name", SLOW)
async def test_slow_peers(target: Target, record_property: Tell, name: str) -> None:
    """Connections that stay, and say a byte now and then."""
    async with (
        target.under_attack(f"HTTP, {name}", record_property) as on,
        AsyncExitStack() as stack,
    ):
        async with asyncio.TaskGroup() as tasks:
            dripping = []
            for number in range(1000):
                _, writer = await stack.enter_async_context(opened(target))
                writer.write(SLOW[name])
                if SLOW[name]:
                    dripping.append(tasks.create_task(_drip(writer)))
                if number % 50 == 0:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(ATTACK_SECONDS)
            for one in dripping:
                one.cancel()
        for reason in ("http_address", "http_total"):
            sample = f'bookie_connections_ended_total{{reason="{reason}"}}'
            on.note(f"{reason} {await target.metric(sample):.0f}")
