"""``bookie doctor`` on certificates, and on what others reach without TLS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from bookie.config import Settings
from bookie.daemon.machine_check import Fact, Severity
from bookie.daemon.security_check import DAY_SECONDS, check_security
from bookie.env import SystemClock
from bookie.metadata.etcd.server_version import checks_rights
from bookie.security import authority, token_keys
from tests.servers.ports import claimed_ports
from tests.unit.security.odd_certificates import SERVER, issue_odd


def check(
    days: float = 0,
    host: str = "127.0.0.1",
    advertised: str = "",
    http: str = "127.0.0.1",
    **security: object,
) -> dict[str, Fact]:
    """The facts, as they are in so many days."""
    listen = {"host": host, "advertised_host": advertised}
    settings = Settings.model_validate(
        {"listen": listen, "http": {"host": http}, "security": security}
    )
    now_seconds = SystemClock().now_ms() / 1000 + days * DAY_SECONDS
    return {fact.name: fact for fact in check_security(settings, now_seconds)}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """A bookie's certificate for 90 days."""
    authority.create_authority(tmp_path)
    authority.issue(tmp_path, "b1", ["127.0.0.1"], days=90)
    return authority.settings_for(tmp_path, "b1")


@pytest.mark.parametrize(
    ("host", "allowed", "verdict", "words"),
    [
        ("127.0.0.1", False, Severity.OK, "only this machine"),
        ("127.0.0.1", True, Severity.WARN, "security.allow_plaintext is set"),
        ("0.0.0.0", False, Severity.FAIL, "listen.host = 0.0.0.0 without TLS"),
        ("0.0.0.0", True, Severity.WARN, "listen.host = 0.0.0.0 without TLS"),
    ],
)
def test_plaintext(host: str, allowed: bool, verdict: Severity, words: str) -> None:
    fact = check(host=host, allow_plaintext=allowed)["plaintext"]
    assert fact.verdict is verdict
    assert words in fact.found


def test_with_tls(files: dict[str, Any]) -> None:
    facts = check(host="0.0.0.0", advertised="127.0.0.1", **files)
    assert {name: fact.verdict for name, fact in facts.items()} == dict.fromkeys(
        ("plaintext", "certificate", "CA", "host"), Severity.OK
    )
    assert facts["certificate"].found == "CN=b1, valid for 90 days"


@pytest.mark.parametrize(
    ("days", "verdict"), [(59, Severity.OK), (61, Severity.WARN), (91, Severity.FAIL)]
)
def test_expiry(files: dict[str, Any], days: int, verdict: Severity) -> None:
    assert check(days, **files)["certificate"].verdict is verdict


def test_a_certificate_for_another_host(files: dict[str, Any]) -> None:
    fact = check(advertised="b1.example", **files)["host"]
    assert fact.verdict is Severity.FAIL
    assert "names 127.0.0.1, and the bookie registers b1.example" in fact.found


def test_a_key_that_others_read(files: dict[str, Any]) -> None:
    os.chmod(files["key_file"], 0o640)
    fact = check(**files)["key"]
    assert (fact.verdict, fact.advice) == (Severity.WARN, f"chmod 600 {files['key_file']}")


def test_clients_without_certificates(files: dict[str, Any]) -> None:
    fact = check(**files, require_client_certificate=False)["clients"]
    assert fact.verdict is Severity.WARN
    assert "the roles of anonymous" in fact.found
    nobody_asked = {**files, "require_client_certificate": False, "require_roles": False}
    for host, verdict in (("127.0.0.1", Severity.WARN), ("0.0.0.0", Severity.FAIL)):
        assert check(host=host, **nobody_asked)["clients"].verdict is verdict


@pytest.mark.parametrize(
    ("listen", "http", "named"),
    [
        ("127.0.0.1", "127.0.0.1", ""),
        ("0.0.0.0", "127.0.0.1", "listen.host = 0.0.0.0:"),
        ("127.0.0.1", "::", "http.host = :::"),
        ("0.0.0.0", "0.0.0.0", "http.host = 0.0.0.0, listen.host = 0.0.0.0:"),
    ],
)
def test_no_roles_beyond_loopback(
    files: dict[str, Any], listen: str, http: str, named: str
) -> None:
    """Certificates alone say who somebody is, and let each one do everything."""
    for require_roles in (True, False):
        facts = check(
            host=listen, advertised="127.0.0.1", http=http, **files, require_roles=require_roles
        )
        if require_roles or not named:
            assert "clients" not in facts
        else:
            assert facts["clients"].verdict is Severity.WARN
            assert f"security.require_roles is off, with {named}" in facts["clients"].found


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("3.4.43", False),
        ("3.4.44", True),
        ("3.5.29", False),
        ("3.5.30", True),
        ("3.5.100", True),
        ("3.6.0-rc.1", False),
        ("3.6.10", False),
        ("3.6.11", True),
        ("3.7.0-alpha.0", True),
        ("4.0.0", True),
        ("3.3.99", False),
        ("2.5.50", False),
        ("3.5", None),
        ("", None),
        ("3.5.x", None),
        ("9" * 5000 + ".1.1", None),
    ],
)
def test_versions_of_etcd(version: str, verdict: bool | None) -> None:
    assert checks_rights(version) is verdict


@pytest.mark.parametrize(
    ("told", "verdict", "words"),
    [
        (b'{"etcdserver": "3.5.30", "etcdcluster": "3.5.0"}', Severity.OK, "is etcd 3.5.30"),
        (b'{"etcdserver": "3.5.27"}', Severity.WARN, "is etcd 3.5.27: a user can get round"),
        (b'{"etcdserver": "3.5.x"}', Severity.WARN, "told no version"),
        (b'{"etcdserver": 35}', Severity.WARN, "told no version"),
        (b"[]", Severity.WARN, "told no version"),
        (b"not found", Severity.WARN, "told no version"),
        (b"[" * 4000, Severity.WARN, "told no version"),
        (None, Severity.WARN, "did not tell its version: "),
    ],
)
def test_the_version_that_a_server_tells(told: bytes | None, verdict: Severity, words: str) -> None:
    (port,) = claimed_ports(1)
    with nullcontext() if told is None else answering(port, told):
        fact = of_etcd(port, user="bookie", password="p")["etcd"]
    assert (fact.verdict, words in fact.found) == (verdict, True), fact
    assert ("use etcd 3.4.44, 3.5.30, 3.6.11" in fact.advice) is (verdict is Severity.WARN)


def test_without_a_user_there_are_no_roles() -> None:
    assert "etcd" not in of_etcd(1)
    assert "etcd" not in check()


def of_etcd(port: int, **metadata: object) -> dict[str, Fact]:
    uri = f"etcd://127.0.0.1:{port}/b"
    settings = Settings.model_validate({"metadata": {"uri": uri, **metadata}})
    return {fact.name: fact for fact in check_security(settings, 0)}


@contextmanager
def answering(port: int, body: bytes) -> Iterator[None]:
    """A server that answers one request."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/version"
            assert self.headers["Authorization"] is None
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with HTTPServer(("127.0.0.1", port), Answer) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        yield
        thread.join()


def test_a_file_that_cannot_be_used(files: dict[str, Any]) -> None:
    Path(files["ca_file"]).write_text("nonsense")
    fact = check(**files)["certificate"]
    assert fact.verdict is Severity.FAIL
    assert "security.ca_file" in fact.found


def test_token_keys(files: dict[str, Any], tmp_path: Path) -> None:
    path = token_keys.key_set_path(tmp_path)
    given = files | {"token_keys_file": str(path)}
    assert check(**given)["token keys"].verdict is Severity.FAIL
    public = token_keys.create_key(tmp_path)
    fact = check(**given)["token keys"]
    assert (fact.verdict, fact.found) == (Severity.OK, f"{public} (EdDSA)")
    secret = token_keys.create_key(tmp_path, "HS256")
    found = check(**given)["token keys"].found
    assert found == f"{public} (EdDSA), {secret} (HS256)"
    os.chmod(path, 0o644)
    fact = check(**given)["token keys"]
    assert (fact.verdict, fact.advice) == (Severity.WARN, f"chmod 600 {path}")
    path.write_bytes(b"nonsense")
    fact = check(**given)["token keys"]
    assert fact.verdict is Severity.FAIL
    assert "holds no JSON" in fact.found


def test_a_key_that_grpc_cannot_use(tmp_path: Path, files: dict[str, Any]) -> None:
    issue_odd(tmp_path, "b1", kind="P-521")
    fact = check(**files)["certificate"]
    assert fact.verdict is Severity.FAIL
    assert "a key on the curve secp521r1, which gRPC cannot use" in fact.found


def test_a_certificate_that_peers_refuse(tmp_path: Path, files: dict[str, Any]) -> None:
    issue_odd(tmp_path, "b1", purposes=[SERVER])
    fact = check(**files)["peers"]
    assert fact.verdict is Severity.FAIL
    assert "lacks clientAuth" in fact.found
    issue_odd(tmp_path, "b1", days=(1, 90))
    assert "is not valid yet" in check(**files)["peers"].found
    authority.create_authority(tmp_path / "other")
    files["ca_file"] = str(tmp_path / "other" / "ca.pem")
    assert "no CA in security.ca_file has signed" in check(**files)["peers"].found
