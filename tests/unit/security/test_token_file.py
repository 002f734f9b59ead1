"""The token of a client: read from its file, sent by TLS alone, and changed with the file."""

from __future__ import annotations

import asyncio
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
from bookie.wire.client.channel import BookieChannel
from bookie.wire.grpc import transport
from bookie.wire.grpc.credentials import ChannelSecurity, ServerSecurity
from bookie.wire.interfaces import SERVICE
from tests.unit.security.test_grpc_tls import QUICK_SECONDS, settings
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
async def heard(
    certificates: Path,
    security: ChannelSecurity | None,
    *,
    is_plain: bool = False,
    cut: asyncio.Event | None = None,
) -> AsyncIterator[tuple[BookieChannel, list[list[str]]]]:
    """A channel to a server, and the tokens that it heard, a list for each call.

    The server speaks TLS, or is plain. It ends a stream at `cut`.
    """
    cut = cut or asyncio.Event()
    calls: list[list[str]] = []

    def note(context: Any) -> None:
        pairs = context.invocation_metadata()
        calls.append([str(value) for key, value in pairs if key == "authorization"])

    async def answer(_: bytes, context: Any) -> bytes:
        note(context)
        return b""

    async def stream(_: object, context: Any) -> None:
        note(context)
        await context.send_initial_metadata(())
        await cut.wait()
        cut.clear()

    handlers = {
        "GetInfo": grpc.unary_unary_rpc_method_handler(answer),
        "AddStream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server = aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    of_server = ServerSecurity(PemFiles(settings(certificates, "bookie")))
    port = transport.bind(server, "127.0.0.1:0", None if is_plain else of_server.credentials())
    await server.start()
    try:
        async with asyncio.TaskGroup() as tasks:
            channel = BookieChannel(f"127.0.0.1:{port}", "a cluster", tasks, security=security)
            yield channel, calls
            await channel.close()
    finally:
        await server.stop(None)


async def ask(channel: BookieChannel) -> None:
    await channel.info(timeout=QUICK_SECONDS)


@pytest.mark.usefixtures("at_once")
async def test_each_call_takes_the_token_of_its_moment(certificates: Path, path: Path) -> None:
    """The channel stays, and streams of adds show the token as other calls do."""
    security = ChannelSecurity(settings(certificates, "client", token_file=str(path)))
    async with heard(certificates, security) as (channel, calls):
        await ask(channel)
        opened, broken = asyncio.Event(), asyncio.Event()
        stream = channel.add_stream(lambda *_: None, lambda _: broken.set(), opened.set)
        await opened.wait()
        replace(path, "second.to.ken")
        await ask(channel)
        assert not broken.is_set(), "a stream that stands goes on"
        assert security.credentials() is channel.credentials
        opened.clear()
        await stream.close()
        stream = channel.add_stream(lambda *_: None, lambda _: broken.set(), opened.set)
        await opened.wait()
    first, second = ["Bearer first.to.ken"], ["Bearer second.to.ken"]
    assert calls == [first, first, second, second]


@pytest.mark.usefixtures("at_once")
async def test_a_stream_that_is_opened_again_takes_the_token_of_its_moment(
    certificates: Path, path: Path
) -> None:
    security = ChannelSecurity(settings(certificates, "client", token_file=str(path)))
    cut = asyncio.Event()
    async with heard(certificates, security, cut=cut) as (channel, calls):
        opened, broken = asyncio.Event(), asyncio.Event()
        stream = channel.add_stream(lambda *_: None, lambda _: broken.set(), opened.set)
        await opened.wait()
        replace(path, "second.to.ken")
        cut.set()
        await broken.wait()
        opened.clear()
        stream.reopen()
        await opened.wait()
    assert calls == [["Bearer first.to.ken"], ["Bearer second.to.ken"]]


async def test_calls_for_one_process_of_a_bookie_show_the_token(path: Path) -> None:
    given = SecuritySettings.model_construct(token_file=str(path))
    async with asyncio.TaskGroup() as tasks:
        channel = BookieChannel("127.0.0.1:1", "c", tasks, security=ChannelSecurity(given))
        for incarnation, life in (("", ""), ("i", ""), ("", "l")):
            pairs = dict(channel._metadata_for(incarnation, life))
            assert pairs["authorization"] == "Bearer first.to.ken"
        await channel.close()


@pytest.mark.parametrize("is_plain", [False, True])
async def test_without_a_token_or_tls_nothing_is_sent(certificates: Path, is_plain: bool) -> None:
    security = None if is_plain else ChannelSecurity(settings(certificates, "client"))
    async with heard(certificates, security, is_plain=is_plain) as (channel, calls):
        await ask(channel)
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
