"""Derives the reason for a TLS failure, as a sentence, from a carrier's text about the connection.

Both gRPC and Python's `ssl` quote OpenSSL, but each adds words of its own.
"""

from __future__ import annotations

from typing import Final

_ENDED_SENTENCE: Final = (
    "it ended the TLS handshake; probably it refuses this client's certificate, which is missing,"
    " expired or of another CA (security.certificate_file)"
)

_PROBLEMS: Final = (
    ("certificate has expired", "its certificate has expired, or a CA that signed it; renew it"),
    ("certificate is not yet valid", "its certificate is not valid yet; look at the clocks"),
    (
        "Hostname Verification Check failed",
        "its certificate is not for this host; issue one for the address of its registration",
    ),
    (
        "certificate is not valid for",
        "its certificate is not for this host; issue one for the address of its registration",
    ),
    ("unsupported certificate purpose", "its certificate is a client's, not a bookie's"),
    ("unsuitable certificate purpose", "its certificate is a client's, not a bookie's"),
    ("a client's certificate is required", _ENDED_SENTENCE),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not signed by a CA in security.ca_file",
    ),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS at this address"),
    ("Secure read failed", _ENDED_SENTENCE),
    ("Tls handshake failed", "the TLS handshake failed"),
)
"""Parts of a carrier's error text, each with its sentence; the first part that occurs counts.

Source: texts of gRPC 1.85 and of Python 3.11 with OpenSSL 3, seen by tests.
"""


_ENDED: Final = ("Socket closed", "Handshake read failed", "Connection reset by peer")
"""Parts of gRPC's error text if a bookie ends a connection before it is ready.

It depends on gRPC's poller which of these texts appears. With TLS 1.3, a bookie checks the client's
certificate after the client has finished its part of the handshake. So the client sees only that
the connection ends.
"""


class TlsHistory:
    """Remembers if a connection to one bookie has already worked, and explains TLS failures."""

    __slots__ = ("_uses_tls", "was_ready")

    def __init__(self, *, uses_tls: bool) -> None:
        self._uses_tls = uses_tls
        self.was_ready = False
        """True if the bookie has answered before; then TLS is not the reason if the connection
        ends."""

    def problem(self, details: str) -> str:
        """Return the reason for a TLS failure; empty if the failure has another reason."""
        if "failed to connect" not in details:
            return ""
        for part, sentence in _PROBLEMS:
            if part in details:
                return sentence
        if self._uses_tls and not self.was_ready and any(part in details for part in _ENDED):
            return _ENDED_SENTENCE
        return ""
