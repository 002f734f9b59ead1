"""Chooses which address of a bookie a client uses: an address with TLS or one in plaintext.

A registration names the protocol of each address: ``grpcs``, ``https`` and ``frames+tls`` use TLS,
``grpc``, ``http`` and ``frames`` use plaintext. A client with a CA uses plaintext only if its
settings allow plaintext.

The address for frames has its own service name, because clients of earlier versions use every
address of the service "bookie" for gRPC.
"""

from __future__ import annotations

from typing import Final

from bookie.cluster.registration_record import Endpoint, Registration
from bookie.config import SecuritySettings, Transport
from bookie.errors import BookieUnreachableError, TlsError

ENTRIES: Final = "bookie"
"""The service that serves entries by gRPC."""

FRAMES: Final = "frames"
"""The service that serves entries by frames."""

FRAMES_PROTOCOLS: Final = ("frames", "frames+tls")
"""The protocols of the service "frames": first without TLS, then with TLS."""

_TLS_PROTOCOLS: Final = frozenset({"grpcs", "https", FRAMES_PROTOCOLS[1]})


def speaks_tls(endpoint: Endpoint) -> bool:
    """True if the bookie speaks TLS at this address."""
    return endpoint.protocol in _TLS_PROTOCOLS


def entries_endpoint(
    registration: Registration, settings: SecuritySettings, transport: Transport = "grpc"
) -> Endpoint:
    """Return the address at which a client with this `transport` adds and reads entries.

    With ``auto``, an address for frames is used if it is as safe as the address for gRPC: both use
    TLS, or both are in plaintext.

    Raises:
        BookieUnreachableError: the bookie offers no address for this transport.
        TlsError: the settings permit none of the addresses.
    """
    if transport == "frames":
        return endpoint_for(registration, FRAMES, settings)
    by_grpc = endpoint_for(registration, ENTRIES, settings)
    if transport == "auto":
        for one in registration.endpoints:
            if one.name == FRAMES and speaks_tls(one) == speaks_tls(by_grpc):
                return one
    return by_grpc


def endpoint_for(registration: Registration, service: str, settings: SecuritySettings) -> Endpoint:
    """Return the address at which a client with these `settings` reaches a bookie's service.

    Args:
        registration: the registration of the bookie.
        service: "bookie" for entries by gRPC, "frames" for entries by frames, "http" for commands.
        settings: the settings of the client. A client with a CA uses plaintext only if the settings
            allow plaintext and the service has no address with TLS.

    Raises:
        BookieUnreachableError: the bookie does not offer the service.
        TlsError: the settings permit none of the service's addresses.
    """
    offered = [one for one in registration.endpoints if one.name == service]
    bookie_id = registration.bookie_id
    if not offered:
        of_entries = "for entries" if service == "bookie" else f"for {service}"
        raise BookieUnreachableError(f"bookie {bookie_id} names no address {of_entries}")
    by_tls = [one for one in offered if speaks_tls(one)]
    plain = [one for one in offered if not speaks_tls(one)]
    if settings.uses_tls and by_tls:
        return by_tls[0]
    if plain and (settings.allow_plaintext or not settings.uses_tls):
        return plain[0]
    if settings.uses_tls:
        raise TlsError(
            f"bookie {bookie_id} does not speak TLS, and this client must not use plaintext: "
            "security.ca_file is set, and security.allow_plaintext is not"
        )
    raise TlsError(
        f"bookie {bookie_id} speaks only TLS: set security.ca_file, and security.certificate_file "
        "and key_file if it asks for a client's certificate"
    )
