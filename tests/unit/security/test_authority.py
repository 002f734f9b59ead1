"""A CA of one's own: its files, and what its certificates are good for."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import ssl
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from bookie.errors import BadRequestError
from bookie.security import authority
from bookie.security.certificates import CertificateFacts, read_certificate_file
from bookie.security.contexts import client_context, server_context
from tests.unit.security.test_pem_files import settings

DAY_SECONDS = 86400


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A CA with a bookie and a client."""
    authority.create_authority(tmp_path / "security")
    authority.issue(tmp_path / "security", "b1", ["b1.example", "10.0.0.1", "::1"])
    authority.issue(tmp_path / "security", "client")
    return tmp_path / "security"


def facts(directory: Path, name: str) -> CertificateFacts:
    (found,) = read_certificate_file(authority.certificate_path(directory, name))
    return found


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Let two ends meet in memory; return the server's end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (near, far):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return far


def test_files_are_private(directory: Path) -> None:
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in directory.iterdir():
        if path.stem.endswith("-key"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert not [path for path in directory.iterdir() if path.name.startswith(".")]


def test_names(directory: Path) -> None:
    bookie, client, ca = (facts(directory, name) for name in ("b1", "client", "ca"))
    assert (bookie.subject, bookie.names) == ("CN=b1", ("b1.example", "10.0.0.1", "::1"))
    assert (client.subject, client.names) == ("CN=client", ())
    assert bookie.issuer == client.issuer == ca.subject == ca.issuer
    assert (ca.is_authority, bookie.is_authority) == (True, False)


@pytest.mark.parametrize("host", ["b1.example", "10.0.0.1", "::1"])
def test_both_ends_agree(directory: Path, host: str) -> None:
    server = server_context(settings(directory))
    far = handshake(server, client_context(settings(directory, "client")), host)
    assert far.version() == "TLSv1.3"
    assert far.getpeercert()


@pytest.mark.parametrize("older", ["server", "client"])
def test_both_ends_want_tls_1_3(directory: Path, older: str) -> None:
    server, client = server_context(settings(directory)), client_context(settings(directory))
    end = server if older == "server" else client
    end.minimum_version = end.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="unsupported protocol"):
        handshake(server, client, "b1.example")


def test_no_session_outlives_its_certificate(directory: Path) -> None:
    """A ticket would let a client in whose CA is not trusted any more."""
    assert server_context(settings(directory)).num_tickets == 0


def test_a_certificate_for_another_host(directory: Path) -> None:
    server, client = server_context(settings(directory)), client_context(settings(directory))
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(server, client, "b2.example")


def test_a_client_cannot_be_a_bookie(directory: Path) -> None:
    server = server_context(settings(directory, "client"))
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(server, client_context(settings(directory)), "b1.example")


def test_a_bookie_is_a_client_of_bookies(directory: Path) -> None:
    both = settings(directory)
    assert handshake(server_context(both), client_context(both), "b1.example").getpeercert()


def test_renewed(directory: Path) -> None:
    before, former_key = facts(directory, "b1"), (directory / "b1-key.pem").read_bytes()
    authority.renew(directory, "b1", days=800)
    after = facts(directory, "b1")
    assert (after.subject, after.names) == (before.subject, before.names)
    assert after.expires_seconds - before.expires_seconds > 400 * DAY_SECONDS
    assert (directory / "b1-key.pem").read_bytes() != former_key
    authority.renew(directory, "client")
    assert facts(directory, "client").names == ()


def test_a_renewed_authority_signed_what_it_had_signed(directory: Path) -> None:
    before = facts(directory, "ca")
    authority.renew(directory, "ca", days=5000)
    after = facts(directory, "ca")
    assert after.subject == before.subject
    assert after.expires_seconds - before.expires_seconds > 1000 * DAY_SECONDS
    server, client = server_context(settings(directory)), client_context(settings(directory))
    assert handshake(server, client, "b1.example").getpeercert()


def test_refusals(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="holds a CA already"):
        authority.create_authority(directory)
    with pytest.raises(BadRequestError, match=r"b1\.pem exists already; renew it"):
        authority.issue(directory, "b1", ["x"])
    for name in ("../b1", "", "ca", "x-key", ".b", "a/b"):
        sentence = "is the name of the CA" if name == "ca" else "must be 1 to 64"
        with pytest.raises(BadRequestError, match=sentence):
            authority.issue(directory, name, ["x"])
    with pytest.raises(BadRequestError, match="does not exist; `bookie security init"):
        authority.issue(tmp_path, "b1", ["x"])
    with pytest.raises(BadRequestError, match=r"b7\.pem does not exist"):
        authority.renew(directory, "b7")
    with pytest.raises(BadRequestError, match="is no host name"):
        authority.issue(directory, "b2", ["bücher.example"])
    (directory / "ca-key.pem").unlink()
    with pytest.raises(BadRequestError, match="only the CA's key can sign"):
        authority.issue(directory, "b2", ["x"])


@pytest.mark.parametrize(
    "host",
    [
        "b1.example:3181",
        "https://b1.example",
        "[::1]",
        "",
        "10.0.0.0/8",
        "10.0.0.256",
        "b 1",
        "fe80::1%eth0",
        "bücher.example",
        "-b1.example",
        "b1..example",
        "b*.example",
        "x" * 64,
        ".".join(["x" * 60] * 5),
    ],
)
def test_no_hosts(directory: Path, host: str) -> None:
    with pytest.raises(BadRequestError, match="is no host name or address"):
        authority.issue(directory, "b2", ["b2.example", host])
    assert not (directory / "b2-key.pem").exists()


def test_unusual_hosts(directory: Path) -> None:
    hosts = ("*.example", "xn--bcher-kva.example", "b_2", "b3.example.", "2001:db8::1", "4.example")
    authority.issue(directory, "b2", hosts)
    assert facts(directory, "b2").names == hosts


@pytest.mark.parametrize("name", ["../security/b1", "/b1", "", ".."])
def test_a_renewal_stays_in_its_directory(directory: Path, name: str) -> None:
    before = (directory / "b1.pem").read_bytes()
    with pytest.raises(BadRequestError, match="must be 1 to 64"):
        authority.renew(directory, name)
    assert (directory / "b1.pem").read_bytes() == before


def test_an_expired_ca_signs_nothing_until_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(authority, "_CLOCK_SKEW", datetime.timedelta(days=9))
        authority.create_authority(tmp_path, days=-1)
    with pytest.raises(BadRequestError, match=r"has expired; `bookie security renew .* ca` renews"):
        authority.issue(tmp_path, "b1", ["x"])
    authority.renew(tmp_path, "ca")
    authority.issue(tmp_path, "b1", ["x"])


def test_the_key_of_another_ca_signs_nothing(directory: Path, tmp_path: Path) -> None:
    authority.create_authority(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "ca-key.pem", directory / "ca-key.pem")
    sentence = "is the key of another CA than"
    with pytest.raises(BadRequestError, match=sentence):
        authority.issue(directory, "b2")
    for name in ("b1", "ca"):
        with pytest.raises(BadRequestError, match=sentence):
            authority.renew(directory, name)


def test_a_certificate_ends_with_its_ca_at_the_latest(directory: Path) -> None:
    authority.issue(directory, "b2", ["x"], days=7000)
    assert facts(directory, "b2").expires_seconds == facts(directory, "ca").expires_seconds


def test_a_key_without_its_certificate_is_not_overwritten(directory: Path) -> None:
    (directory / "b1.pem").unlink()
    before = (directory / "b1-key.pem").read_bytes()
    with pytest.raises(BadRequestError, match=r"b1-key\.pem exists already, without a certificate"):
        authority.issue(directory, "b1", ["x"])
    assert (directory / "b1-key.pem").read_bytes() == before


def test_a_ca_with_a_key_alone_is_completed(directory: Path) -> None:
    """A command was interrupted, or the certificate is lost; the key stays in any case."""
    (directory / "ca.pem").unlink()
    before = (directory / "ca-key.pem").read_bytes()
    with pytest.raises(BadRequestError, match=r"`bookie security init .*` makes a CA"):
        authority.renew(directory, "ca")
    authority.create_authority(directory)
    assert (directory / "ca-key.pem").read_bytes() == before
    authority.issue(directory, "b2", ["x"])


@pytest.mark.parametrize("is_permitted", [True, False])
def test_a_renewed_file_keeps_its_owner(
    directory: Path, monkeypatch: pytest.MonkeyPatch, is_permitted: bool
) -> None:
    """The bookie runs as a user of its own, and root renews its certificate."""
    fchown = Mock(side_effect=None if is_permitted else PermissionError)
    monkeypatch.setattr(os, "fchown", fchown)
    before = facts(directory, "b1").expires_seconds
    authority.renew(directory, "b1", days=900)
    former = authority.key_path(directory, "b1").stat()
    owners = [call.args[1:] for call in fchown.call_args_list]
    assert owners == [(former.st_uid, former.st_gid)] * 2
    assert facts(directory, "b1").expires_seconds > before
