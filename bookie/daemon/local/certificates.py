"""Makes and renews the certificates of a local cluster that speaks TLS, in ``DIR/security/``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bookie.env import SystemClock
from bookie.security import authority
from bookie.security.certificates import first_expiry_seconds

CLIENT = "client"
HOSTS = ("127.0.0.1", "localhost")

RENEW_SECONDS = 30 * 86400
"""A certificate that expires within this time is renewed when the cluster starts."""


def security_directory(directory: Path) -> Path:
    """Return the path of the CA's directory, which exists only if the cluster speaks TLS."""
    return directory / "security"


def prepare_certificates(directory: Path, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Create missing certificates for the bookies `names` and a client; renew old certificates.

    If the CA is missing, the function creates the CA first.

    Returns:
        the section ``[security]`` of each bookie's settings, by the bookie's name.
    """
    home = security_directory(directory)
    if not authority.certificate_path(home, authority.CA_NAME).exists():
        authority.create_authority(home)
    now_seconds = SystemClock().now_ms() / 1000
    for name in (*names, CLIENT):
        path = authority.certificate_path(home, name)
        if not path.exists():
            authority.issue(home, name, () if name == CLIENT else HOSTS)
        elif first_expiry_seconds(path.read_bytes()) < now_seconds + RENEW_SECONDS:
            authority.renew(home, name)
    return {name: authority.settings_for(home, name) for name in names}
