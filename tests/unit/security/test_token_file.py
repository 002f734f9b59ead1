"""The token of a client: read from its file, sent by TLS alone, and changed with the file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from grpc import aio

import bookie
import bookie.sync
from bookie.cli import node
from bookie.cluster.registration_record import Endpoint
from bookie.config import SecuritySettings
from bookie.errors import ConfigurationError
from bookie.security import PemFiles, followed_file
from bookie.security.token_file import TOKEN_BYTES_MAX, TokenFile
from bookie.wire.grpc import transport
from bookie.wire.grpc.credentials import ChannelSecurity, ServerSecurity
from tests.unit.security.test_grpc_tls import settings
from tests.unit.security.test_pem_files import Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first.to.ken\n")
    return path


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call looks at the file."""
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)


def replace(path: Path, content: str) -> None:
    new = path.with_name("new")
    new.write_text(content)
    os.replace(new, path)


def test_a_changed_file_is_read_once_a_second(path: Path) -> None:
    clock = Clock()
    file = TokenFile(str(path), clock)
    assert file.authorization() == "Bearer first.to.ken"
    replace(path, "second.to.ken")
    clock.seconds += followed_file.LOOK_SECONDS / 2
    assert file.authorization() == "Bearer first.to.ken"
    clock.seconds += followed_file.LOOK_SECONDS
    assert file.authorization() == "Bearer second.to.ken"


@pytest.mark.usefixtures("at_once")
def test_the_former_token_stays_until_the_file_is_whole(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = TokenFile(str(path))
    for content, said in (("", "holds no token"), (None, "no such file")):
        caplog.clear()
        path.unlink() if content is None else path.write_text(content)
        for _ in range(3):
            assert file.authorization() == "Bearer first.to.ken"
        (line,) = caplog.messages
        assert said in line
        assert "security.token_file" in line
    path.write_text("second.to.ken")
    assert file.authorization() == "Bearer second.to.ken"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be used: no such file"),
        (b"", "holds no token"),
        (b" \n", "holds no token"),
        (b"two words", "holds no token"),
        (b"two\nlines", "holds no token"),
        (b"\xff\xfe", "holds no token"),
        (b"a" * (TOKEN_BYTES_MAX + 1), "longer than 8192 bytes"),
        (b"a" * 2**20, "longer than"),
    ],
)
def test_files_that_are_refused(path: Path, content: bytes | None, sentence: str) -> None:
    """At once, and not as a call that hangs; the sentence does not show the content."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    given = SecuritySettings.model_construct(token_file=str(path), ca_file="")
    for make in (lambda: TokenFile(str(path)), lambda: ChannelSecurity(given)):
        with pytest.raises(ConfigurationError, match=f"security.token_file .*{sentence}") as caught:
            make()
        assert "two" not in str(caught.value)


@pytest.mark.parametrize("connect", [bookie.connect, bookie.sync.connect])
def test_the_argument_of_connect(connect: Any, path: Path) -> None:
    """It is the setting, with the same rules."""
    with pytest.raises(ConfigurationError, match="token_file must be a path, not int"):
        connect("memory://tokens", token_file=7)
    with pytest.raises(ConfigurationError, match="a token travels only by TLS"):
        connect("memory://tokens", token_file=path)


def test_the_longest_token(path: Path) -> None:
    path.write_text("a" * TOKEN_BYTES_MAX + "\r\n")
    assert len(TokenFile(str(path)).authorization()) == len("Bearer ") + TOKEN_BYTES_MAX


@asynccontextmanager
async def heard(certificates: Path) -> AsyncIterator[tuple[int, list[list[str]]]]:
    """A server by TLS, and the tokens that it heard, a list for each call."""
    calls: list[list[str]] = []

    def note(context: Any) -> None:
        pairs = context.invocation_metadata()
        calls.append([str(value) for key, value in pairs if key == "authorization"])

    async def answer(request: bytes, context: Any) -> bytes:
        note(context)
        return request

    async def stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        note(context)
        async for one in requests:
            yield one

    handlers = {
        "Call": grpc.unary_unary_rpc_method_handler(answer),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server = aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", handlers),))
    security = ServerSecurity(PemFiles(settings(certificates, "bookie")))
    port = transport.bind(server, "127.0.0.1:0", security.credentials())
    await server.start()
    try:
        yield port, calls
    finally:
        await server.stop(None)


@pytest.mark.usefixtures("at_once")
async def test_each_call_takes_the_token_of_its_moment(certificates: Path, path: Path) -> None:
    """The channel stays, and streams of adds show the token as other calls do."""
    security = ChannelSecurity(settings(certificates, "client", token_file=str(path)))
    credentials = security.credentials()
    async with (
        heard(certificates) as (port, calls),
        transport.open_channel(f"127.0.0.1:{port}", [], credentials) as channel,
    ):
        await channel.unary_unary("/Test/Call")(b"")
        stream = channel.stream_stream("/Test/Stream")()
        await stream.write(b"a")
        assert await stream.read() == b"a"
        replace(path, "second.to.ken")
        await channel.unary_unary("/Test/Call")(b"")
        await stream.write(b"b")
        assert await stream.read() == b"b", "a stream that stands goes on"
        await stream.done_writing()
        assert security.credentials() is credentials
    first, second = ["Bearer first.to.ken"], ["Bearer second.to.ken"]
    assert calls == [first, first, second]


async def test_a_renewed_certificate_keeps_the_token(
    renewable: Path, path: Path, certificates: Path
) -> None:
    security = ChannelSecurity(settings(renewable, "client", token_file=str(path)))
    before = security.credentials()
    async with heard(certificates) as (port, calls):
        for name in ("%s.pem", "%s-key.pem"):
            other = (certificates / (name % "bookie")).read_bytes()
            (renewable / (name % "client")).write_bytes(other)
        security._files._looked_at -= 10  # type: ignore[union-attr]
        after = security.credentials()
        assert after is not before
        async with transport.open_channel(f"127.0.0.1:{port}", [], after) as channel:
            await channel.unary_unary("/Test/Call")(b"")
    assert calls == [["Bearer first.to.ken"]]


async def test_without_a_token_nothing_is_sent(certificates: Path) -> None:
    credentials = ChannelSecurity(settings(certificates, "client")).credentials()
    async with (
        heard(certificates) as (port, calls),
        transport.open_channel(f"127.0.0.1:{port}", [], credentials) as channel,
    ):
        await channel.unary_unary("/Test/Call")(b"")
    assert calls == [[]]


@pytest.mark.parametrize("protocol", ["http", "https"])
async def test_commands_send_the_token_by_tls_alone(
    certificates: Path, path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        heard.append((request.method, request.headers.get("Authorization")))
        return web.json_response({})

    files = PemFiles(settings(certificates, "bookie"))
    application = web.Application()
    application.router.add_route("*", "/bookie", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(
        runner, "127.0.0.1", 0, ssl_context=files.context if protocol == "https" else None
    )
    await site.start()
    port = runner.addresses[0][1]

    async def address(*_: object) -> tuple[Endpoint, str, None]:
        return Endpoint("http", "127.0.0.1", port, protocol), "a cluster", None

    monkeypatch.setattr(node, "_http_address", address)
    given = settings(certificates, "client", token_file=str(path))
    for name in ("certificate_file", "key_file", "ca_file", "token_file"):
        monkeypatch.setenv(f"BOOKIE_SECURITY__{name.upper()}", getattr(given, name))
    try:
        await node._ask("memory://any", "b1", "bookie")
        await node._ask("memory://any", "b1", "bookie", {"read_only": True})
    finally:
        await runner.cleanup()
    sent = "Bearer first.to.ken" if protocol == "https" else None
    assert heard == [("GET", sent), ("PUT", sent)]
