"""This process's certificate: checked at the start, reloaded after changes, shown in metrics."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import NoReturn

from bookie.addresses import is_wildcard
from bookie.config import Settings
from bookie.env import SystemClock, beside
from bookie.errors import ConfigurationError
from bookie.security import PemFiles, Pems
from bookie.security.certificates import first_expiry_seconds
from bookie.security.exposure import require_protected
from bookie.security.suitability import EXPIRED, LASTING, faults_of
from bookie.telemetry import Metrics, event_log

LOOK_INTERVAL_SECONDS = 2.0
"""The time between two checks for changed certificate files."""

START_PATIENCE_SECONDS = 5.0
"""The longest time that a start waits until another program has renewed all certificate files."""

EXPIRES_SOON_DAYS = 14
"""The process logs a warning if a certificate expires within this time. The alert
BookieCertificateExpires uses the same number of days."""

_MEANING = "peers refuse it: issue another, or set listen.advertised_host to a name in it"

_log = event_log(__name__)


def prepare_security(
    settings: Settings, metrics: Metrics, listeners: tuple[str, ...] = ("listen", "http")
) -> PemFiles | None:
    """Load this process's certificate; return None if the settings name no certificate.

    Raises:
        ConfigurationError: a file cannot be used. Also raised if other machines could reach a
            listener without TLS, although the settings do not allow plaintext.
        CannotStartError: the certificate and the key do not belong together, for example because a
            renewal has replaced only one file.
    """
    security = settings.security
    if security.uses_tls and not security.serves_tls and "listen" in listeners:
        raise ConfigurationError(
            "security.ca_file is set, and security.certificate_file is not: a bookie that trusts a "
            "CA needs a certificate of its own"
        )
    exposed = require_protected(settings, listeners)
    metrics.plaintext_allowed.set(int(security.allow_plaintext))
    if security.allow_plaintext:
        _log.warning(
            "plaintext_allowed",
            setting="security.allow_plaintext",
            listeners=[f"{name} = {host}" for name, host in exposed.items()],
            meaning="whoever reaches them may read, write and delete",
        )
    if not security.serves_tls:
        return None
    host = registered_host(settings) if "listen" in listeners else ""
    files = PemFiles(
        security,
        check=_expiries,
        judge=partial(faults_of, host=host),
        patience_seconds=START_PATIENCE_SECONDS,
    )
    _show_expiry(files, metrics)
    _tell_faults(files, "listen" in listeners)
    return files


def registered_host(settings: Settings) -> str:
    """Return the host at which clients reach the bookie; the certificate must name this host.

    If the host is an IP address, the result is the address's shortest form, because gRPC compares
    the text of an address with the certificate.
    """
    host = settings.listen.advertised_host or settings.listen.host
    if is_wildcard(host):
        return socket.gethostname()
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def watching_certificates(
    files: PemFiles | None, metrics: Metrics
) -> AbstractAsyncContextManager[None]:
    """Reload changed certificate files until the block ends.

    New connections use the newest files; open connections keep their certificate.
    """
    return beside([] if files is None else [_watch(files, metrics)])


async def _watch(files: PemFiles, metrics: Metrics) -> NoReturn:
    while True:
        await asyncio.sleep(LOOK_INTERVAL_SECONDS)
        if files.refresh():
            _show_expiry(files, metrics)


def _expiries(pems: Pems) -> dict[str, float]:
    """Return the earliest expiry of the certificates in each file, in seconds since 1970.

    Raises:
        ValueError: OpenSSL accepts a certificate that this function cannot parse; the message names
            the file.
    """
    found = {}
    for name, pem in (("certificate", pems.certificate), ("ca", pems.ca)):
        try:
            found[name] = first_expiry_seconds(pem)
        except ValueError as error:
            raise ValueError(f"security.{name}_file: {error}") from error
    return found


def _tell_faults(files: PemFiles, is_bookie: bool) -> None:
    """Log the reasons for which peers would refuse the certificate.

    Raises:
        ConfigurationError: every peer would refuse the bookie's certificate until somebody replaces
            the certificate or the CA file.
    """
    for kind, sentence in files.faults.items():
        if is_bookie and kind in LASTING:
            raise ConfigurationError(
                "clients and other bookies would refuse security.certificate_file "
                f"{files.settings.certificate_file}: {sentence}"
            )
        if kind != EXPIRED:  # `_show_expiry` logs an expired certificate
            _log.warning("certificate_unsuitable", kind=kind, reason=sentence, meaning=_MEANING)


def _show_expiry(files: PemFiles, metrics: Metrics) -> None:
    for name, expiry in _expiries(files.pems).items():
        metrics.certificate_expiry_timestamp_seconds.labels(name).set(expiry)
        days = (expiry - SystemClock().now_ms() / 1000) / 86400
        if days < EXPIRES_SOON_DAYS:
            _log.warning("certificate_expires_soon", file=name, days=round(days, 1))
