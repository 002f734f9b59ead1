"""A metadata URI opens the right store, or says in one sentence why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.config import load_settings, render_toml
from bookie.errors import ConfigurationError
from bookie.metadata.connect import open_store
from bookie.metadata.security import MetadataSecurity, security_of
from bookie.metadata.uri import Host, Servers, parse_servers, split_uri


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "must begin with"),
        ("/var/lib/metadata", "must begin with"),
        ("redis://host", "must begin with"),
        ("memory:", "memory://NAME"),
        ("memory://", "memory://NAME"),
        ("memory://a/b", "memory://NAME"),
        ("local://relative/directory", "local:///absolute/directory"),
        ("local:relative", "local:///absolute/directory"),
        ("local:///a?x=1", "query"),
        ("zk://a/s#t", "fragment"),
        ("zk://a?b/s", "query"),
        ("zk://user:secret@host/ledgers", "credentials"),
        # Wherever somebody writes a password, no sentence shows it.
        ("ectd://user:secret@host/ledgers", r"'…@host/ledgers' must begin with"),
        ("user:secret@host:2379", r"'…@host:2379' must begin with"),
        ("etcd:user:secret@host/s", "HOST:PORT"),
        ("etcd://user:secret#1@host/s", "fragment"),
        ("etcd://host/s?password=secret", r"'etcd://host/s…' must not have a query"),
        ("memory://user:secret@a/b", "credentials"),
        ("etcd://[::1", "HOST:PORT"),
        ("etcd://[::1/s", "HOST:PORT"),
        ("zk://a:1,[::1/s", "HOST:PORT"),
        ("zk://[a:b]/s", "HOST:PORT"),
        ("zk://[10.0.0.1]:2181/s", "HOST:PORT"),
        ("zk://a[::1]:2181/s", "HOST:PORT"),
        ("zk://host:2181", "must name a scope"),
        ("etcd://host:2379/", "must name a scope"),
        ("zk://host/a/", "no valid scope"),
        ("zk://host/a/../b", "no valid scope"),
        ("etcd://host//a", "no valid scope"),
        ("zk:///scope", "HOST:PORT"),
        ("zk://a:2181,/scope", "HOST:PORT"),
        ("zk://a:2181,,b/scope", "HOST:PORT"),
        ("zk://a:port/scope", "HOST:PORT"),
        ("zk://a:0/scope", "HOST:PORT"),
        ("zk://a:65536/scope", "HOST:PORT"),
        ("zk://a:/scope", "HOST:PORT"),
        ("zk://::1/scope", "HOST:PORT"),
        ("zk://a:1:2/scope", "HOST:PORT"),
        ("zk://a,b,a/scope", "names a server twice"),
        ("zk://[::1],[::1]:2181/scope", "names a server twice"),
    ],
)
def test_a_wrong_uri_is_refused_in_one_sentence(uri: str, message: str) -> None:
    """Case 154."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        open_store(uri)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "servers"),
    [
        ("zk://a:2181/s", Servers((Host("a", 2181),), "/s")),
        ("zk://a,b:3000/s/t", Servers((Host("a", 2181), Host("b", 3000)), "/s/t")),
        ("etcd://10.0.0.1/my%20s", Servers((Host("10.0.0.1", 2379),), "/my s")),
        ("ZK://a/s", Servers((Host("a", 2181),), "/s")),
        (
            "etcd://[::1]:99,[fe80::2],c/s",
            Servers((Host("::1", 99), Host("fe80::2", 2379), Host("c", 2379)), "/s"),
        ),
        # Python's `urlsplit` refuses brackets that do not stand first.
        (
            "zk://h2:2181,[::1]:2181,[::1]:2182/scope",
            Servers((Host("h2", 2181), Host("::1", 2181), Host("::1", 2182)), "/scope"),
        ),
    ],
)
def test_servers_and_scope_come_out_of_the_uri(uri: str, servers: Servers) -> None:
    assert parse_servers(uri, split_uri(uri)) == servers


def test_an_ipv6_server_has_its_brackets_again_as_text() -> None:
    uri = "etcd://[::1]:99,c/s"
    found = parse_servers(uri, split_uri(uri))
    assert [str(host) for host in found.hosts] == ["[::1]:99", "c:2379"]


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.05, 3601.0, float("nan"), float("inf")])
def test_a_session_timeout_out_of_range_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="session timeout"):
        open_store("memory://timeout", session_timeout_seconds=seconds)


async def test_two_names_are_two_stores() -> None:
    """Case 29."""
    async with open_store("memory://one-name") as one, open_store("memory://other-name") as other:
        await one.put("/a", b"")
        assert not await other.exists("/a")


# ---- TLS and credentials


def test_security_comes_from_settings_and_variables() -> None:
    variables = {
        "BOOKIE_METADATA__TLS_CA_FILE": "/etc/ca.pem",
        "BOOKIE_METADATA__TLS_CERTIFICATE_FILE": "/etc/own.pem",
        "BOOKIE_METADATA__TLS_KEY_FILE": "/etc/own.key",
        "BOOKIE_METADATA__USER": "bookie",
        "BOOKIE_METADATA__PASSWORD": "secret",
        "BOOKIE_METADATA__SASL_MECHANISM": "digest-md5",
    }
    settings = load_settings(environment=variables)
    found = security_of(settings.metadata)
    assert found == MetadataSecurity(
        Path("/etc/ca.pem"),
        Path("/etc/own.pem"),
        Path("/etc/own.key"),
        "bookie",
        "secret",
        "digest-md5",
    )
    assert found.uses_tls
    for text in (repr(found), repr(settings), render_toml(settings), str(settings.model_dump())):
        assert "secret" not in text.replace("secret_value", "")


def test_without_settings_there_is_neither_tls_nor_user() -> None:
    assert security_of(load_settings(environment={}).metadata) == MetadataSecurity()
    assert not MetadataSecurity().uses_tls


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tls_certificate_file": "/a"}, "go together"),
        ({"tls_key_file": "/a"}, "go together"),
        ({"tls_certificate_file": "/a", "tls_key_file": "/b"}, "tls_ca_file"),
        ({"user": "a"}, "go together"),
        ({"password": "a"}, "go together"),
        ({"sasl_mechanism": "digest"}, "needs metadata.user"),
        ({"access": "user"}, "needs metadata.sasl_mechanism"),
        ({"sasl_mechanism": "kerberos"}, "sasl_mechanism"),
    ],
)
def test_half_of_a_pair_is_refused(given: dict[str, str], message: str) -> None:
    overrides = {f"metadata.{key}": value for key, value in given.items()}
    with pytest.raises(ConfigurationError, match=message):
        security_of(load_settings(overrides=overrides, environment={}).metadata)
