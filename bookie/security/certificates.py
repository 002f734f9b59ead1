"""Reads the fields of certificates: subject, names, issuer and expiry."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bookie.errors import BadRequestError


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The fields of one certificate that operators need."""

    subject: str
    names: tuple[str, ...]
    """The host names and addresses for which the certificate is valid."""
    issuer: str
    expires_seconds: float
    """The end of the certificate's validity, in seconds since 1970."""
    is_authority: bool
    """True if the certificate may sign other certificates."""


def read_certificates(pem: bytes) -> list[CertificateFacts]:
    """Return the certificates in `pem`, in their order; a chain begins with its leaf certificate.

    Raises:
        ValueError: `pem` has no certificate, or a malformed certificate.
    """
    from cryptography import x509

    with parsing():
        return [_facts(one) for one in x509.load_pem_x509_certificates(pem)]


def read_certificate_file(path: Path) -> list[CertificateFacts]:
    """Return the certificates of a file.

    Raises:
        OSError: the file cannot be read.
        BadRequestError: the file has no certificate, or a malformed certificate.
    """
    try:
        return read_certificates(path.read_bytes())
    except ValueError as error:
        raise BadRequestError(f"{path} holds no certificate (PEM): {error}") from error


def first_expiry_seconds(pem: bytes) -> float:
    """Return the earliest expiry among the certificates in `pem`, in seconds since 1970.

    The function does not read extensions, so a malformed extension causes no error.

    Raises:
        ValueError: `pem` has no certificate, or a malformed certificate.
    """
    from cryptography import x509

    with parsing():
        certificates = x509.load_pem_x509_certificates(pem)
        return min(one.not_valid_after_utc.timestamp() for one in certificates)


@contextlib.contextmanager
def parsing(what: str = "") -> Iterator[None]:
    """Turn any error of `cryptography` about a certificate into a ValueError.

    If `what`, the name of the parsed object, is not empty, the error's text begins with `what`.
    """
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        yield
    except (
        ValueError,
        UnsupportedAlgorithm,
        x509.DuplicateExtension,
        x509.InvalidVersion,
        x509.UnsupportedGeneralNameType,
    ) as error:
        raise ValueError(f"{what}: {error}" if what else str(error)) from error


def _facts(certificate: object) -> CertificateFacts:
    from cryptography import x509

    assert isinstance(certificate, x509.Certificate)
    names: list[str] = []
    is_authority = False
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            names = [str(one.value) for one in extension.value]
        elif isinstance(extension.value, x509.BasicConstraints):
            is_authority = extension.value.ca
    return CertificateFacts(
        subject=certificate.subject.rfc4514_string(),
        names=tuple(names),
        issuer=certificate.issuer.rfc4514_string(),
        expires_seconds=certificate.not_valid_after_utc.timestamp(),
        is_authority=is_authority,
    )
