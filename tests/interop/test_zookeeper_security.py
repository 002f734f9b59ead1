"""Who may do what on a real ZooKeeper server, and what is said to those who may not connect."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NotEmptyError

from bookie.errors import (
    BadRequestError,
    ConfigurationError,
    InvalidKeyError,
    MetadataUnavailableError,
    NoSuchKeyError,
    UnauthorizedError,
    UnsupportedError,
)
from bookie.metadata.connect import open_store
from bookie.metadata.security import Access, MetadataSecurity, SaslMechanism
from bookie.metadata.store import Acl, MetadataStore, SessionEvent
from bookie.metadata.zookeeper import ZooKeeperStore
from bookie.metadata.zookeeper_numbers import NUMBERS
from tests.conformance.streams import next_item
from tests.servers.certificates import Authority, Certificate
from tests.servers.ports import claimed_ports
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperServer, new_scope, single_server

ALL = frozenset({"read", "write", "create", "delete", "admin"})
READ = frozenset({"read"})
JAAS = """\
Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_ann="correct horse" user_bob="battery staple";
};
"""


@asynccontextmanager
async def opened(
    address: str,
    scope: str,
    user: str = "",
    password: str = "",
    mechanism: SaslMechanism = "digest",
    access: Access = "open",
    **files: Path,
) -> AsyncIterator[MetadataStore]:
    security = MetadataSecurity(
        user=user,
        password=password,
        sasl_mechanism=mechanism if user else "none",
        access=access,
        **files,
    )
    uri = f"zk://{address}{scope}"
    async with open_store(uri, session_timeout_seconds=3, security=security) as store:
        yield store


# ---- access control


async def test_access_is_for_those_who_show_the_password(zookeeper_server: ZooKeeperServer) -> None:
    address, scope = zookeeper_server.address, new_scope()
    async with (
        opened(address, scope, "ann", "secret") as ann,
        opened(address, scope, "bob", "secret") as bob,
        opened(address, scope) as nobody,
    ):
        mine = [Acl("auth", "", ALL)]
        stat = await ann.put("/private", b"1", acl=mine)
        await ann.put("/shown", b"1", acl=[*mine, Acl("world", "anyone", READ)])
        for other in (bob, nobody):
            await other.sync()
            with pytest.raises(UnauthorizedError, match="/private"):
                await other.get("/private")
            with pytest.raises(UnauthorizedError, match="/private"):
                await other.put("/private", b"2")
            with pytest.raises(UnauthorizedError, match="/private"):
                await other.put("/private", b"2", version=stat.version)
            with pytest.raises(UnauthorizedError, match="/private"):
                await other.put("/private/below", b"2")
            record = await other.get("/shown")
            assert record is not None
            with pytest.raises(UnauthorizedError, match="/shown"):
                await other.set_acl("/shown", [Acl("world", "anyone", ALL)])
        (entry,) = await ann.get_acl("/private")
        assert (entry.scheme, entry.permissions) == ("digest", ALL)
        assert entry.id.startswith("ann:")
        await ann.set_acl("/private", [Acl("ip", "127.0.0.1", READ), *mine])
        record = await nobody.get("/private")
        assert record is not None
        assert record.value == b"1"


async def test_a_record_says_who_may_do_what(zookeeper_server: ZooKeeperServer) -> None:
    async with opened(zookeeper_server.address, new_scope()) as store:
        await store.put("/a/b", b"")
        assert await store.get_acl("/a/b") == [Acl("world", "anyone", ALL)]
        for key in ("/a", "/none"):
            with pytest.raises(NoSuchKeyError):
                await store.get_acl(key)
            with pytest.raises(NoSuchKeyError):
                await store.set_acl(key, [Acl("world", "anyone", READ)])
        for acl in ([], [Acl("digest", "no digest", READ)], [Acl("ip", "no address", READ)]):
            with pytest.raises(BadRequestError, match="access control"):
                await store.put("/c", b"", acl=acl)
        with pytest.raises(BadRequestError, match="access control"):
            await store.put("/c", b"", acl=[Acl("auth", "", READ)])
        assert not await store.exists("/c")


async def test_access_control_is_kept_or_the_write_refused(
    zookeeper_server: ZooKeeperServer,
) -> None:
    address, scope = zookeeper_server.address, new_scope()
    async with (
        opened(address, scope, "ann", "secret") as ann,
        opened(address, scope) as nobody,
    ):
        acl = [Acl("world", "anyone", frozenset({"read", "write", "delete"}))]
        await ann.put("/parent/below", b"")
        with pytest.raises(UnsupportedError, match="/parent"):
            await ann.put("/parent", b"", acl=acl)
        assert await ann.get("/parent") is None
        stat = await ann.put("/mine", b"1", ephemeral=True, acl=acl)
        await nobody.sync()
        await nobody.put("/mine", b"2", version=stat.version, ephemeral=True)
        assert await nobody.get_acl("/mine") == acl
        hidden = [Acl("auth", "", ALL), Acl("world", "anyone", frozenset({"read", "delete"}))]
        stat = await ann.put("/hidden", b"1", ephemeral=True, acl=hidden)
        await nobody.sync()
        with pytest.raises(UnauthorizedError, match="/hidden"):
            await nobody.put("/hidden", b"2", version=stat.version, ephemeral=True)


async def test_a_store_may_keep_all_that_it_writes_to_its_user(
    zookeeper_server: ZooKeeperServer,
) -> None:
    address, scope = zookeeper_server.address, new_scope()
    async with (
        opened(address, scope, "ann", "secret", access="user") as ann,
        opened(address, scope, "ann", "secret", access="user") as ann_again,
        opened(address, scope, "bob", "secret", access="user") as bob,
        opened(address, new_scope(), "bob", "secret", access="user") as bob_elsewhere,
        opened(address, scope) as nobody,
    ):
        stat = await ann.put("/above/record", b"1", ephemeral=True)
        numbered = await ann.put("/queue/item-", b"1", sequential=True)
        shown = await ann.put("/shown", b"1", acl=[Acl("world", "anyone", READ)])
        for other in (bob, nobody):
            await other.sync()
            for key in ("/above/record", numbered.key):
                with pytest.raises(UnauthorizedError, match=key):
                    await other.get(key)
            for key in ("/new", "/above/new", "/queue/new"):
                with pytest.raises(UnauthorizedError):
                    await other.put(key, b"")
            for key in ("/", "/above", "/queue"):
                with pytest.raises(UnauthorizedError):
                    await other.get_children(key)
            assert await other.exists(shown.key)
        await ann_again.sync()
        await ann_again.put("/above/record", b"2", version=stat.version, ephemeral=True)
        await ann_again.put("/queue/item-", b"2", sequential=True)
        await ann_again.number_above(5_000_000_000)
        late = await ann_again.put("/late-", b"", sequential=True)
        assert int(late.key.removeprefix("/late-")) > 5_000_000_000
        record = await ann.get("/above/record")
        assert record is not None
        assert record.value == b"2"
        await ann.sync()
        for key in ("/above/record", numbered.key, late.key):
            (entry,) = await ann.get_acl(key)
            assert (entry.scheme, entry.permissions) == ("digest", ALL)
        # What the stores of all scopes share is open to all.
        await bob_elsewhere.put("/mine", b"")
        await ann.delete_recursive("/above")


async def test_what_scopes_share_cannot_be_deleted(zookeeper_server: ZooKeeperServer) -> None:
    """Without it numbers that were given would come again."""
    address, scope = zookeeper_server.address, new_scope()

    def deletions() -> list[bool]:
        """Whether somebody who shows no password may delete them."""
        found = []
        client = KazooClient(hosts=address)
        client.start()
        below = [f"{NUMBERS}/{name}" for name in client.get_children(NUMBERS)]
        for path in (NUMBERS, *below):
            try:
                client.delete(path)
                found.append(True)
            except (NoAuthError, NotEmptyError):
                found.append(False)
        client.stop()
        client.close()
        return found

    async with (
        opened(address, scope, "ann", "secret", access="user") as ann,
        opened(address, scope) as nobody,
    ):
        await ann.put("/queue/item-", b"", sequential=True)
        with pytest.raises(UnauthorizedError):
            await nobody.number_above(5_000_000_000)
        deleted = await asyncio.to_thread(deletions)
        assert len(deleted) > 1
        assert not any(deleted)


# ---- SASL


@pytest.fixture(scope="module")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server that lets nobody in without a password."""
    directory = tmp_path_factory.mktemp("sasl")
    jaas = directory / "jaas.conf"
    jaas.write_text(JAAS, encoding="utf-8")
    settings = (
        "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
        "sessionRequireClientSASLAuth=true\n"
    )
    options = (f"-Djava.security.auth.login.config={jaas}",)
    with single_server(directory, settings=settings, java_options=options) as server:
        yield server


async def test_sasl_lets_in_who_knows_the_password(sasl_server: ZooKeeperServer) -> None:
    address, scope = sasl_server.address, new_scope()
    async with (
        opened(address, scope, "ann", "correct horse", "digest-md5") as ann,
        opened(address, scope, "bob", "battery staple", "digest-md5") as bob,
    ):
        await ann.put("/a", b"", acl=[Acl("sasl", "ann", ALL)])
        await bob.sync()
        with pytest.raises(UnauthorizedError, match="/a"):
            await bob.get("/a")


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("nobody", "correct horse")])
async def test_sasl_keeps_out_who_does_not(
    sasl_server: ZooKeeperServer, user: str, password: str
) -> None:
    with pytest.raises(UnauthorizedError, match="user or the password"):
        async with opened(sasl_server.address, new_scope(), user, password, "digest-md5"):
            pass


async def test_a_connection_that_breaks_during_sasl_is_no_wrong_password(
    sasl_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may go away at any moment, between the hand-shake and the proof as well."""
    with Proxy(sasl_server.port) as proxy:
        address = f"127.0.0.1:{proxy.port}"
        async with opened(address, new_scope(), "ann", "correct horse", "digest-md5") as store:
            assert isinstance(store, ZooKeeperStore)
            bridge = store._require_open().link._bridge
            assert bridge is not None
            connection = bridge._client._connection
            authenticate = connection._authenticate_with_sasl

            def cut_and_authenticate(host: str, timeout: float) -> None:
                monkeypatch.undo()
                proxy.reset()
                authenticate(host, timeout)

            monkeypatch.setattr(connection, "_authenticate_with_sasl", cut_and_authenticate)
            async with store.session_events() as events:
                proxy.reset()
                assert await next_item(events) is SessionEvent.CONNECTION_LOST
                assert await next_item(events) is SessionEvent.RECONNECTED
            assert proxy.accepted >= 3
            await store.put("/after", b"")


# ---- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def tls_port(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[int]:
    """The port of a server that speaks TLS and asks for a certificate."""
    directory = tmp_path_factory.mktemp("tls-server")
    certificate = authority.issue("server")
    keys = directory / "keys.pem"
    keys.write_bytes(certificate.key.read_bytes() + certificate.certificate.read_bytes())
    (port,) = claimed_ports(1)
    settings = (
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
        f"secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n"
        f"ssl.keyStore.location={keys}\nssl.trustStore.location={authority.certificate}\n"
    )
    with single_server(directory, settings=settings):
        yield port


def serving(certificate: Certificate) -> ssl.SSLContext:
    """What a TLS end in front of a server shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    return context


async def test_a_connection_can_be_encrypted_at_both_ends(
    tls_port: int, authority: Authority
) -> None:
    ours = authority.issue("client")
    with Proxy(tls_port) as proxy:
        async with opened(
            f"127.0.0.1:{proxy.port}",
            new_scope(),
            tls_ca_file=authority.certificate,
            tls_certificate_file=ours.certificate,
            tls_key_file=ours.key,
        ) as store:
            value = bytes(range(256)) * 2000
            await store.put("/large", value)
            proxy.reset()
            record = await store.get("/large")
            assert record is not None
            assert record.value == value


@pytest.mark.parametrize("days", [None, -1])
async def test_who_shows_no_valid_certificate_is_kept_out(
    tls_port: int, authority: Authority, days: int | None
) -> None:
    """With none, or with one that has expired."""
    security = MetadataSecurity(tls_ca_file=authority.certificate)
    if days is not None:
        ours = authority.issue("old-client", days=days)
        security = replace(security, tls_certificate_file=ours.certificate, tls_key_file=ours.key)
    uri = f"zk://127.0.0.1:{tls_port}{new_scope()}"
    with pytest.raises(MetadataUnavailableError, match="does not answer"):
        async with open_store(uri, session_timeout_seconds=3, security=security):
            pass


async def test_a_certificate_that_is_not_right_is_named_at_once(
    zookeeper_server: ZooKeeperServer, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "stranger")
    for certificate, why in (
        (authority.issue("expired", days=-1), "expired"),
        (stranger.issue("foreign"), "certificate"),
    ):
        with Proxy(zookeeper_server.port, server_ssl=serving(certificate)) as proxy:
            address = f"127.0.0.1:{proxy.port}"
            with pytest.raises(MetadataUnavailableError, match=why):
                async with opened(address, new_scope(), tls_ca_file=authority.certificate):
                    pass


async def test_a_server_without_tls_is_not_mistaken_for_one(
    zookeeper_server: ZooKeeperServer, authority: Authority
) -> None:
    with pytest.raises(MetadataUnavailableError, match="does not answer"):
        async with opened(zookeeper_server.address, new_scope(), tls_ca_file=authority.certificate):
            pass


async def test_a_file_that_is_missing_is_named(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    missing = tmp_path / "ca.pem"
    with pytest.raises(ConfigurationError, match=str(missing)):
        async with opened(zookeeper_server.address, new_scope(), tls_ca_file=missing):
            pass


# ---- nobody there


async def test_servers_that_are_not_there_are_named() -> None:
    first, second = claimed_ports(2)
    address = f"127.0.0.1:{first},127.0.0.1:{second}"
    with pytest.raises(MetadataUnavailableError, match=f"{address}/s.*connection refused"):
        async with opened(address, "/s"):
            pass


async def test_names_that_mean_nothing_are_said_to() -> None:
    with pytest.raises(MetadataUnavailableError, match="no host name resolves"):
        async with opened("bookie.invalid:2181", "/s"):
            pass


async def test_a_scope_that_zookeeper_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidKeyError, match="ZooKeeper refuses"):
        async with opened("127.0.0.1:1", "/s\x01"):
            pass
