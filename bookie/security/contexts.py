"""SSL contexts for HTTP servers and HTTP clients, with TLS 1.3 or newer."""

from __future__ import annotations

import ssl

from bookie.config import SecuritySettings


def server_context(settings: SecuritySettings) -> ssl.SSLContext:
    """Make the context of a bookie's HTTP server.

    A client need not show a certificate; a certificate that a client shows must be signed by the
    CA. Probes have no certificate, so a request's handler decides if the request needs one. The
    server issues no session tickets, so a client shows its certificate on each connection.

    Raises:
        OSError, ssl.SSLError: a file cannot be read or used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    _show(context, settings)
    context.load_verify_locations(settings.ca_file)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(settings: SecuritySettings) -> ssl.SSLContext:
    """Make the context of a client, which verifies the server's certificate and its host name.

    Raises:
        OSError, ssl.SSLError: a file cannot be read or used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(settings.ca_file)
    if settings.certificate_file:
        _show(context, settings)
    return context


def _show(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    # Without this function, OpenSSL would ask at the terminal for the password of an encrypted key.
    context.load_cert_chain(settings.certificate_file, settings.key_file, password=lambda: b"")
