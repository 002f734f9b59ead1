"""Reads the names in a peer's certificate, for gRPC and for HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The names in a peer's certificate, which a CA of ``ca_file`` has signed."""

    common_name: str
    names: tuple[str, ...] = ()
    """The certificate's alternative names: hosts, addresses, URIs."""

    def __str__(self) -> str:
        return self.common_name or ", ".join(self.names)


def identity_of_call(properties: Mapping[str, Iterable[bytes]]) -> PeerIdentity | None:
    """Return the names of a gRPC caller; None if the caller showed no certificate.

    Args:
        properties: the result of `auth_context` of the call's context.
    """
    if not properties.get("x509_pem_cert"):
        return None
    common = [_text(one) for one in properties.get("x509_common_name", ())]
    names = [_text(one) for one in properties.get("x509_subject_alternative_name", ())]
    return PeerIdentity(common[0] if common else "", tuple(names))


def identity_of_certificate(certificate: Mapping[str, Any] | None) -> PeerIdentity | None:
    """Return the names of an HTTP client; None if the client showed no certificate.

    Args:
        certificate: the result of `ssl.SSLObject.getpeercert`.
    """
    if not certificate:
        return None
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    # The first of several common names is used, as with gRPC.
    common = next((str(value) for name, value in subject if name == "commonName"), "")
    names = tuple(str(value) for _, value in certificate.get("subjectAltName", ()))
    return PeerIdentity(common, names)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
