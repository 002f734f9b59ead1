"""Finds out, by a TLS handshake in memory, why peers would refuse a bookie's certificate.

A bookie is a server, and a client of other bookies. So in the handshake, client and server both
show the bookie's certificate and trust its CA file. OpenSSL verifies the certificate, as it does
for HTTP.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from typing import Final

from bookie.config import SecuritySettings
from bookie.security.contexts import client_context, server_context

AUTHORITY: Final = "authority"
EARLY: Final = "early"
EXPIRED: Final = "expired"
CLIENT: Final = "client"
SERVER: Final = "server"
HOST: Final = "host"

LASTING: Final = frozenset({AUTHORITY, CLIENT, SERVER})
"""The kinds of faults that only a new certificate or another CA file can remove."""

_ROUNDS: Final = 4
"""The number of rounds of `_meet`, larger than the number of flights in a TLS 1.3 handshake."""

_EXPIRED, _EARLY, _PURPOSE, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 26, 62, 64
# Source: X509_V_ERR_* of OpenSSL's x509_vfy.h


def faults_of(settings: SecuritySettings, host: str = "") -> Mapping[str, str]:
    """Return the faults for which peers would refuse the certificate: kind → sentence.

    The result is empty if peers would accept the certificate.

    Args:
        settings: names the files; the caller has checked that OpenSSL can load them.
        host: the host name that the certificate must name; empty to check no host name.

    Raises:
        OSError: a file cannot be read.
    """
    server, client = server_context(settings), client_context(settings)
    server.verify_mode = ssl.CERT_REQUIRED
    found = _named(_meet(server, client, host), host)
    if HOST in found:
        client.check_hostname = False
        found |= _named(_meet(server, client, host), host)
    if SERVER in found:
        # The server checks the client's certificate only after the client has accepted the server's
        # certificate.
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        found |= _named(_meet(server, client, host), host)
    return found


def _meet(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str
) -> tuple[ssl.SSLError | None, ssl.SSLError | None]:
    """Do a handshake in memory; return the error of the server and the error of the client."""
    if not host:
        client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host or None)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_ROUNDS):
        with contextlib.suppress(ssl.SSLWantReadError):
            try:
                near.do_handshake()
            except ssl.SSLWantReadError:
                raise
            except ssl.SSLError as error:
                return None, error
        with contextlib.suppress(ssl.SSLWantReadError):
            try:
                far.do_handshake()
            except ssl.SSLWantReadError:
                raise
            except ssl.SSLError as error:
                return error, None
    return None, None


def _named(errors: tuple[ssl.SSLError | None, ssl.SSLError | None], host: str) -> dict[str, str]:
    """Return the fault that ended a handshake: kind → sentence; empty without an error."""
    by_server, by_client = errors
    error = by_client or by_server
    if error is None:
        return {}
    code = getattr(error, "verify_code", 0)
    if code == _EXPIRED:
        return {EXPIRED: "the certificate, or a CA that signed it, has expired"}
    if code == _EARLY:
        return {EARLY: "the certificate, or a CA that signed it, is not valid yet"}
    if code == _PURPOSE and by_client:
        return {SERVER: "the extended key usage of the certificate lacks serverAuth"}
    if code == _PURPOSE:
        return {CLIENT: "the extended key usage of the certificate lacks clientAuth"}
    if code in (_OTHER_HOST, _OTHER_ADDRESS):
        return {HOST: f"the certificate does not name {host}"}
    return {AUTHORITY: f"no CA in security.ca_file has signed the certificate ({_reason(error)})"}


def _reason(error: ssl.SSLError) -> str:
    return str(getattr(error, "verify_message", "") or error.reason or error).lower()
