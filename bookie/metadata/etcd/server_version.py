"""Reads the version of an etcd server, and shows if this version checks all rights of a user.

Older servers do not check all rights within transactions, so a user can bypass its roles.
Source: GHSA-rfx7-8w68-q57q (CVE-2026-44283).
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Final

from bookie.errors import MetadataUnavailableError
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.uri import Host

ANSWER_SECONDS_MAX: Final = 5.0
"""The longest time to wait for a server's answer, in seconds."""

ANSWER_BYTES_MAX: Final = 4096

CHECKS_RIGHTS_FROM: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {(3, 4): 44, (3, 5): 30, (3, 6): 11}
)
"""Minor version → its first patch release that checks all rights. Newer minor versions all do."""

_VERSION: Final = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})([-+.].{0,64})?")


def checks_rights(version: str) -> bool | None:
    """True if a server of this version checks all rights; None if `version` cannot be parsed."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return None
    major, minor, patch = (int(found[place]) for place in (1, 2, 3))
    first = CHECKS_RIGHTS_FROM.get((major, minor))
    if first is None:
        return (major, minor) > max(CHECKS_RIGHTS_FROM)
    return patch >= first


def ask_version(host: Host, security: MetadataSecurity) -> str:
    """Ask a server for its version over HTTP, at the port for clients, and return the version.

    This call blocks. This call sends no password, because a server shows its version to everybody.

    Raises:
        MetadataUnavailableError: the server did not send its version; the message has the reason.
    """
    try:
        with closing(_connection(host, security)) as connection:
            connection.request("GET", "/version")
            told = connection.getresponse().read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise MetadataUnavailableError(f"{host} did not tell its version: {reason}") from error
    try:
        return parse_version(told)
    except ValueError as error:
        raise MetadataUnavailableError(f"{host} told no version") from error


def parse_version(told: bytes) -> str:
    """Return the version in the answer of a server.

    Raises:
        ValueError: the answer contains no version.
    """
    try:
        version = json.loads(told)["etcdserver"]
    except (RecursionError, LookupError, TypeError) as error:
        raise ValueError("no version") from error
    if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
        raise ValueError("no version")
    return version


def _connection(host: Host, security: MetadataSecurity) -> http.client.HTTPConnection:
    if not security.uses_tls:
        return http.client.HTTPConnection(host.name, host.port, timeout=ANSWER_SECONDS_MAX)
    context = ssl.create_default_context(cafile=security.tls_ca_file)
    if security.tls_certificate_file is not None:
        context.load_cert_chain(
            security.tls_certificate_file, security.tls_key_file, password=lambda: b""
        )
    return http.client.HTTPSConnection(
        host.name, host.port, timeout=ANSWER_SECONDS_MAX, context=context
    )
