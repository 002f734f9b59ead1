"""The files of [security]: refused when they cannot be used, taken again when they change."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from bookie.config import SecuritySettings
from bookie.errors import ConfigurationError
from bookie.security import PemFiles, authority, followed_file, pem_files
from bookie.security.certificates import first_expiry_seconds, read_certificates
from bookie.security.usable import require_usable
from tests.unit.security.odd_certificates import issue_odd, new_key, private_pem


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 0

    def nonce(self) -> bytes:
        return b""

    def boot_id(self) -> str:
        return ""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A CA with the certificate of a bookie."""
    authority.create_authority(tmp_path)
    authority.issue(tmp_path, "b1", ["127.0.0.1"])
    return tmp_path


def settings(directory: Path, name: str = "b1") -> SecuritySettings:
    return SecuritySettings.model_validate(authority.settings_for(directory, name))


def watched(directory: Path) -> tuple[PemFiles, Clock]:
    clock = Clock()
    return PemFiles(settings(directory), clock), clock


def look(files: PemFiles, clock: Clock) -> bool:
    clock.seconds += followed_file.LOOK_SECONDS
    return files.refresh()


def test_content_and_context(directory: Path) -> None:
    files = PemFiles(settings(directory))
    assert files.pems.certificate == (directory / "b1.pem").read_bytes()
    assert files.pems.key == (directory / "b1-key.pem").read_bytes()
    assert files.pems.ca == (directory / "ca.pem").read_bytes()
    assert "PRIVATE" not in repr(files.pems)


def test_a_client_needs_the_ca_alone(directory: Path) -> None:
    pems = PemFiles(SecuritySettings(ca_file=str(directory / "ca.pem"))).pems
    assert (pems.certificate, pems.key) == (b"", b"")


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("ca.pem", None, r"security.ca_file .*ca.pem cannot be used: no such file"),
        ("b1-key.pem", None, r"security.key_file .* cannot be used: no such file"),
        ("ca.pem", b"nonsense", r"security.ca_file .*ca.pem cannot be used: it holds no certifi"),
        ("b1.pem", b"nonsense", r"security.certificate_file .*b1.pem .*: it holds no certificate"),
        ("b1-key.pem", b"nonsense", r"security.key_file .*b1-key.pem .*: it holds no private key"),
        ("b1-key.pem", b"", r"security.key_file .*b1-key.pem .*: it holds no private key"),
    ],
)
def test_files_that_cannot_be_used(
    directory: Path, file: str, content: bytes | None, sentence: str
) -> None:
    if content is None:
        (directory / file).unlink()
    else:
        (directory / file).write_bytes(content)
    with pytest.raises(ConfigurationError, match=sentence):
        PemFiles(settings(directory))


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("ca.pem", r"security\.ca_file .* it holds a certificate that is damaged or not whole"),
        ("b1.pem", r"security\.certificate_file .* it holds a certificate that is damaged"),
        ("b1-key.pem", r"security\.key_file .* it holds a key that is damaged or not whole"),
    ],
)
def test_half_a_file(directory: Path, file: str, sentence: str) -> None:
    (directory / file).write_bytes((directory / file).read_bytes()[:100])
    with pytest.raises(ConfigurationError, match=sentence):
        PemFiles(settings(directory))


def test_half_of_a_second_certificate(directory: Path) -> None:
    content = (directory / "ca.pem").read_bytes()
    (directory / "ca.pem").write_bytes(content + content[:200])
    with pytest.raises(ConfigurationError, match="a certificate that is damaged or not whole"):
        PemFiles(settings(directory))


def test_an_encrypted_key(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL must not ask for its passphrase at the terminal, where there is one."""
    given = []

    load = ssl.SSLContext.load_cert_chain

    def watched(context: ssl.SSLContext, certificate: str, key: str, password: Any = None) -> None:
        given.append(password)
        load(context, certificate, key, password=password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    PemFiles(settings(directory)).client_context()
    assert [one() for one in given] == [b"", b""]
    (directory / "b1-key.pem").write_bytes(private_pem(new_key("P-256"), b"secret"))
    with pytest.raises(ConfigurationError, match="its key is encrypted; store it without"):
        PemFiles(settings(directory))


@pytest.mark.parametrize("name", ["b1", ""])
def test_a_context_of_a_client_needs_no_file_again(directory: Path, name: str) -> None:
    """Files may be unusable at any moment, such as during a renewal."""
    trusting = SecuritySettings(ca_file=str(directory / "ca.pem"))
    files = PemFiles(settings(directory) if name else trusting)
    for one in directory.iterdir():
        one.unlink()
    assert files.client_context().verify_mode is ssl.CERT_REQUIRED
    assert files.client_context() is files.client_context()


def test_a_key_of_another_certificate(directory: Path) -> None:
    authority.issue(directory, "b2", ["127.0.0.1"])
    mixed = settings(directory).model_copy(update={"key_file": str(directory / "b2-key.pem")})
    with pytest.raises(ConfigurationError, match="key values mismatch"):
        PemFiles(mixed)


@pytest.mark.parametrize("kind", ["P-256", "P-384", "2048"])
def test_keys_that_both_libraries_take(directory: Path, kind: str) -> None:
    issue_odd(directory, "odd", kind=kind)
    assert PemFiles(settings(directory, "odd")).pems.certificate


@pytest.mark.parametrize("kind", ["P-521", "secp256k1", "Ed25519"])
def test_a_key_that_grpc_cannot_use(
    directory: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """OpenSSL takes it: the bookie would start, and nobody could connect."""
    issue_odd(directory, "odd", kind=kind)
    sentence = r"security\.certificate_file is for .* which gRPC cannot use; take a key on P-256 or"
    with pytest.raises(ConfigurationError, match=sentence):
        PemFiles(settings(directory, "odd"))
    files, clock = watched(directory)
    before = files.pems
    issue_odd(directory, "b1", kind=kind)
    for _ in range(2):
        assert not look(files, clock)
    assert files.pems is before
    (said,) = refusals(caplog)
    assert "which gRPC cannot use" in said


def test_a_small_rsa_key(directory: Path) -> None:
    issue_odd(directory, "odd", kind="1024")
    with pytest.raises(ConfigurationError):
        PemFiles(settings(directory, "odd"))
    with pytest.raises(ValueError, match="an RSA key of 1024 bits"):
        require_usable((directory / "ca.pem").read_bytes(), (directory / "odd.pem").read_bytes())


def test_a_byte_order_mark(directory: Path) -> None:
    """An editor of Windows writes it; OpenSSL ignores it."""
    (directory / "ca.pem").write_bytes(b"\xef\xbb\xbf" + (directory / "ca.pem").read_bytes())
    with pytest.raises(
        ConfigurationError, match=r"security\.ca_file begins with a byte order mark"
    ):
        PemFiles(settings(directory))


def test_a_ca_that_grpc_cannot_verify(directory: Path) -> None:
    issue_odd(directory, "odd", kind="secp256k1")
    ca = (directory / "ca.pem").read_bytes() + (directory / "odd.pem").read_bytes()
    (directory / "ca.pem").write_bytes(ca)
    with pytest.raises(ConfigurationError, match="a CA on the curve secp256k1"):
        PemFiles(settings(directory))


def test_changed_files_are_taken(directory: Path) -> None:
    files, clock = watched(directory)
    before, context = files.pems, files.context
    assert not look(files, clock)
    authority.renew(directory, "b1")
    assert look(files, clock)
    assert files.pems.certificate == (directory / "b1.pem").read_bytes() != before.certificate
    assert files.context is not context
    assert not look(files, clock)


def test_files_are_looked_at_once_a_second(directory: Path) -> None:
    files, clock = watched(directory)
    authority.renew(directory, "b1")
    clock.seconds += followed_file.LOOK_SECONDS / 2
    assert not files.refresh()
    clock.seconds += followed_file.LOOK_SECONDS
    assert files.refresh()


def test_half_of_a_renewal_is_not_taken(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The new key stands there, and the new certificate does not yet."""
    files, clock = watched(directory)
    before = files.pems
    certificate = (directory / "b1.pem").read_bytes()
    authority.renew(directory, "b1")
    renewed = (directory / "b1.pem").read_bytes()
    (directory / "b1.pem").write_bytes(certificate)
    for _ in range(3):
        assert not look(files, clock)
    assert files.pems is before
    said = [one for one in caplog.messages if one.startswith("certificate_not_reloaded")]
    assert len(said) == 1
    (directory / "b1.pem").write_bytes(renewed)
    assert look(files, clock)
    assert files.pems.certificate == renewed


@pytest.mark.parametrize("is_mended", [True, False])
def test_files_that_change_while_they_are_read(directory: Path, is_mended: bool) -> None:
    """What was read may be of two renewals; the next look takes what stands there then."""
    changing: list[Callable[[], None]] = []

    def change(_: pem_files.Pems) -> None:
        if changing:
            changing.pop()()

    clock = Clock()
    files = PemFiles(settings(directory), clock, change)
    before = files.pems
    authority.renew(directory, "b1")
    if not is_mended:
        changing.append(lambda: authority.renew(directory, "b1"))
    assert look(files, clock) is is_mended
    assert (files.pems is before) is not is_mended
    assert look(files, clock) is not is_mended
    assert files.pems.certificate == (directory / "b1.pem").read_bytes()
    assert files.pems.key == (directory / "b1-key.pem").read_bytes()


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one for one in caplog.messages if one.startswith("certificate_not_reloaded")]


def test_a_file_that_vanishes_changes_nothing(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, clock = watched(directory)
    os.rename(directory / "ca.pem", directory / "away")
    for _ in range(3):
        assert not look(files, clock)
    assert len(refusals(caplog)) == 1
    assert files.pems.ca == (directory / "away").read_bytes()
    os.rename(directory / "away", directory / "ca.pem")
    look(files, clock)
    assert files.pems.ca == (directory / "ca.pem").read_bytes()


def test_a_file_that_could_not_be_read_is_tried_again(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory that is opened to the bookie changes nothing in the files."""
    files, clock = watched(directory)
    authority.renew(directory, "b1")
    with pytest.MonkeyPatch.context() as patch:
        denied = PermissionError(errno.EACCES, "Permission denied")
        patch.setattr(Path, "read_bytes", Mock(side_effect=denied))
        for _ in range(3):
            assert not look(files, clock)
    (said,) = refusals(caplog)
    assert "permission denied" in said
    assert look(files, clock)
    assert files.pems.certificate == (directory / "b1.pem").read_bytes()


def test_a_file_with_its_former_time_of_change_is_taken(directory: Path) -> None:
    """Programs that copy files may keep the times."""
    files, clock = watched(directory)
    times = [(path, os.stat(path).st_mtime_ns) for path in directory.iterdir()]
    before = {path: path.read_bytes() for path, _ in times}
    authority.renew(directory, "b1")
    after = {path: path.read_bytes() for path, _ in times}
    assert look(files, clock)
    for path, modified in times:
        path.write_bytes(before[path])
        os.utime(path, ns=(modified, modified))
    assert look(files, clock)
    for path, modified in times:
        path.write_bytes(after[path])
        os.utime(path, ns=(modified, modified))
    assert look(files, clock)
    assert files.pems.certificate == after[directory / "b1.pem"]


def test_two_authorities_in_one_file(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """While a CA is replaced, both are trusted; the expiry is that of the first to go."""
    other = tmp_path_factory.mktemp("other")
    authority.create_authority(other, days=5)
    both = (directory / "ca.pem").read_bytes() + (other / "ca.pem").read_bytes()
    (directory / "ca.pem").write_bytes(both)
    pems = PemFiles(settings(directory)).pems
    assert len(read_certificates(pems.ca)) == 2
    assert first_expiry_seconds(pems.ca) == first_expiry_seconds((other / "ca.pem").read_bytes())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"certificate_file": "a"}, "go together"),
        ({"key_file": "a", "ca_file": "b"}, "go together"),
        ({"certificate_file": "a", "key_file": "b"}, "needs ca_file"),
        ({"token_file": "a"}, "token_file needs ca_file"),
    ],
)
def test_halves_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SecuritySettings.model_validate(given)
