"""The checks of `bookie doctor` that concern the security settings of a bookie."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from bookie.config import SecuritySettings, Settings
from bookie.daemon.machine_check import Fact, Severity
from bookie.daemon.own_security import registered_host
from bookie.errors import BookieError
from bookie.metadata.etcd.server_version import CHECKS_RIGHTS_FROM, ask_version, checks_rights
from bookie.metadata.security import MetadataSecurity, security_of
from bookie.metadata.uri import Host, parse_servers, split_uri
from bookie.security import PemFiles
from bookie.security.certificates import read_certificate_file
from bookie.security.exposure import exposed_listeners, is_loopback, open_listeners
from bookie.security.suitability import HOST, faults_of
from bookie.security.tokens import HS256, TokenKeys

DAY_SECONDS = 86400
EXPIRY_DAYS_MIN = 30
"""If a certificate expires in fewer days, `bookie doctor` warns that it should be renewed."""

FIRST_ETCD = tuple(
    f"{major}.{minor}.{patch}" for (major, minor), patch in CHECKS_RIGHTS_FROM.items()
)
"""For each etcd release line, the first version that checks all rights; the advice names it."""


def check_security(settings: Settings, now_seconds: float) -> list[Fact]:
    """Check a bookie's listeners, certificates and token keys, and the version of its etcd.

    Args:
        settings: the settings of the bookie.
        now_seconds: the time now, in seconds since 1970.
    """
    checks = [check_plaintext(settings)]
    if settings.security.uses_tls:
        checks += check_certificates(settings, now_seconds)
    if settings.security.token_keys_file:
        checks.append(check_token_keys(settings.security.token_keys_file))
    return checks + check_etcd(settings)


def check_plaintext(settings: Settings) -> Fact:
    """Warn if plaintext is allowed; otherwise fail if other machines can connect without TLS."""
    exposed = exposed_listeners(settings, ("listen", "http"))
    listeners = ", ".join(f"{name} = {host}" for name, host in exposed.items())
    if settings.security.allow_plaintext:
        found = "security.allow_plaintext is set"
        found += f": {listeners} without TLS" if exposed else ", and nothing needs it"
        advice = "turn it off as soon as all bookies and clients use TLS"
        return Fact("plaintext", Severity.WARN, found, advice)
    if exposed:
        advice = "set security.certificate_file, key_file and ca_file, or security.allow_plaintext"
        return Fact("plaintext", Severity.FAIL, f"{listeners} without TLS", advice)
    if not settings.security.serves_tls:
        return Fact("plaintext", Severity.OK, "only this machine reaches the bookie")
    return Fact("plaintext", Severity.OK, "refused")


def check_certificates(settings: Settings, now_seconds: float) -> list[Fact]:
    """Check that the certificate files are usable, the key is private, and no expiry is near."""
    security = settings.security
    try:
        PemFiles(security)
        certificates = [
            check_expiry(Path(path), now_seconds)
            for path in (security.certificate_file, security.ca_file)
            if path
        ]
        if security.serves_tls:
            certificates += check_peers(security, registered_host(settings))
    except BookieError as error:
        return [Fact("certificate", Severity.FAIL, str(error), "repair the files of [security]")]
    if security.key_file and os.stat(security.key_file).st_mode & (stat.S_IRGRP | stat.S_IROTH):
        advice = f"chmod 600 {security.key_file}"
        certificates.append(Fact("key", Severity.WARN, "others may read the key", advice))
    if security.serves_tls:
        certificates += check_clients(settings)
    return certificates


def check_token_keys(path: str) -> Fact:
    """Check that the token keys can be used, and that other users cannot read a secret key."""
    try:
        keys = TokenKeys(path).by_id
    except BookieError as error:
        return Fact("token keys", Severity.FAIL, str(error), "repair security.token_keys_file")
    is_secret = any(one.algorithm == HS256 for one in keys.values())
    if is_secret and os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
        found = "others may read a secret (HS256), and sign tokens with it"
        return Fact("token keys", Severity.WARN, found, f"chmod 600 {path}")
    named = ", ".join(f"{one.key_id} ({one.algorithm})" for one in keys.values())
    return Fact("token keys", Severity.OK, named)


def check_clients(settings: Settings) -> list[Fact]:
    """Check that a bookie requires certificates and, if it listens beyond loopback, roles."""
    security = settings.security
    if security.require_client_certificate:
        hosts = {"listen": settings.listen.host, "http": settings.http.host}
        reached = {f"{name}.host = {host}" for name, host in hosts.items() if not is_loopback(host)}
        if security.require_roles or not reached:
            return []
        found = f"security.require_roles is off, with {', '.join(sorted(reached))}"
        found += ": every client with a certificate may read, write and fence"
        return [Fact("clients", Severity.WARN, found, "give roles, and set it")]
    found = "security.require_client_certificate is off"
    if security.require_roles:
        found += ": a client without a certificate may do what the roles of anonymous permit"
        return [Fact("clients", Severity.WARN, found, "give clients certificates")]
    found += ", and so is require_roles: every client may read and write"
    is_refused = open_listeners(settings, ("listen", "http"))
    verdict = Severity.WARN
    if is_refused and not security.allow_plaintext:
        verdict = Severity.FAIL
    return [Fact("clients", verdict, found, "set security.require_roles")]


def check_etcd(settings: Settings) -> list[Fact]:
    """Check that the version of each etcd server enforces roles in transactions.

    If the metadata store is not etcd, or if ``metadata.user`` is empty, the result is empty.
    """
    metadata = settings.metadata
    parts = split_uri(metadata.uri)
    if parts.scheme != "etcd" or not metadata.user:
        return []
    try:
        security = security_of(metadata)
        hosts = parse_servers(metadata.uri, parts).hosts
    except BookieError as error:
        return [Fact("etcd", Severity.FAIL, str(error), "correct the section [metadata]")]
    return [_check_etcd_server(host, security) for host in hosts]


def _check_etcd_server(host: Host, security: MetadataSecurity) -> Fact:
    advice = f"use etcd {', '.join(FIRST_ETCD)} or newer"
    try:
        version = ask_version(host, security)
    except BookieError as error:
        return Fact("etcd", Severity.WARN, str(error), advice)
    if checks_rights(version):
        return Fact("etcd", Severity.OK, f"{host} is etcd {version}")
    found = f"{host} is etcd {version}: a user can get round its roles by transactions"
    return Fact("etcd", Severity.WARN, found, advice)


def check_peers(security: SecuritySettings, host: str) -> list[Fact]:
    """Check that peers accept the certificate, and that it names the bookie's registered host."""
    path = Path(security.certificate_file)
    faults = faults_of(security, host)
    facts = [
        Fact("peers", Severity.FAIL, f"peers refuse {path}: {sentence}", "issue another")
        for kind, sentence in faults.items()
        if kind != HOST
    ]
    if HOST in faults:
        names = ", ".join(read_certificate_file(path)[0].names) or "no host"
        found = f"{path} names {names}, and the bookie registers {host}"
        advice = "issue a certificate for this host, or set listen.advertised_host to a name in it"
        facts.append(Fact("host", Severity.FAIL, found, advice))
    return facts or [Fact("host", Severity.OK, f"the certificate names {host}")]


def check_expiry(path: Path, now_seconds: float) -> Fact:
    """Check the earliest expiry of the certificates in a file."""
    first = min(read_certificate_file(path), key=lambda one: one.expires_seconds)
    days = (first.expires_seconds - now_seconds) / DAY_SECONDS
    numbers = {"expires_seconds": first.expires_seconds}
    label = "CA" if first.is_authority else "certificate"
    if days < 0:
        found = f"{path} has expired"
        return Fact(label, Severity.FAIL, found, "renew it", numbers)
    found = f"{first.subject}, valid for {days:.0f} days"
    verdict = Severity.OK if days >= EXPIRY_DAYS_MIN else Severity.WARN
    advice = "" if verdict is Severity.OK else f"renew {path}; the bookie takes it at once"
    return Fact(label, verdict, found, advice, numbers)
