"""etcd with TLS and users, and the one clear sentence for each way of not being let in."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.errors import (
    BookieError,
    ConfigurationError,
    MetadataUnavailableError,
    UnauthorizedError,
)
from bookie.metadata.connect import open_store
from bookie.metadata.etcd.server_version import ask_version, checks_rights
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.uri import parse_servers, split_uri
from tests.conformance.streams import CREATED, next_changes
from tests.servers.certificates import Authority, Certificate
from tests.servers.etcd import EtcdServer, etcd_program
from tests.servers.ports import claimed_ports


async def _sentence(
    uri: str, security: MetadataSecurity, kind: type[BookieError], *, write: bool = False
) -> str:
    """The refusal of opening the store, or of a write to it."""

    async def use() -> None:
        async with open_store(uri, security=security, session_timeout_seconds=4) as store:
            if write:
                await store.put("/a", b"")

    with pytest.raises(kind) as caught:
        await use()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 200
    return text


# ---- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


def _tls_server(authority: Authority, certificate: Certificate) -> EtcdServer:
    """One that asks its clients for certificates."""
    return EtcdServer(
        tls=True,
        options=[
            f"--cert-file={certificate.certificate}",
            f"--key-file={certificate.key}",
            f"--trusted-ca-file={authority.certificate}",
            "--client-cert-auth",
        ],
    )


@pytest.fixture(scope="module")
def tls_server(authority: Authority) -> Iterator[EtcdServer]:
    with _tls_server(authority, authority.issue("server")).running() as server:
        yield server


@pytest.fixture(scope="module")
def expired_server(authority: Authority) -> Iterator[EtcdServer]:
    with _tls_server(authority, authority.issue("expired", days=-1)).running() as server:
        yield server


@pytest.fixture(scope="module")
def tls(authority: Authority) -> MetadataSecurity:
    ours = authority.issue("client")
    return MetadataSecurity(
        tls_ca_file=authority.certificate,
        tls_certificate_file=ours.certificate,
        tls_key_file=ours.key,
    )


async def test_a_store_over_tls_is_a_store(tls_server: EtcdServer, tls: MetadataSecurity) -> None:
    async with open_store(tls_server.uri(), security=tls) as store, store.watch("/") as changes:
        stat = await store.put("/a", b"1", ephemeral=True)
        assert await next_changes(changes) == [(CREATED, "/a")]
        record = await store.get("/a")
        assert record is not None
        assert record.stat == stat


def test_a_server_tells_its_version(
    tls_server: EtcdServer, tls: MetadataSecurity, stranger: Authority
) -> None:
    """At the port of its clients, by TLS, and to nobody whom it does not let in."""
    (host,) = parse_servers(tls_server.uri(), split_uri(tls_server.uri())).hosts
    program = subprocess.run([etcd_program(), "--version"], capture_output=True, check=True)
    version = ask_version(host, tls)
    assert f"etcd Version: {version}\n".encode() in program.stdout
    assert checks_rights(version) is not None
    for wrong in (
        MetadataSecurity(),
        MetadataSecurity(tls_ca_file=tls.tls_ca_file),
        replace(tls, tls_ca_file=stranger.certificate),
    ):
        with pytest.raises(MetadataUnavailableError, match=r"tell its version|told no version"):
            ask_version(host, wrong)


async def test_a_server_of_an_unknown_authority_is_refused(
    tls_server: EtcdServer, tls: MetadataSecurity, stranger: Authority
) -> None:
    wrong = replace(tls, tls_ca_file=stranger.certificate)
    text = await _sentence(tls_server.uri(), wrong, MetadataUnavailableError)
    assert "certificate" in text


async def test_an_expired_server_is_refused(
    expired_server: EtcdServer, tls: MetadataSecurity
) -> None:
    text = await _sentence(expired_server.uri(), tls, MetadataUnavailableError)
    assert "certificate has expired" in text


async def test_an_expired_client_is_refused(
    tls_server: EtcdServer, tls: MetadataSecurity, authority: Authority
) -> None:
    old = authority.issue("old-client", days=-1)
    wrong = replace(tls, tls_certificate_file=old.certificate, tls_key_file=old.key)
    await _sentence(tls_server.uri(), wrong, MetadataUnavailableError)


async def test_a_client_without_a_certificate_is_refused(
    tls_server: EtcdServer, tls: MetadataSecurity
) -> None:
    bare = MetadataSecurity(tls_ca_file=tls.tls_ca_file)
    await _sentence(tls_server.uri(), bare, MetadataUnavailableError)


async def test_plain_text_to_a_tls_server_is_refused(tls_server: EtcdServer) -> None:
    await _sentence(tls_server.uri(), MetadataSecurity(), MetadataUnavailableError)


async def test_tls_to_a_plain_server_is_refused(
    etcd_server: EtcdServer, tls: MetadataSecurity
) -> None:
    text = await _sentence(etcd_server.uri(), tls, MetadataUnavailableError)
    assert "it has no TLS" in text


async def test_a_missing_file_is_named(etcd_server: EtcdServer, tmp_path: Path) -> None:
    security = MetadataSecurity(tls_ca_file=tmp_path / "missing.pem")
    text = await _sentence(etcd_server.uri(), security, ConfigurationError)
    assert "missing.pem" in text
    assert "No such file" in text


# ---- users


def _text(word: str) -> str:
    return base64.b64encode(word.encode()).decode()


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[EtcdServer]:
    """Has a user `bookie` with the password `secret`, who may use what lies below `/mine`."""
    with EtcdServer().running() as server:
        ask = server.member.ask
        ask("auth/user/add", name="root", password="root")
        ask("auth/user/grant", user="root", role="root")
        ask("auth/user/add", name="bookie", password="secret")
        ask("auth/role/add", name="mine")
        mine = {"permType": "READWRITE", "key": _text("/mine/"), "range_end": _text("/mine0")}
        ask("auth/role/grant", name="mine", perm=mine)
        ask("auth/user/grant", user="bookie", role="mine")
        ask("auth/enable")
        yield server


BOOKIE = MetadataSecurity(user="bookie", password="secret")


async def test_a_user_has_a_store_below_his_keys(guarded_server: EtcdServer) -> None:
    async with (
        open_store(guarded_server.uri("/mine"), security=BOOKIE) as store,
        store.watch("/") as changes,
    ):
        await store.put("/a/b", b"1", ephemeral=True)
        await store.put("/q-", b"1", sequential=True)
        assert len(await next_changes(changes, 2)) == 2
        assert await store.get_children("/a") == ["b"]
        await store.delete_recursive("/")


async def test_keys_of_others_are_refused(guarded_server: EtcdServer) -> None:
    text = await _sentence(guarded_server.uri("/mine-2"), BOOKIE, UnauthorizedError, write=True)
    assert "bookie" in text
    assert "/mine-2" in text


async def test_a_wrong_password_is_refused(guarded_server: EtcdServer) -> None:
    wrong = MetadataSecurity(user="bookie", password="guess")
    text = await _sentence(guarded_server.uri("/mine"), wrong, UnauthorizedError)
    assert "wrong name or password" in text
    assert "guess" not in text


async def test_nobody_is_asked_who_he_is(guarded_server: EtcdServer) -> None:
    text = await _sentence(
        guarded_server.uri("/mine"), MetadataSecurity(), UnauthorizedError, write=True
    )
    assert "metadata.user" in text


async def test_a_user_of_a_server_without_users_is_told(etcd_server: EtcdServer) -> None:
    text = await _sentence(etcd_server.uri(), BOOKIE, ConfigurationError)
    assert "has no users" in text


async def test_a_token_that_the_server_forgot_is_renewed(guarded_server: EtcdServer) -> None:
    """Tokens live in the server's memory; a restart forgets them."""
    async with (
        open_store(guarded_server.uri("/mine"), security=BOOKIE) as store,
        store.watch("/") as changes,
    ):
        await store.put("/e", b"", ephemeral=True)
        assert await next_changes(changes) == [(CREATED, "/e")]
        await guarded_server.member.restart()
        await store.put("/f", b"")
        assert await next_changes(changes) == [(CREATED, "/f")]
        record = await store.get("/e")
        assert record is not None
        assert record.created_by_self


async def test_a_watch_of_a_store_that_is_quiet_renews_its_token(
    guarded_server: EtcdServer,
) -> None:
    """Nothing but the watch notices that the token is gone."""
    async with (
        open_store(guarded_server.uri("/mine"), security=BOOKIE) as store,
        store.watch("/") as changes,
    ):
        await store.put("/w", b"")
        assert await next_changes(changes) == [(CREATED, "/w")]
        await guarded_server.member.restart()
        async with open_store(guarded_server.uri("/mine"), security=BOOKIE) as writer:
            await writer.put("/v", b"")
            assert await next_changes(changes) == [(CREATED, "/v")]
            await writer.delete("/v")
            await writer.delete("/w")


# ---- nobody there


async def test_a_server_that_is_not_there_is_named() -> None:
    (port,) = claimed_ports(1)
    uri = f"etcd://127.0.0.1:{port}/scope"
    text = await _sentence(uri, MetadataSecurity(), MetadataUnavailableError)
    assert f"etcd at 127.0.0.1:{port} does not answer: " in text
    assert "onnection refused" in text


async def test_a_name_that_is_no_name_is_named() -> None:
    uri = "etcd://no-such-host.invalid:2379/scope"
    text = await _sentence(uri, MetadataSecurity(), MetadataUnavailableError)
    assert "no-such-host.invalid:2379" in text


async def test_a_scope_needs_no_creation(etcd_server: EtcdServer) -> None:
    async with open_store(etcd_server.uri()) as store:
        assert await store.get_children("/") == []
        assert not await store.exists("/")
