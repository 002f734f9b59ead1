"""The HTTP pages of a bookie."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, closing

import aiohttp
import pytest
import uvloop

from bookie.daemon import http
from bookie.daemon.http import Administration, serve_http
from bookie.daemon.http_listener import ListenerBounds
from bookie.daemon.readiness import Part, Readiness
from bookie.errors import CannotStartError
from bookie.telemetry import Metrics


async def get(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, content type and body of one request."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, response.headers["Content-Type"], await response.text()


async def test_not_ready_until_boot_has_ended() -> None:
    """While the bookie boots it lives but takes no traffic, and says why."""
    readiness = Readiness()
    async with serve_http(Metrics(), readiness, host="127.0.0.1", port=0) as port:
        status, _, body = await get(port, "/readyz")
        assert status == 503
        assert "boot: the bookie is starting" in body
        assert (await get(port, "/healthz"))[0] == 200
        readiness.clear(Part.BOOT)
        assert (await get(port, "/readyz"))[0] == 200


@pytest.mark.parametrize("part", list(Part))
async def test_any_part_can_stop_traffic(part: Part) -> None:
    """Each obstacle is named; none of them asks for a restart."""
    readiness = Readiness()
    readiness.clear(Part.BOOT)
    readiness.block(part, "because")
    async with serve_http(Metrics(), readiness, host="127.0.0.1", port=0) as port:
        status, _, body = await get(port, "/readyz")
        assert status == 503
        assert f"{part}: because" in body
        assert (await get(port, "/healthz"))[0] == 200


async def test_read_only_is_ready_and_says_so() -> None:
    """A read-only bookie still answers reads, so it stays ready, with a remark."""
    readiness = Readiness()
    readiness.clear(Part.BOOT)
    readiness.remark(Part.READ_ONLY, "read-only")
    readiness.remark(Part.DOUBT, "in doubt")
    async with serve_http(Metrics(), readiness, host="127.0.0.1", port=0) as port:
        status, _, body = await get(port, "/readyz")
        assert status == 200
        assert '"remarks": ["read-only", "in doubt"]' in body
    readiness.remark(Part.READ_ONLY, "")
    readiness.remark(Part.DOUBT, "")
    assert readiness.report()["remarks"] == []


async def test_metrics_are_this_bookies() -> None:
    """The text format of the bookie's own registry."""
    metrics = Metrics()
    metrics.entries_added_total.inc(7)
    async with serve_http(metrics, Readiness(), host="127.0.0.1", port=0) as port:
        status, content_type, body = await get(port, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    assert "bookie_entries_added_total 7.0" in body


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/readyz", 405), ("GET", "/../etc/passwd", 404)]
)
async def test_nothing_else_is_served(method: str, path: str, status: int) -> None:
    """Pages are read-only and there are no others."""
    async with serve_http(Metrics(), Readiness(), host="127.0.0.1", port=0) as port:
        assert (await get(port, path, method))[0] == status


async def test_port_taken_is_one_sentence() -> None:
    """A taken port is the configuration's fault, said in one sentence."""
    async with serve_http(Metrics(), Readiness(), host="127.0.0.1", port=0) as port:
        with pytest.raises(CannotStartError, match=f"cannot serve HTTP on 127.0.0.1:{port}: "):
            async with serve_http(Metrics(), Readiness(), host="127.0.0.1", port=port):
                pytest.fail("two servers on one port")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits for nobody."""
    monkeypatch.setattr(http, "IDLE_SECONDS_MAX", 0.05)
    monkeypatch.setattr(http, "BODY_SECONDS_MAX", 0.05)


SILENT_SECONDS_MAX = 120.0
"""For a connection to be closed that is due after a twentieth of a second."""


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: a", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 200 OK"),
        (
            b"PUT /read-only HTTP/1.1\r\nHost: a\r\nBookie-Id: b1\r\n"
            b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
            b"HTTP/1.1 408 Request Timeout",
        ),
    ],
    ids=["nothing", "half a header", "a request", "half a body"],
)
@pytest.mark.usefixtures("impatient")
async def test_a_client_that_falls_silent_is_not_kept(sent: bytes, answer: bytes) -> None:
    """Connections are descriptors, which the bookie needs for its files."""
    administration = Administration("b1")
    async with (
        serve_http(Metrics(), Readiness(), administration, host="127.0.0.1", port=0) as port,
        asyncio.timeout(SILENT_SECONDS_MAX),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(sent)
            received = await reader.read()
    assert received.split(b"\r\n")[0] == answer


async def test_connections_are_bounded() -> None:
    """The oldest ones make room, so that probes are still answered."""
    async with (
        serve_http(
            Metrics(), Readiness(), host="127.0.0.1", port=0, bounds=ListenerBounds(3, 3)
        ) as port,
        asyncio.timeout(SILENT_SECONDS_MAX),
    ):
        with ExitStack() as connections:
            readers = []
            for _ in range(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                connections.enter_context(closing(writer))
                readers.append(reader)
            for reader in readers[:7]:
                assert await reader.read() == b""
            assert (await get(port, "/healthz"))[0] == 200
            assert await readers[7].read() == b""
            assert not readers[9].at_eof()


@pytest.mark.parametrize(
    "line", ["Authorization Bearer secret", "GET /secret HTTP/1.1", "Authorization: secret\x00"]
)
async def test_a_malformed_request_is_not_quoted(
    line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its line may hold a token, and answers pass proxies that log."""
    caplog.set_level("DEBUG")
    async with (
        serve_http(Metrics(), Readiness(), host="127.0.0.1", port=0) as port,
        asyncio.timeout(SILENT_SECONDS_MAX),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(f"GET /healthz HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n".encode())
            received = await reader.read()
    assert received.split(b"\r\n")[0].endswith(b" 400 Bad Request")
    assert received.endswith(b"the request is not well-formed HTTP")
    assert b"secret" not in received
    assert "secret" not in caplog.text


async def test_connections_of_one_address_are_bounded() -> None:
    """It loses its own oldest ones; others keep theirs, whoever came first."""
    metrics = Metrics()
    async with (
        serve_http(
            metrics, Readiness(), host="127.0.0.1", port=0, bounds=ListenerBounds(6, 3)
        ) as port,
        asyncio.timeout(SILENT_SECONDS_MAX),
    ):
        with ExitStack() as connections:

            async def opened(source: str) -> asyncio.StreamReader:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=(source, 0)
                )
                connections.enter_context(closing(writer))
                return reader

            other = await opened("127.0.0.2")
            flood = [await opened("127.0.0.3") for _ in range(12)]
            for reader in flood[:9]:
                assert await reader.read() == b""
            assert (await get(port, "/healthz"))[0] == 200
            assert not any(reader.at_eof() for reader in [other, *flood[9:]])
    ended = {
        reason: metrics.registry.get_sample_value(
            "bookie_connections_ended_total", {"reason": reason}
        )
        for reason in ("http_address", "http_total")
    }
    assert ended == {"http_address": 9, "http_total": 0}


def test_a_burst_of_connections_leaves_nothing_behind() -> None:
    """On the loop of a bookie, which is uvloop: they are ended while they begin."""
    metrics, burst = Metrics(), 200

    async def run() -> None:
        bounds = ListenerBounds(in_all=100, per_address=10)
        async with (
            serve_http(metrics, Readiness(), host="127.0.0.1", port=0, bounds=bounds) as port,
            asyncio.timeout(SILENT_SECONDS_MAX),
        ):
            other, writer = await asyncio.open_connection("127.0.0.1", port)
            with ExitStack() as connections:
                for number in range(burst):
                    one = connections.enter_context(closing(socket.socket()))
                    one.bind(("127.0.0.3", 0))
                    one.connect(("127.0.0.1", port))  # the loop accepts many at once
                    if number % 20 == 0:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
            for _ in range(20):
                assert (await get(port, "/healthz"))[0] == 200
            assert not other.at_eof()
            writer.close()

    uvloop.run(run())
    ended = metrics.registry.get_sample_value(
        "bookie_connections_ended_total", {"reason": "http_address"}
    )
    assert ended is not None
    assert burst // 4 < ended <= burst
