"""Certificates that `bookie security` does not make, but other programs do."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from bookie.security import authority

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH

CURVES: dict[str, ec.EllipticCurve] = {
    "P-256": ec.SECP256R1(),
    "P-384": ec.SECP384R1(),
    "P-521": ec.SECP521R1(),
    "secp256k1": ec.SECP256K1(),
}


def new_key(kind: str) -> Any:
    """A key: a curve's name, ``Ed25519``, or the bits of RSA."""
    if kind == "Ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    if kind.isdigit():
        return rsa.generate_private_key(65537, int(kind))
    return ec.generate_private_key(CURVES[kind])


def issue_odd(
    directory: Path,
    name: str,
    *,
    kind: str = "P-256",
    addresses: Sequence[str] = ("127.0.0.1",),
    purposes: Sequence[x509.ObjectIdentifier] = (),
    days: tuple[float, float] = (-1, 30),
) -> None:
    """Write a certificate of the CA in `directory`, and its key.

    Args:
        directory: the CA's.
        name: of the files, and the common name.
        kind: of the key.
        addresses: in the certificate.
        purposes: the extended key usages; none for a certificate without the extension.
        days: when it begins and ends to be valid, from now.
    """
    key, now = new_key(kind), datetime.datetime.now(datetime.UTC)
    begins, ends = (now + datetime.timedelta(days=one) for one in days)
    names = [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
    builder = (
        x509.CertificateBuilder()
        .subject_name(authority._subject(name))
        .issuer_name(authority._load(directory, authority.CA_NAME).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    certificate = builder.sign(authority._load_key(directory), hashes.SHA256())
    encoding = serialization.Encoding.PEM
    authority.certificate_path(directory, name).write_bytes(certificate.public_bytes(encoding))
    authority.key_path(directory, name).write_bytes(private_pem(key))


def private_pem(key: Any, passphrase: bytes = b"") -> bytes:
    """A key as PEM."""
    secrecy: Any = serialization.NoEncryption()
    if passphrase:
        secrecy = serialization.BestAvailableEncryption(passphrase)
    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, secrecy))
