"""The listeners of a process at which anyone on the network may do everything."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from bookie.config import Settings
from bookie.errors import CannotStartError, ConfigurationError


def is_loopback(host: str) -> bool:
    """True if only processes of this machine reach a server that listens on `host`.

    A name counts by the addresses that it has on this machine. One without an address counts as
    reached: it may get one.
    """
    try:
        return _is_loopback_address(host)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(_is_loopback_address(str(one[4][0])) for one in found)


def _is_loopback_address(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        # ::ffff:127.0.0.1 is reached by IPv4 alone.
        return (address.ipv4_mapped or address).is_loopback
    return address.is_loopback


def exposed_listeners(settings: Settings, listeners: tuple[str, ...]) -> Mapping[str, str]:
    """Return the listeners that speak plaintext beyond loopback: setting → host.

    Args:
        settings: those of the process.
        listeners: the sections of the listeners that the process has, ``listen`` or ``http``.
    """
    hosts = {"listen": settings.listen.host, "http": settings.http.host}
    is_plaintext = {
        "listen": not settings.security.serves_tls or settings.security.allow_plaintext,
        "http": not settings.security.serves_tls,
    }
    return {
        f"{section}.host": hosts[section]
        for section in listeners
        if is_plaintext[section] and not is_loopback(hosts[section])
    }


def open_listeners(settings: Settings, listeners: tuple[str, ...]) -> Mapping[str, str]:
    """Return the TLS listeners beyond loopback that let any client in: setting → host.

    Such a listener requires neither a client certificate nor roles.

    Args:
        settings: those of the process.
        listeners: as for `exposed_listeners`.
    """
    security = settings.security
    if not security.serves_tls or security.require_client_certificate or security.require_roles:
        return {}
    hosts = {"listen": settings.listen.host, "http": settings.http.host}
    return {
        f"{section}.host": hosts[section]
        for section in listeners
        if not is_loopback(hosts[section])
    }


def require_protected(settings: Settings, listeners: tuple[str, ...]) -> Mapping[str, str]:
    """Refuse to let anybody in beyond loopback, unless ``security.allow_plaintext`` is set.

    Anybody gets in without TLS. He also gets in by TLS without client certificates and roles.

    Returns:
        the listeners without TLS that the setting permits, for the log.

    Raises:
        ConfigurationError: the setting is missing.
        CannotStartError: it would be missing for a host name, which has no address now.
    """
    exposed = exposed_listeners(settings, listeners)
    if exposed and not settings.security.allow_plaintext:
        name, host = next(iter(exposed.items()))
        _require_address(name, host)
        raise ConfigurationError(
            f"{name} = {host} is reached from other machines, and anyone there could read, write "
            "and delete: set security.certificate_file, key_file and ca_file "
            "(`bookie security init` makes them), or security.allow_plaintext = true on a "
            "network that you trust"
        )
    unasked = open_listeners(settings, listeners)
    if unasked and not settings.security.allow_plaintext:
        name, host = next(iter(unasked.items()))
        _require_address(name, host)
        raise ConfigurationError(
            f"{name} = {host} is reached from other machines, and the bookie would ask nobody who "
            "he is: set security.require_client_certificate or security.require_roles, or "
            "security.allow_plaintext = true on a network that you trust"
        )
    return exposed


def _require_address(name: str, host: str) -> None:
    """Raise `CannotStartError` if the host name has no address: a later start may find one."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotStartError(
            f"cannot listen on {name} = {host}: the host name cannot be resolved ({error.strerror})"
        ) from error
