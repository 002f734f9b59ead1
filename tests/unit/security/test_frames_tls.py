"""Frames by TLS: who is let in, what is said to others, and how a renewed certificate is taken.

Each case runs on both event loops, because each has a TLS of its own.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from bookie.config import SecuritySettings
from bookie.entry.batch import EntryBatch
from bookie.env import SystemClock
from bookie.errors import BookieError, BookieUnreachableError, NotPermittedError, TlsError
from bookie.ids import Status
from bookie.security import PemFiles, authority, followed_file
from bookie.security.audit import AuditLog
from bookie.security.gatekeeper import Gatekeeper, PrincipalRules
from bookie.security.grants import Grant, Grants
from bookie.security.permissions import LedgerLogs
from bookie.security.rights import Role
from bookie.telemetry import Metrics
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import encode_add_request, parse_add_response
from bookie.wire.frames.server import HANDSHAKES_MAX, FramesPort, hold_frames_port
from bookie.wire.grpc.credentials import ChannelSecurity
from bookie.wire.grpc.server.grpc_server import hold_port
from tests.unit.security.test_grpc_tls import QUICK_SECONDS, RPC, settings
from tests.unit.wire.fake_node import INSTANCE_ID, FakeNode, batch_of, until
from tests.unit.wire.frames.raw_peer import RawPeer, frame, hello

Case = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[Case], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a case on one kind of event loop."""

    def run_case(case: Case) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(case())

    return run_case


@asynccontextmanager
async def served(
    files: PemFiles | None, keeper: Gatekeeper | None = None
) -> AsyncIterator[FramesPort]:
    async with (
        hold_port("127.0.0.1", 0, RPC) as held,
        hold_frames_port("127.0.0.1", 0, RPC, files=files) as frames,
        held.serve(FakeNode(), Metrics(), keeper, beside=[frames]),
    ):
        yield frames


@asynccontextmanager
async def client(
    port: int, security: SecuritySettings, host: str = "127.0.0.1"
) -> AsyncIterator[BookieChannel]:
    async with asyncio.TaskGroup() as tasks:
        own = ChannelSecurity(security)
        channel = BookieChannel(f"{host}:{port}", INSTANCE_ID, tasks, security=own, is_framed=True)
        try:
            yield channel
        finally:
            await channel.close()


async def ask(port: int, security: SecuritySettings, host: str = "127.0.0.1") -> str:
    """The id of the bookie that answers a call, and accepts a stream."""
    async with asyncio.timeout(QUICK_SECONDS), client(port, security, host) as channel:
        opened, broken = asyncio.Event(), list[BookieError]()
        channel.add_stream(lambda *_: None, broken.append, opened.set)
        found = (await channel.info(timeout=QUICK_SECONDS)).bookie_id
        await opened.wait()
        assert broken == []
        return found


async def refused(port: int, security: SecuritySettings, host: str = "127.0.0.1") -> str:
    """The error of a call, which is the error of a stream as well."""
    async with asyncio.timeout(QUICK_SECONDS), client(port, security, host) as channel:
        with pytest.raises(BookieUnreachableError) as caught:
            await channel.info(timeout=QUICK_SECONDS)
        broken: list[BookieError] = []
        channel.add_stream(lambda *_: None, broken.append)
        await until(lambda: bool(broken))
        assert type(broken[0]) is caught.type
        return str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_both_ends_know_each_other(certificates: Path, host: str, run: Run) -> None:
    async def case() -> None:
        async with served(PemFiles(settings(certificates, "bookie"))) as port:
            assert await ask(port.port, settings(certificates, "client"), host)

    run(case)


def test_strangers(certificates: Path, strangers: Path, run: Run) -> None:
    """Without a certificate, with one of another CA, and in plaintext."""
    trusted = str(authority.certificate_path(certificates, "ca"))

    async def case() -> None:
        without = SecuritySettings(ca_file=trusted)
        stranger = settings(strangers, "client", ca_file=trusted)
        async with served(PemFiles(settings(certificates, "bookie"))) as held:
            for one in (without, stranger):
                assert "refuses this client's certificate" in await refused(held.port, one)
            assert "cannot be reached" in await refused(held.port, SecuritySettings())

    run(case)


def test_a_client_without_a_certificate_where_none_is_required(
    certificates: Path, run: Run
) -> None:
    async def case() -> None:
        one = SecuritySettings(ca_file=str(authority.certificate_path(certificates, "ca")))
        open_to_all = settings(certificates, "bookie", require_client_certificate=False)
        async with served(PemFiles(open_to_all)) as held:
            assert await ask(held.port, one)

    run(case)


def test_bookies_that_a_client_refuses(
    certificates: Path, strangers: Path, renewable: Path, run: Run
) -> None:
    """Of another CA; of another host; a client that poses as a bookie; without TLS at all."""
    authority.issue(renewable, "localhost")

    async def case() -> None:
        mine = settings(certificates, "client")
        async with served(PemFiles(settings(strangers, "bookie"))) as held:
            assert "is not signed by a CA in security.ca_file" in await refused(held.port, mine)
        async with served(PemFiles(settings(certificates, "elsewhere"))) as held:
            assert "its certificate is not for this host" in await refused(held.port, mine)
        async with served(PemFiles(settings(renewable, "localhost"))) as held:
            said = await refused(held.port, settings(renewable, "client"), "localhost")
            assert "is a client's, not a bookie's" in said
        async with served(None) as held:
            assert await refused(held.port, mine)

    run(case)


def test_a_renewed_certificate_ends_no_stream(
    renewable: Path, strangers: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """New connections see the new certificate; the stream of a connection that stands goes on."""
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)
    files = PemFiles(settings(renewable, "bookie"))
    mine = settings(renewable, "client")

    async def case() -> None:
        opened, broken = asyncio.Event(), asyncio.Event()
        answers: list[int] = []
        async with served(files) as held, client(held.port, mine) as channel:
            stream = channel.add_stream(
                lambda request_id, *_: answers.append(request_id),
                lambda _: broken.set(),
                opened.set,
            )
            await opened.wait()
            # Another CA altogether: who trusts the former one must be refused from now on.
            (renewable / "former.pem").write_bytes((renewable / "ca.pem").read_bytes())
            former = settings(renewable, "client", ca_file=str(renewable / "former.pem"))
            for name in ("ca.pem", "bookie.pem", "bookie-key.pem"):
                (renewable / name).write_bytes((strangers / name).read_bytes())
            assert files.refresh()
            assert "is not signed by a CA" in await refused(held.port, former)
            assert await ask(held.port, settings(strangers, "client"))
            stream.send(encode_add_request(1, 3, batch_of([40])))
            await until(lambda: answers == [1])
            assert not broken.is_set()

    run(case)


def test_a_client_takes_renewed_files(renewable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The context stays the same until then."""
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)
    security = ChannelSecurity(settings(renewable, "client"))
    before = security.context()
    assert before is not None
    assert security.context() is before
    authority.renew(renewable, "client")
    after = security.context()
    assert after is not before
    assert security.context() is after
    assert ChannelSecurity().context() is None


def test_a_channel_shows_a_renewed_certificate(
    renewable: Path, strangers: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Each connection takes the files as they are then; nobody opens another channel for it."""
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)

    async def case() -> None:
        async with (
            served(PemFiles(settings(strangers, "bookie"))) as held,
            client(held.port, settings(renewable, "client")) as channel,
        ):
            with pytest.raises(TlsError):
                await channel.info(timeout=QUICK_SECONDS)
            for name in ("ca.pem", "client.pem", "client-key.pem"):
                (renewable / name).write_bytes((strangers / name).read_bytes())
            assert (await channel.info(timeout=QUICK_SECONDS)).bookie_id

    run(case)


async def added(channel: BookieChannel) -> Status:
    """The status of an add."""
    answers: list[Status] = []
    stream = channel.add_stream(lambda _, status, *__: answers.append(status), lambda _: None)
    stream.send(encode_add_request(1, 3, batch_of([40])))
    await until(lambda: bool(answers))
    return answers[0]


async def listed(channel: BookieChannel) -> None:
    async for _ in channel.list_ledgers():
        raise AssertionError


def test_roles_go_by_the_certificate(certificates: Path, run: Run) -> None:
    """The client may write, but not list; a bookie's certificate has no role at all."""

    async def no_log(_ledger_id: int) -> None:
        return None

    async def case() -> None:
        clock = SystemClock()
        keeper = Gatekeeper(PrincipalRules(["cn:(.+)"]), LedgerLogs(no_log), clock, AuditLog(clock))
        keeper.take(Grants([Grant("client", Role.WRITER)]))
        async with served(PemFiles(settings(certificates, "bookie")), keeper) as held:
            for name, status in (("client", Status.OK), ("bookie", Status.NOT_PERMITTED)):
                async with client(held.port, settings(certificates, name)) as channel:
                    assert await added(channel) is status
                    with pytest.raises(NotPermittedError):
                        await listed(channel)

    run(case)


def test_large_messages_and_many(certificates: Path, run: Run) -> None:
    """TLS cuts them into records; nothing is lost, and the order stays."""

    async def case() -> None:
        async with (
            served(PemFiles(settings(certificates, "bookie"))) as held,
            client(held.port, settings(certificates, "client")) as channel,
        ):
            answers: list[int] = []
            stream = channel.add_stream(
                lambda request_id, *_: answers.append(request_id), lambda _: None
            )
            batches: list[EntryBatch] = [batch_of([1 << (n % 20) | 64]) for n in range(200)]
            for number, batch in enumerate(batches):
                stream.send(encode_add_request(number, 3, batch))
            await until(lambda: len(answers) == len(batches))
            assert answers == list(range(len(batches)))

    run(case)


def test_an_error_of_tls_is_a_tls_error(certificates: Path, strangers: Path, run: Run) -> None:
    """So a client says what to do, and waits for no bookie that it will never trust."""

    async def case() -> None:
        async with (
            served(PemFiles(settings(strangers, "bookie"))) as held,
            client(held.port, settings(certificates, "client")) as channel,
        ):
            with pytest.raises(TlsError):
                await channel.info(timeout=QUICK_SECONDS)

    run(case)


def test_silent_clients_delay_their_own_address_alone(certificates: Path, run: Run) -> None:
    """The handshakes of an address have a bound, and a stop does not wait for any of them."""

    async def case() -> None:
        context = ChannelSecurity(settings(certificates, "client")).context()
        files = PemFiles(settings(certificates, "bookie"))
        async with served(files) as held, AsyncExitStack() as stack:

            async def connect(host: str, tls: ssl.SSLContext | None) -> asyncio.StreamWriter:
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", held.port, ssl=tls, local_addr=(host, 0)
                )
                stack.callback(writer.close)
                return writer

            silent = [await connect("127.0.0.1", None) for _ in range(HANDSHAKES_MAX + 4)]
            await until(lambda: len(held._coming) == len(silent))
            (handshakes,) = held._handshakes.values()
            assert handshakes.locked()
            async with asyncio.timeout(QUICK_SECONDS):
                await connect("127.0.0.2", context)
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(connect("127.0.0.1", context))
                await until(lambda: len(held._coming) == len(silent) + 1)
                for _ in range(100):
                    await asyncio.sleep(0)
                assert not waiting.done()
                for writer in silent[:5]:
                    writer.transport.abort()
                async with asyncio.timeout(QUICK_SECONDS):
                    await waiting

    run(case)
    gc.collect()  # a socket that is left open warns


def test_many_small_frames_in_one_record(certificates: Path, run: Run) -> None:
    """They are taken in several turns, also if the client closes behind them."""

    async def case() -> None:
        context = ChannelSecurity(settings(certificates, "client")).context()
        files, count = PemFiles(settings(certificates, "bookie")), 3000
        async with served(files) as held:
            for closes in (False, True):
                reader, writer = await asyncio.open_connection("127.0.0.1", held.port, ssl=context)
                peer = RawPeer(reader, writer)
                adds = [encode_add_request(n, 3, batch_of([40])) for n in range(count)]
                writer.write(hello("AddStream") + b"".join(map(frame, adds)))
                if not closes:
                    await peer.hello()
                    for number in range(count):
                        answer = parse_add_response(await peer.message())
                        assert (answer.request_id, answer.status) == (number, Status.OK)
                writer.close()
                await until(lambda: not held._connections)

    run(case)
