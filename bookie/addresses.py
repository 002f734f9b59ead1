"""Addresses as text: ``HOST:PORT``, with brackets around an IPv6 address.

A host is a name or an IP address without brackets. All code of bookie uses this module to join or
split addresses.
"""

from __future__ import annotations

import ipaddress
import re

PORT_MAX = 65535

_NAME = re.compile(r"[^\s:/\[\]@,]+")
_ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^\]]*)\]|(?P<name>[^:]*))(?::(?P<port>[0-9]{1,5}))?")


def join_address(host: str, port: int) -> str:
    """Return ``HOST:PORT`` in the form that URLs, gRPC and kazoo accept."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Return the host and the port (1 … 65535) in ``HOST:PORT``.

    If the text is only ``HOST``, the port is `default_port`.

    Raises:
        ValueError: the text is not an address, or has no port and there is no `default_port`.
    """
    found = _ADDRESS.fullmatch(text)
    if found is not None:
        bracketed, name, digits = found.group("bracketed", "name", "port")
        host = name or bracketed or ""
        port = default_port if digits is None else int(digits)
        has_brackets = bracketed is not None
        fits = is_host(host) and has_brackets == (":" in host)
        if fits and port is not None and 1 <= port <= PORT_MAX:
            return host, port
    raise ValueError(f"{text!r} must be HOST:PORT, with brackets around an IPv6 address")


def is_host(text: str) -> bool:
    """True if `text` is a host name or an IP address, without brackets and without a port."""
    return _is_ipv6(text) if ":" in text else _NAME.fullmatch(text) is not None


def is_wildcard(host: str) -> bool:
    """True if `host` is a wildcard address, with which a server listens on all addresses."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    # Python accepts any text as a zone, so this function checks the characters of the zone.
    _, percent, zone = text.partition("%")
    return not percent or _NAME.fullmatch(zone) is not None
