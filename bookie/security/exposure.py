"""Finds the listeners of a process that let anyone on the network do everything."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from bookie.config import Settings
from bookie.errors import CannotStartError, ConfigurationError


def is_loopback(host: str) -> bool:
    """True if only processes of this machine can reach a server that listens on `host`.

    A host name is loopback if this machine resolves it to loopback addresses only. For a host name
    without an address the result is False, because the name may get any address later.
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
        # Clients can reach ::ffff:127.0.0.1 only by IPv4, so the IPv4 address decides.
        return (address.ipv4_mapped or address).is_loopback
    return address.is_loopback


def exposed_listeners(settings: Settings, listeners: tuple[str, ...]) -> Mapping[str, str]:
    """Return the listeners outside of loopback that accept plaintext: setting → host.

    Args:
        settings: the settings of the process.
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
    """Return the TLS listeners outside of loopback that accept any client: setting → host.

    A listener accepts any client if it requires neither a client certificate nor roles.

    Args:
        settings: the settings of the process.
        listeners: the sections of the listeners, ``listen`` or ``http``.
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
    """Refuse unprotected listeners outside of loopback, unless ``security.allow_plaintext`` is set.

    A listener is unprotected if it is in `exposed_listeners` or in `open_listeners`.

    Returns:
        the result of `exposed_listeners`, for the log.

    Raises:
        ConfigurationError: a listener is unprotected, and ``security.allow_plaintext`` is not set.
        CannotStartError: the host name of an unprotected listener has no address now; a later start
            may succeed.
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
    """Raise `CannotStartError` if the host name has no address now; a later start may succeed."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotStartError(
            f"cannot listen on {name} = {host}: the host name cannot be resolved ({error.strerror})"
        ) from error
