"""Access on a real ZooKeeper server, and the errors of clients that it refuses."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.errors import (
    BadRequestError,
    ConfigurationError,
    InvalidKeyError,
    KeyExistsError,
    MetadataUnavailableError,
    NoSuchKeyError,
    UnauthorizedError,
    UnsupportedError,
)
from bookie.metadata.connect import open_store
from bookie.metadata.export import migrate
from bookie.metadata.model import Acl
from bookie.metadata.rights import Kind
from bookie.metadata.security import Access, MetadataSecurity, SaslMechanism
from bookie.metadata.session import SessionEvent
from bookie.metadata.store import MetadataStore
from bookie.metadata.zookeeper.backend import ZooKeeperStore
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
        users={},
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
        record = await ann.get("/above/record")
        assert record is not None
        assert record.value == b"2"
        await ann.sync()
        for key in ("/above/record", numbered.key):
            (entry,) = await ann.get_acl(key)
            assert (entry.scheme, entry.permissions) == ("digest", ALL)
        # What the stores of all scopes share is open to all.
        await bob_elsewhere.put("/mine", b"")
        await ann.delete_recursive("/above")


async def copy(
    source: MetadataStore, target: MetadataStore, *, overwrite: bool = False
) -> tuple[int, int]:
    """Migrate; how many records were written, and how many of all are restricted."""
    copied = await migrate(source, target, overwrite=overwrite)
    return copied.written, copied.restricted


async def test_a_migration_keeps_access_control(zookeeper_server: ZooKeeperServer) -> None:
    """Also of records with others below them, and again when the copy is repeated."""
    address = zookeeper_server.address
    shown = [Acl("auth", "", ALL), Acl("world", "anyone", READ)]
    async with (
        opened(address, new_scope(), "ann", "secret") as source,
        opened(address, scope := new_scope(), "ann", "secret") as target,
        opened(address, scope) as nobody,
    ):
        await source.put("/open", b"1")
        await source.put("/private", b"2", acl=[Acl("auth", "", ALL)])
        await source.put("/private/shown", b"3", acl=shown)
        await source.put("/private/open", b"4")
        assert await copy(source, target) == (4, 2)
        await nobody.sync()
        for key in ("/private", "/private/shown"):
            assert await target.get_acl(key) == await source.get_acl(key)
            with pytest.raises(UnauthorizedError, match=key):
                await nobody.put(key, b"other")
        with pytest.raises(UnauthorizedError, match="/private"):
            await nobody.get("/private")
        await nobody.put("/open", b"1")
        assert await copy(source, target) == (0, 2)
        # A copy that was interrupted leaves a parent open; the next one restricts it.
        await target.set_acl("/private", [Acl("world", "anyone", ALL)])
        assert await copy(source, target) == (0, 2)
        assert await target.get_acl("/private") == await source.get_acl("/private")
        # Another restriction is somebody's decision.
        await target.set_acl("/private/shown", [Acl("auth", "", ALL)])
        with pytest.raises(KeyExistsError, match="/private/shown has another access control list"):
            await copy(source, target)
        assert await copy(source, target, overwrite=True) == (0, 2)
        assert await target.get_acl("/private/shown") == await source.get_acl("/private/shown")


async def test_a_migration_does_not_open_what_was_restricted(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """A store of a user moves to a store that is open to all, and stays the user's."""
    address, scope = zookeeper_server.address, new_scope()
    async with (
        opened(address, new_scope(), "ann", "secret", access="user") as source,
        opened(address, scope, "ann", "secret") as target,
        opened(address, scope) as nobody,
    ):
        await source.put("/private", b"1")
        assert await copy(source, target) == (1, 1)
        await nobody.sync()
        with pytest.raises(UnauthorizedError, match="/private"):
            await nobody.get("/private")


async def test_a_target_without_access_control_is_refused_unless_asked_for(
    zookeeper_server: ZooKeeperServer,
) -> None:
    """Nothing is written before."""
    async with (
        opened(zookeeper_server.address, new_scope(), "ann", "secret") as source,
        open_store(f"memory://{new_scope()[1:]}") as target,
    ):
        await source.put("/open", b"1")
        await migrate(source, target)
        await source.put("/private", b"2", acl=[Acl("auth", "", ALL)])
        with pytest.raises(UnsupportedError, match=r"/private is restricted .* --drop-acl"):
            await migrate(source, target)
        assert not await target.exists("/private")
        assert (await migrate(source, target, drop_acl=True)).restricted == 1
        assert await target.exists("/private")


# ---- SASL


@pytest.fixture(scope="module")
def sasl_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server that requires a password."""
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


async def test_sasl_makes_users_of_kinds(sasl_server: ZooKeeperServer) -> None:
    uri = f"zk://{sasl_server.address}{new_scope()}"
    users = {Kind.ADMIN: ["sasl:ann"], Kind.READER: ["sasl:bob"]}

    def as_user(name: str, password: str) -> AbstractAsyncContextManager[MetadataStore]:
        security = MetadataSecurity(
            user=name, password=password, sasl_mechanism="digest-md5", access="kinds", users=users
        )
        return open_store(uri, session_timeout_seconds=3, security=security)

    async with as_user("ann", "correct horse") as ann:
        await ann.restrict()
        await ann.put("/config/settings/log.level", b"debug")
        async with as_user("bob", "battery staple") as bob:
            assert await bob.get("/config/settings/log.level") is not None
            with pytest.raises(UnauthorizedError):
                await bob.delete("/config/settings/log.level")


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
            link = store._require_open().link
            authenticate = link._authenticate

            async def cut_and_authenticate() -> bool:
                monkeypatch.undo()
                proxy.reset()
                return await authenticate()

            monkeypatch.setattr(link, "_authenticate", cut_and_authenticate)
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
    """The certificate of a TLS end in front of a server."""
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


async def test_a_certificate_makes_a_user_of_a_kind(tls_port: int, authority: Authority) -> None:
    uri = f"zk://127.0.0.1:{tls_port}{new_scope()}"
    users = {Kind.ADMIN: ["x509:CN=ops"], Kind.WRITER: ["x509:CN=shop"]}

    def as_user(name: str) -> AbstractAsyncContextManager[MetadataStore]:
        ours = authority.issue(name)
        security = MetadataSecurity(
            tls_ca_file=authority.certificate,
            tls_certificate_file=ours.certificate,
            tls_key_file=ours.key,
            access="kinds",
            users=users,
        )
        return open_store(uri, session_timeout_seconds=3, security=security)

    async with as_user("ops") as ops, as_user("shop") as shop:
        assert await ops.restrict() == 0
        await shop.put("/logs/a", b"1")
        assert Acl("x509", "CN=ops", ALL) in await ops.get_acl("/logs/a")
        with pytest.raises(UnauthorizedError, match="denies us access to /cookies"):
            await shop.put("/cookies/b1", b"1")
    async with as_user("stranger") as stranger:
        with pytest.raises(UnauthorizedError):
            await stranger.get("/logs/a")


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
