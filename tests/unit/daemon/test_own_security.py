"""The certificate of a process: checked at the start, followed, and shown."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bookie.config import Settings
from bookie.daemon import own_security
from bookie.daemon.own_security import prepare_security, watching_certificates
from bookie.errors import CannotStartError, ConfigurationError
from bookie.security import authority, followed_file
from bookie.security.contexts import server_context
from bookie.telemetry import Metrics
from tests.unit.ledger.real_cluster import until
from tests.unit.security.odd_certificates import CLIENT, SERVER, issue_odd


def settings(**security: object) -> Settings:
    return Settings.model_validate({"security": security})


def expiry(metrics: Metrics, file: str) -> float:
    name = "bookie_certificate_expiry_timestamp_seconds"
    return metrics.registry.get_sample_value(name, {"file": file}) or 0.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A CA, and a bookie's certificate for five days."""
    authority.create_authority(tmp_path)
    authority.issue(tmp_path, "b1", ["127.0.0.1"], days=5)
    return tmp_path


def test_on_loopback_nothing_is_needed() -> None:
    metrics = Metrics()
    assert prepare_security(settings(), metrics) is None
    assert b"certificate_expiry_timestamp_seconds{" not in metrics.exposition()[0]


def test_a_ca_without_a_certificate_is_half_a_bookie(directory: Path) -> None:
    """A process that only repairs serves nothing by TLS, and may have a CA alone."""
    half = settings(ca_file=str(directory / "ca.pem"))
    with pytest.raises(ConfigurationError, match=r"security\.certificate_file is not"):
        prepare_security(half, Metrics())
    assert prepare_security(half, Metrics(), listeners=("http",)) is None


async def test_a_certificate_that_ends_soon_is_told_until_it_is_renewed(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_security, "LOOK_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)
    metrics = Metrics()
    files = prepare_security(settings(**authority.settings_for(directory, "b1")), metrics)
    said = [one for one in caplog.messages if one.startswith("certificate_expires_soon")]
    assert len(said) == 1
    assert "file='certificate'" in said[0]
    assert expiry(metrics, "certificate") < time.time() + 6 * 86400
    assert expiry(metrics, "ca") > time.time() + 3000 * 86400
    caplog.clear()
    async with watching_certificates(files, metrics):
        authority.renew(directory, "b1")
        await until(lambda: expiry(metrics, "certificate") > time.time() + 300 * 86400)
    assert not [one for one in caplog.messages if one.startswith("certificate_expires_soon")]


@pytest.mark.parametrize(("host", "is_told"), [("127.0.0.1", False), ("b1.example", True)])
def test_a_certificate_for_another_host_is_told(
    directory: Path, caplog: pytest.LogCaptureFixture, host: str, is_told: bool
) -> None:
    """It may still be right: clients may reach the bookie by a name that it does not know."""
    security = authority.settings_for(directory, "b1")
    own = Settings.model_validate({"listen": {"advertised_host": host}, "security": security})
    assert prepare_security(own, Metrics()) is not None
    assert ("does not name b1.example" in caplog.text) is is_told


UNSUITABLE: dict[str, dict[str, Any]] = {
    "lacks serverAuth": {"purposes": [CLIENT]},
    "lacks clientAuth": {"purposes": [SERVER]},
    "is not valid yet": {"days": (1, 30)},
    "does not name 127.0.0.1": {"addresses": ["10.0.0.1"]},
    "has expired": {"days": (-2, -1)},
}
"""Sentence → a certificate of the right CA that peers refuse."""

CONFIGURED = ("lacks serverAuth", "lacks clientAuth")


@pytest.mark.parametrize("sentence", CONFIGURED)
def test_a_certificate_of_another_purpose_is_refused(directory: Path, sentence: str) -> None:
    issue_odd(directory, "odd", **UNSUITABLE[sentence])
    own = settings(**authority.settings_for(directory, "odd"))
    with pytest.raises(ConfigurationError, match=rf"bookies would refuse .*odd\.pem: .*{sentence}"):
        prepare_security(own, Metrics())
    assert prepare_security(own, Metrics(), listeners=("http",)) is not None  # it only repairs


def test_a_certificate_of_a_ca_that_is_not_trusted_is_refused(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    authority.create_authority(other)
    files = authority.settings_for(directory, "b1") | {"ca_file": str(other / "ca.pem")}
    with pytest.raises(ConfigurationError, match=r"no CA in security\.ca_file has signed"):
        prepare_security(settings(**files), Metrics())


@pytest.mark.parametrize("sentence", sorted(set(UNSUITABLE) - set(CONFIGURED) - {"has expired"}))
def test_a_certificate_that_may_become_good_is_told(
    directory: Path, caplog: pytest.LogCaptureFixture, sentence: str
) -> None:
    issue_odd(directory, "odd", **UNSUITABLE[sentence])
    assert prepare_security(settings(**authority.settings_for(directory, "odd")), Metrics())
    (said,) = [one for one in caplog.messages if one.startswith("certificate_unsuitable")]
    assert sentence in said


@pytest.mark.parametrize("sentence", sorted(UNSUITABLE))
async def test_a_running_bookie_keeps_its_certificate(
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    sentence: str,
) -> None:
    """What peers refuse is told once; a good certificate is taken afterwards."""
    monkeypatch.setattr(own_security, "LOOK_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)
    files = prepare_security(settings(**authority.settings_for(directory, "b1")), Metrics())
    assert files is not None
    before = files.pems
    async with watching_certificates(files, Metrics()):
        issue_odd(directory, "b1", **UNSUITABLE[sentence])
        await until(lambda: sentence in caplog.text)
        assert not files.refresh()
        assert files.pems is before
        issue_odd(directory, "b1")
        await until(lambda: files.pems is not before)
    told = [
        one for one in caplog.messages if one.startswith("certificate_not_") and sentence in one
    ]
    assert len(told) == 1


async def test_a_running_bookie_keeps_its_ca_until_both_are_new(
    directory: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)
    files = prepare_security(settings(**authority.settings_for(directory, "b1")), Metrics())
    assert files is not None
    other = tmp_path_factory.mktemp("other")
    authority.create_authority(other)
    authority.issue(other, "b1", ["127.0.0.1"])
    before = files.pems
    for name in ("ca.pem", "b1-key.pem", "b1.pem"):
        assert files.pems is before
        (directory / name).write_bytes((other / name).read_bytes())
        assert files.refresh() is (name == "b1.pem")


def half_renewed(directory: Path) -> bytes:
    """The new key stands there, and the new certificate, which is returned, does not yet."""
    former = (directory / "b1.pem").read_bytes()
    authority.renew(directory, "b1")
    renewed = (directory / "b1.pem").read_bytes()
    (directory / "b1.pem").write_bytes(former)
    return renewed


def test_a_start_in_the_middle_of_a_renewal(directory: Path) -> None:
    """It waits for the second file. Status 78 would end the bookie until somebody looks."""
    renewed = half_renewed(directory)
    timer = threading.Timer(0.3, (directory / "b1.pem").write_bytes, [renewed])
    timer.start()
    files = prepare_security(settings(**authority.settings_for(directory, "b1")), Metrics())
    timer.join()
    assert files is not None
    assert files.pems.certificate == renewed


def test_a_renewal_that_was_interrupted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later start may succeed, and the sentence names the command that mends it."""
    monkeypatch.setattr(own_security, "START_PATIENCE_SECONDS", 0.2)
    half_renewed(directory)
    own = settings(**authority.settings_for(directory, "b1"))
    with pytest.raises(CannotStartError, match="`bookie security renew` makes both anew"):
        prepare_security(own, Metrics())
    authority.renew(directory, "b1")
    assert prepare_security(own, Metrics()) is not None


def test_a_file_that_is_being_written(directory: Path) -> None:
    """Some programs write files in place: for a moment there is half of one."""
    content = (directory / "ca.pem").read_bytes()
    (directory / "ca.pem").write_bytes(content[:100])
    timer = threading.Timer(0.3, (directory / "ca.pem").write_bytes, [content])
    timer.start()
    assert prepare_security(settings(**authority.settings_for(directory, "b1")), Metrics())
    timer.join()


def make_odd(path: Path) -> None:
    """Give a certificate the label that OpenSSL alone knows: ``openssl x509 -trustout``."""
    text = path.read_text().replace("BEGIN CERT", "BEGIN TRUSTED CERT")
    path.write_text(text.replace("END CERT", "END TRUSTED CERT"))


@pytest.mark.parametrize(("file", "setting"), [("b1", "certificate_file"), ("ca", "ca_file")])
def test_a_certificate_that_openssl_alone_takes_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, file: str, setting: str
) -> None:
    monkeypatch.setattr(own_security, "START_PATIENCE_SECONDS", 0.0)
    make_odd(directory / f"{file}.pem")
    security = settings(**authority.settings_for(directory, "b1"))
    server_context(security.security)
    with pytest.raises(ConfigurationError, match=rf"\[security\] cannot be used: .*{setting}: "):
        prepare_security(security, Metrics())


async def test_it_does_not_end_a_running_bookie(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_security, "LOOK_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.0)
    metrics = Metrics()
    files = prepare_security(settings(**authority.settings_for(directory, "b1")), metrics)
    assert files is not None
    before = files.pems
    async with watching_certificates(files, metrics):
        sound = (directory / "b1.pem").read_bytes()
        make_odd(directory / "b1.pem")
        await until(lambda: "certificate_not_reloaded" in caplog.text)
        assert files.pems is before
        (directory / "b1.pem").write_bytes(sound)
        authority.renew(directory, "b1")
        await until(lambda: expiry(metrics, "certificate") > time.time() + 300 * 86400)
