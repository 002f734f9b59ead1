"""Why TLS with a bookie failed, in a sentence, from what gRPC tells about the failed connection."""

from __future__ import annotations

from typing import Final

_PROBLEMS: Final = (
    ("certificate has expired", "its certificate has expired; renew it"),
    ("certificate is not yet valid", "its certificate is not valid yet; look at the clocks"),
    (
        "Hostname Verification Check failed",
        "its certificate is not for this host; issue one for the address of its registration",
    ),
    ("unsupported certificate purpose", "its certificate is a client's, not a bookie's"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not signed by a CA in security.ca_file",
    ),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS at this address"),
    (
        "Secure read failed",
        "it ended the TLS handshake; most often it refuses this client's certificate, which is"
        " missing, expired or of another CA (security.certificate_file)",
    ),
    ("Tls handshake failed", "the TLS handshake failed"),
)
"""Part of gRPC's text → the sentence; the first that fits counts.

Source: texts of gRPC 1.85, seen by tests.
"""


def tls_problem(details: str) -> str:
    """Return why TLS failed; empty if the connection failed for another reason."""
    if "failed to connect" not in details:
        return ""
    return next((sentence for part, sentence in _PROBLEMS if part in details), "")
