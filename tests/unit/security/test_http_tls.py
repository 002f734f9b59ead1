"""HTTP by TLS: probes need no certificate, everything else does."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bookie.config import SecuritySettings
from bookie.daemon import http
from bookie.daemon.http import Administration, HttpAccess, serve_http
from bookie.daemon.http_listener import ListenerBounds
from bookie.daemon.readiness import Readiness
from bookie.security import PemFiles, authority, followed_file
from bookie.security.contexts import client_context
from bookie.telemetry import Metrics
from tests.unit.security.test_grpc_tls import QUICK_SECONDS, settings


def serve(files: PemFiles, **others: Any) -> Any:
    access = HttpAccess(files)
    return serve_http(
        *(Metrics(), Readiness(), Administration("b1")),
        host="127.0.0.1",
        port=0,
        access=access,
        **others,
    )


async def status(port: int, path: str, context: ssl.SSLContext, method: str = "GET") -> int:
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        url = f"https://127.0.0.1:{port}{path}"
        async with session.request(method, url, ssl=context) as response:
            return response.status


def only_trusting(directory: Path) -> ssl.SSLContext:
    ca = str(authority.certificate_path(directory, "ca"))
    return client_context(SecuritySettings(ca_file=ca))


async def test_who_may_ask_what(certificates: Path) -> None:
    known, unknown = client_context(settings(certificates, "client")), only_trusting(certificates)
    async with serve(PemFiles(settings(certificates, "bookie"))) as port:
        assert await status(port, "/healthz", unknown) == 200
        assert await status(port, "/readyz", unknown) == 503
        for path in ("/metrics", "/bookie", "/check", "/nowhere"):
            assert await status(port, path, unknown) == 403
        assert await status(port, "/read-only", unknown, "PUT") == 403
        assert await status(port, "/metrics", known) == 200
        assert await status(port, "/read-only", known, "PUT") == 400  # it names no bookie


async def test_where_no_certificate_is_required(certificates: Path) -> None:
    own = settings(certificates, "bookie", require_client_certificate=False)
    async with serve(PemFiles(own)) as port:
        assert await status(port, "/metrics", only_trusting(certificates)) == 200


async def test_a_certificate_of_another_ca_ends_the_connection(
    certificates: Path, strangers: Path
) -> None:
    trusted = str(authority.certificate_path(certificates, "ca"))
    stranger = client_context(settings(strangers, "client", ca_file=trusted))
    async with serve(PemFiles(settings(certificates, "bookie"))) as port:
        with pytest.raises(aiohttp.ClientError):
            await status(port, "/healthz", stranger)


async def test_nothing_older_than_tls_1_3(certificates: Path) -> None:
    older = only_trusting(certificates)
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serve(PemFiles(settings(certificates, "bookie"))) as port:
        with pytest.raises(aiohttp.ClientError):
            await status(port, "/healthz", older)


async def test_no_plaintext(certificates: Path) -> None:
    async with (
        serve(PemFiles(settings(certificates, "bookie"))) as port,
        aiohttp.ClientSession() as one,
    ):
        with pytest.raises(aiohttp.ClientError):
            await one.get(f"http://127.0.0.1:{port}/healthz")


async def test_renewed_files_are_for_new_connections(
    renewable: Path, strangers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CA as well: who was trusted before is a stranger afterwards."""
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)
    before, after = (client_context(settings(one, "client")) for one in (renewable, strangers))
    files = PemFiles(settings(renewable, "bookie"))
    async with serve(files) as port, aiohttp.ClientSession() as standing:
        url = f"https://127.0.0.1:{port}/metrics"
        async with standing.get(url, ssl=before) as response:
            assert response.status == 200
            await response.read()
        for name in ("ca.pem", "bookie.pem", "bookie-key.pem"):
            (renewable / name).write_bytes((strangers / name).read_bytes())
        assert files.refresh()
        assert await status(port, "/metrics", after) == 200
        with pytest.raises(aiohttp.ClientError):
            await status(port, "/metrics", before)
        async with standing.get(url, ssl=before) as response:
            assert response.status == 200


@pytest.mark.parametrize("bounds", [ListenerBounds(3, 10), ListenerBounds(10, 3)])
async def test_silent_connections_are_bounded(certificates: Path, bounds: ListenerBounds) -> None:
    """They send not even the first bytes of a handshake; the oldest ones make room."""
    known = client_context(settings(certificates, "client"))
    async with (
        serve(PemFiles(settings(certificates, "bookie")), bounds=bounds) as port,
        asyncio.timeout(QUICK_SECONDS),
    ):
        with contextlib.ExitStack() as connections:
            readers = []
            for _ in range(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                connections.enter_context(contextlib.closing(writer))
                readers.append(reader)
            for reader in readers[:7]:
                assert await reader.read() == b""
            assert not readers[9].at_eof()
            assert await status(port, "/metrics", known) == 200


async def test_a_silent_connection_is_not_kept(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HANDSHAKE_SECONDS_MAX", 0.1)
    async with (
        serve(PemFiles(settings(certificates, "bookie"))) as port,
        asyncio.timeout(QUICK_SECONDS),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            assert await reader.read() == b""
