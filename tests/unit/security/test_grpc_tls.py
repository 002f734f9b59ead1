"""gRPC by TLS: who is let in, what is said to others, and how a renewed certificate is taken."""

from __future__ import annotations

import asyncio
import datetime
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from grpc import aio

from bookie.cluster.registration_record import Endpoint, Registration
from bookie.config import RpcSettings, SecuritySettings
from bookie.daemon.local.process import child_environment
from bookie.errors import BookieError, BookieUnreachableError, CannotStartError, TlsError
from bookie.repair.comparison import listed_bookies
from bookie.security import PemFiles, authority, followed_file
from bookie.security.identity import PeerIdentity, identity_of_call
from bookie.telemetry import Metrics
from bookie.wire.client.channel import BookieChannel
from bookie.wire.client.tls_problems import TlsHistory
from bookie.wire.grpc import transport
from bookie.wire.grpc.credentials import ChannelSecurity, ServerSecurity
from bookie.wire.grpc.server.grpc_server import HeldPort, hold_port
from tests.unit.wire.fake_node import BOOKIE_ID, INSTANCE_ID, FakeNode

RPC = RpcSettings(drain_seconds=0.2)
QUICK_SECONDS = 20.0
"""A refusal comes at once; what hangs takes longer than this, even on a busy machine."""


def settings(directory: Path, name: str, **others: Any) -> SecuritySettings:
    return SecuritySettings.model_validate(authority.settings_for(directory, name) | others)


@asynccontextmanager
async def served(
    files: PemFiles | None, plaintext_port: int | None = None
) -> AsyncIterator[HeldPort]:
    security = None if files is None else ServerSecurity(files)
    async with (
        hold_port("127.0.0.1", 0, RPC, security=security, plaintext_port=plaintext_port) as held,
        held.serve(FakeNode(), Metrics()),
    ):
        yield held


async def ask(port: int, security: SecuritySettings, host: str = "127.0.0.1") -> str:
    """The id of the bookie that answers."""
    answer: str | BookieError
    async with asyncio.timeout(QUICK_SECONDS), asyncio.TaskGroup() as tasks:
        address, own = f"{host}:{port}", ChannelSecurity(security)
        channel = BookieChannel(address, INSTANCE_ID, tasks, security=own)
        try:
            answer = (await channel.info(timeout=QUICK_SECONDS)).bookie_id
        except BookieError as error:
            answer = error  # not through the group, which would wrap it
        await channel.close()
    if isinstance(answer, BookieError):
        raise answer
    return answer


async def refused(port: int, security: SecuritySettings) -> str:
    with pytest.raises(BookieUnreachableError) as caught:
        await ask(port, security)
    return str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_both_ends_know_each_other(certificates: Path, host: str) -> None:
    async with served(PemFiles(settings(certificates, "bookie"))) as held:
        assert await ask(held.port, settings(certificates, "client"), host)


async def test_who_calls_is_known(certificates: Path) -> None:
    """The version, too: both ends are gRPC, so it is 1.3."""
    seen: list[tuple[PeerIdentity | None, Any]] = []

    async def answer(request: bytes, context: Any) -> bytes:
        properties = context.auth_context()
        seen.append((identity_of_call(properties), list(properties["ssl_tls_version"])))
        return request

    handlers = {"Call": grpc.unary_unary_rpc_method_handler(answer)}
    server = aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Test", handlers),))
    security = ServerSecurity(PemFiles(settings(certificates, "bookie")))
    port = transport.bind(server, "127.0.0.1:0", security.credentials())
    await server.start()
    for name in ("client", "bookie"):
        credentials = ChannelSecurity(settings(certificates, name)).credentials()
        async with transport.open_channel(f"127.0.0.1:{port}", [], credentials) as channel:
            await channel.unary_unary("/Test/Call")(b"")
    await server.stop(None)
    assert seen == [
        (PeerIdentity("client"), [b"TLSv1.3"]),
        (PeerIdentity("bookie", ("127.0.0.1", "localhost")), [b"TLSv1.3"]),
    ]


async def test_strangers(certificates: Path, strangers: Path) -> None:
    trusted = str(authority.certificate_path(certificates, "ca"))
    without = SecuritySettings(ca_file=trusted)
    stranger = settings(strangers, "client", ca_file=trusted)
    async with served(PemFiles(settings(certificates, "bookie"))) as held:
        for client in (without, stranger):
            said = await refused(held.port, client)
            assert "refuses this client's certificate" in said
        assert "cannot be reached" in await refused(held.port, SecuritySettings())


async def test_a_client_without_a_certificate_where_none_is_required(certificates: Path) -> None:
    client = SecuritySettings(ca_file=str(authority.certificate_path(certificates, "ca")))
    open_to_all = settings(certificates, "bookie", require_client_certificate=False)
    async with served(PemFiles(open_to_all)) as held:
        assert await ask(held.port, client)


async def test_an_impostor(certificates: Path, strangers: Path) -> None:
    """A bookie of a CA that the client does not trust."""
    async with served(PemFiles(settings(strangers, "bookie"))) as held:
        said = await refused(held.port, settings(certificates, "client"))
    assert "is not signed by a CA in security.ca_file" in said


async def test_another_bookie_of_the_same_ca(certificates: Path) -> None:
    """Its certificate is good, but not for this address."""
    async with served(PemFiles(settings(certificates, "elsewhere"))) as held:
        said = await refused(held.port, settings(certificates, "client"))
    assert "its certificate is not for this host" in said


async def test_a_client_that_poses_as_a_bookie(renewable: Path) -> None:
    """Its common name is that of the host, and its purpose is a client's."""
    authority.issue(renewable, "localhost")
    async with served(PemFiles(settings(renewable, "localhost"))) as held:
        with pytest.raises(TlsError, match="is a client's, not a bookie's"):
            await ask(held.port, settings(renewable, "client"), "localhost")


async def test_no_fall_back_to_plaintext(certificates: Path) -> None:
    async with served(None) as held:
        with pytest.raises(TlsError, match="does not speak TLS at this address"):
            await ask(held.port, settings(certificates, "client"))


async def test_a_port_without_tls_beside_it(certificates: Path) -> None:
    async with served(PemFiles(settings(certificates, "bookie")), plaintext_port=0) as held:
        assert held.plaintext_port not in (0, held.port)
        assert await ask(held.plaintext_port, SecuritySettings())
        assert await ask(held.port, settings(certificates, "client"))
        await refused(held.port, SecuritySettings())
        await refused(held.plaintext_port, settings(certificates, "client"))


async def test_a_renewed_certificate_ends_no_stream(
    renewable: Path, strangers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections see the new certificate; the stream of a connection that stands goes on."""
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)
    files = PemFiles(settings(renewable, "bookie"))
    client = settings(renewable, "client")
    opened, broken = asyncio.Event(), asyncio.Event()
    async with served(files) as held, asyncio.TaskGroup() as tasks:
        address = f"127.0.0.1:{held.port}"
        channel = BookieChannel(address, INSTANCE_ID, tasks, security=ChannelSecurity(client))
        channel.add_stream(lambda *_: None, lambda _: broken.set(), opened.set)
        await opened.wait()
        assert (await channel.info(timeout=QUICK_SECONDS)).bookie_id
        # Another CA altogether: who trusts the former one must be refused from now on.
        (renewable / "former.pem").write_bytes((renewable / "ca.pem").read_bytes())
        former = settings(renewable, "client", ca_file=str(renewable / "former.pem"))
        for name in ("ca.pem", "bookie.pem", "bookie-key.pem"):
            (renewable / name).write_bytes((strangers / name).read_bytes())
        assert files.refresh()
        with pytest.raises(TlsError, match="is not signed by a CA"):
            await ask(held.port, former)
        assert await ask(held.port, settings(strangers, "client"))
        assert (await channel.info(timeout=QUICK_SECONDS)).bookie_id
        assert not broken.is_set()
        await channel.close()


async def test_a_client_takes_renewed_files(
    renewable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)
    security = ChannelSecurity(settings(renewable, "client"))
    before = security.credentials()
    assert security.credentials() is before
    authority.renew(renewable, "client")
    after = security.credentials()
    assert after is not before
    assert security.credentials() is after


def test_without_a_ca_there_are_no_credentials() -> None:
    assert ChannelSecurity().credentials() is None


async def test_a_port_that_grpc_does_not_open(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library gives no reason, and with credentials there are two."""
    monkeypatch.setattr(transport, "bind", Mock(side_effect=RuntimeError("Failed to bind")))
    refusal = r"already in use, or gRPC refuses security\.certificate_file$"
    with pytest.raises(CannotStartError, match=refusal):
        async with served(PemFiles(settings(certificates, "bookie"))):
            raise AssertionError
    with pytest.raises(CannotStartError, match=r"already in use$"):
        async with served(None):
            raise AssertionError


def test_an_unchanged_configuration_is_not_replaced(
    renewable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC frees the former one, also under a handshake that uses it: the process would crash."""
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)
    dynamic = Mock()
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", dynamic)
    files = PemFiles(settings(renewable, "bookie"))
    ServerSecurity(files).credentials()
    present = dynamic.call_args.args[1]
    assert present() is None
    authority.renew(renewable, "bookie")
    assert files.refresh()
    assert present() is not None
    assert present() is None


@pytest.mark.parametrize("is_first", [True, False])
def test_a_connection_that_ends_in_the_handshake(is_first: bool) -> None:
    """It depends on how gRPC polls; a bookie that has answered before is only unreachable."""
    history = TlsHistory(uses_tls=True)
    history.was_ready = not is_first
    for ending in (
        "Socket closed",
        "Handshake read failed (Socket closed)",
        "Handshake read failed (recvmsg:Connection reset by peer (104))",
    ):
        details = f"failed to connect to all addresses; last error: UNAVAILABLE: b1:1: {ending}"
        assert ("refuses this client's certificate" in history.problem(details)) is is_first
        assert TlsHistory(uses_tls=False).problem(details) == ""
    refused = "failed to connect to all addresses; Failed to connect to remote host"
    assert history.problem(refused) == ""


@pytest.mark.parametrize(
    ("variables", "first"),
    [({}, "grpc"), ({"GRPC_EXPERIMENTS": ""}, "bookie")],
)
async def test_a_refused_client_however_grpc_polls(
    certificates: Path, variables: dict[str, str], first: str
) -> None:
    """The program may load gRPC before us, or choose how it polls."""
    without = {"ca_file": str(authority.certificate_path(certificates, "ca"))}
    program = (
        f"import asyncio, {first}\n"
        "from bookie.config import SecuritySettings\n"
        "from tests.unit.security.test_grpc_tls import refused\n"
        "async def main(port):\n"
        f"    print(await refused(port, SecuritySettings.model_validate({without!r})))\n"
    )
    async with served(PemFiles(settings(certificates, "bookie"))) as held:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", f"{program}asyncio.run(main({held.port}))"),
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(os.environ) | variables,
        )
        said, _ = await process.communicate()
    assert "refuses this client's certificate" in said.decode()


async def test_a_bookie_whose_ca_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To renew the certificate would not help."""
    authority.create_authority(tmp_path)
    authority.issue(tmp_path, "bookie", ["127.0.0.1"])
    authority.issue(tmp_path, "client")
    monkeypatch.setattr(authority, "_CLOCK_SKEW", datetime.timedelta(days=3))
    authority.renew(tmp_path, "ca", days=-1)
    async with served(PemFiles(settings(tmp_path, "bookie"))) as held:
        said = await refused(held.port, settings(tmp_path, "client"))
    assert "has expired, or a CA that signed it" in said


@pytest.mark.parametrize("protocol", ["grpc", "grpcs"])
async def test_listings_while_a_cluster_changes_to_tls(certificates: Path, protocol: str) -> None:
    """The auditor lists bookies that have TLS already, and those that have not."""
    files = PemFiles(settings(certificates, "bookie")) if protocol == "grpcs" else None
    client = settings(certificates, "client", allow_plaintext=True)
    async with served(files) as held:
        registration = Registration(
            BOOKIE_ID, (Endpoint("bookie", "127.0.0.1", held.port, protocol),)
        )
        async with listed_bookies(
            [BOOKIE_ID],
            {BOOKIE_ID: registration},
            INSTANCE_ID,
            QUICK_SECONDS,
            ChannelSecurity(client),
        ) as listed:
            await listed[BOOKIE_ID].next_page()
            assert listed[BOOKIE_ID].problem == ""
