"""A private CA in a directory, for trials and small clusters: ``bookie security``.

==========================  ====================================================================
``DIR/ca.pem``              the CA's certificate, which every bookie and client trusts
``DIR/ca-key.pem``          the CA's key: its owner can make certificates of bookies
``DIR/NAME.pem``            the certificate of a bookie or client
``DIR/NAME-key.pem``        the key of this certificate
==========================  ====================================================================

Keys are on the curve P-256, and only their owner can read them. A certificate with hosts is valid
for the server and for the client of a connection, because bookies are clients of each other. A
certificate without hosts is valid for a client only.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bookie.errors import BadRequestError
from bookie.security.private_files import NewFile, locked, locked_existing, replace_files, write_new

CA_NAME = "ca"
CA_DAYS = 3650
DAYS = 365

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?(?=.*[A-Za-z_]){_LABEL}(\.{_LABEL})*\.?")
_HOST_LENGTH_MAX = 253

_CLOCK_SKEW = datetime.timedelta(hours=1)


def certificate_path(directory: Path, name: str) -> Path:
    """Return the path of a certificate."""
    return directory / f"{name}.pem"


def key_path(directory: Path, name: str) -> Path:
    """Return the path of a certificate's key."""
    return directory / f"{name}-key.pem"


def settings_for(directory: Path, name: str) -> dict[str, str]:
    """Return settings of the section ``[security]`` that name a certificate, its key and the CA."""
    return {
        "certificate_file": str(certificate_path(directory, name)),
        "key_file": str(key_path(directory, name)),
        "ca_file": str(certificate_path(directory, CA_NAME)),
    }


def variables_for(directory: Path, name: str) -> dict[str, str]:
    """Return the settings of `settings_for` as environment variables."""
    return {
        f"BOOKIE_SECURITY__{key.upper()}": path
        for key, path in settings_for(directory, name).items()
    }


def create_authority(directory: Path, *, days: int = CA_DAYS) -> None:
    """Make a CA in `directory`; a new directory is open to this user only.

    If `directory` holds a CA key without a certificate, the CA uses this key.

    Raises:
        BadRequestError: the directory holds a CA already, or an unusable CA key.
        OSError: a file cannot be read or written.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(directory):
        if os.path.lexists(certificate_path(directory, CA_NAME)):
            raise BadRequestError(
                f"{directory} holds a CA already: `bookie security issue` makes certificates, and "
                "`bookie security renew` renews them; or name another directory"
            )
        # If there is a key without a certificate, a command was interrupted, or the certificate was
        # lost.
        is_new = not os.path.lexists(key_path(directory, CA_NAME))
        key = ec.generate_private_key(ec.SECP256R1()) if is_new else _load_key(directory)
        # Each CA has its own name, by which peers distinguish two CAs in one file.
        name = _subject(f"bookie CA {os.urandom(4).hex()}")
        files = [_key_file(directory, CA_NAME, key)] if is_new else []
        write_new([*files, _certificate_file(directory, CA_NAME, _authority(key, name, days))])


def issue(directory: Path, name: str, hosts: Sequence[str] = (), *, days: int = DAYS) -> None:
    """Make a certificate and a key for `name`, signed by the CA in `directory`.

    Args:
        directory: the directory of the CA, in which the files are written.
        name: the name of the files, and the common name in the certificate.
        hosts: the host names and addresses of a bookie; none for a client.
        days: the validity of the certificate, which ends at the latest when the CA expires.

    Raises:
        BadRequestError: the name is taken or malformed, a host is malformed, or the directory has
            no CA that can sign.
        OSError: a file cannot be read or written.
    """
    if name == CA_NAME:
        raise BadRequestError(f"{name!r} is the name of the CA; take another one")
    _require_name(name)
    alternatives = _alternatives(hosts)
    with locked_existing(directory, f"`bookie security init {directory}` makes a CA"):
        if os.path.lexists(certificate_path(directory, name)):
            raise BadRequestError(f"{certificate_path(directory, name)} exists already; renew it")
        if os.path.lexists(key_path(directory, name)):
            raise BadRequestError(
                f"{key_path(directory, name)} exists already, without a certificate; move it away, "
                "or take another name"
            )
        made = _issued(directory, _subject(name), name, alternatives, days)
        write_new([made.certificate, made.key])


def renew(directory: Path, name: str, *, days: int | None = None) -> None:
    """Replace a certificate by a new certificate for the same names, valid for `days` from now.

    Bookies and clients load the new files within seconds. A renewed CA keeps its key, so the
    certificates that it signed stay valid. A bookie or client gets a new key.

    Raises:
        BadRequestError: the certificate `name` does not exist, or no CA can sign.
        OSError: a file cannot be read or written.
    """
    from cryptography import x509

    _require_name(name)
    with locked_existing(directory, f"`bookie security init {directory}` makes a CA"):
        former = _load(directory, name)
        if name == CA_NAME:
            key = _load_key(directory)
            if former.public_key() != key.public_key():
                raise BadRequestError(_other_key(directory))
            authority = _authority(key, former.subject, days or CA_DAYS)
            replace_files([_certificate_file(directory, CA_NAME, authority)])
            return
        alternatives: list[Any] = []
        with contextlib.suppress(x509.ExtensionNotFound):
            found = former.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            alternatives = list(found.value)
        made = _issued(directory, former.subject, name, alternatives, days or DAYS)
        replace_files([made.key, made.certificate])


def require_hosts(hosts: Sequence[str]) -> None:
    """Check that a certificate can name these hosts.

    Raises:
        BadRequestError: a host is neither a host name nor an address.
    """
    _alternatives(hosts)


def _require_name(name: str) -> None:
    if _NAME.fullmatch(name) is None or name.endswith("-key"):
        raise BadRequestError(
            f"{name!r} must be 1 to 64 letters, digits or ._-, and must not end with -key"
        )


def _authority(key: Any, name: Any, days: int) -> Any:
    from cryptography import x509

    builder = _builder(name, name, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(is_authority=True), critical=True)
    return _signed(builder, key)


@dataclass(frozen=True, slots=True)
class _Issued:
    """The files of a new certificate."""

    certificate: NewFile
    key: NewFile


def _issued(
    directory: Path, subject: Any, name: str, alternatives: list[Any], days: int
) -> _Issued:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority, authority_key = _load(directory, CA_NAME), _load_key(directory)
    _require_signing(directory, authority, authority_key)
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    until = authority.not_valid_after_utc
    builder = _builder(subject, authority.subject, key.public_key(), days, until)
    if alternatives:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
    )
    certificate = _signed(builder, authority_key)
    return _Issued(_certificate_file(directory, name, certificate), _key_file(directory, name, key))


def _require_signing(directory: Path, authority: Any, key: Any) -> None:
    """Check that the CA can sign: it has not expired, and `key` is its key.

    Raises:
        BadRequestError: the CA cannot sign.
    """
    if authority.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise BadRequestError(
            f"the CA in {directory} has expired; `bookie security renew {directory} {CA_NAME}` "
            "renews it"
        )
    if authority.public_key() != key.public_key():
        raise BadRequestError(_other_key(directory))


def _other_key(directory: Path) -> str:
    key, certificate = key_path(directory, CA_NAME), certificate_path(directory, CA_NAME)
    return f"{key} is the key of another CA than {certificate}"


def _builder(
    subject: Any,
    issuer: Any,
    public_key: Any,
    days: int,
    until: datetime.datetime | None = None,
) -> Any:
    """Begin a certificate that expires after `days`, but not later than at `until`."""
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    ends = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(ends if until is None else min(ends, until))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, is_authority: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: Any, key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _subject(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternatives(hosts: Sequence[str]) -> list[Any]:
    from cryptography import x509

    found: list[Any] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
            is_good = "%" not in host  # a certificate cannot name an IPv6 zone
        except ValueError:
            is_good = _HOST.fullmatch(host) is not None and len(host) <= _HOST_LENGTH_MAX
            if is_good:
                found.append(x509.DNSName(host))
        if not is_good:
            raise BadRequestError(
                f"{host!r} is no host name or address; write it without port, brackets and zone, "
                "and names of other alphabets as xn--…"
            )
    return found


def _load(directory: Path, name: str) -> Any:
    from cryptography import x509

    path = certificate_path(directory, name)
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())[0]
    except FileNotFoundError as error:
        raise BadRequestError(
            f"{path} does not exist; `bookie security init {directory}` makes a CA"
            if name == CA_NAME
            else f"{path} does not exist"
        ) from error
    except ValueError as error:
        raise BadRequestError(f"{path} holds no certificate (PEM)") from error


def _load_key(directory: Path) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    path = key_path(directory, CA_NAME)
    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError as error:
        raise BadRequestError(f"{path} does not exist: only the CA's key can sign") from error
    except (ValueError, TypeError) as error:
        raise BadRequestError(f"{path} holds no key (PEM) without a passphrase") from error


def _certificate_file(directory: Path, name: str, certificate: Any) -> NewFile:
    from cryptography.hazmat.primitives.serialization import Encoding

    content = certificate.public_bytes(Encoding.PEM)
    return NewFile(certificate_path(directory, name), content, 0o644, keeps_group=True)


def _key_file(directory: Path, name: str, key: Any) -> NewFile:
    from cryptography.hazmat.primitives import serialization as form

    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return NewFile(key_path(directory, name), private, 0o600, keeps_group=True)
