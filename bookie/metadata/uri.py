"""Metadata URIs; a metadata URI names the backend, the servers and the scope.

=============================================== ==================================================
``memory://NAME``                               a store in the memory of this process
``local:///absolute/directory``                 a store for the processes of one machine
``zk://HOST:2181,HOST:2181/scope``              ZooKeeper; keys lie below ``/scope`` (a chroot)
``etcd://HOST:2379,HOST:2379/scope``            etcd; keys begin with ``/scope``
=============================================== ==================================================

An IPv6 address is written in brackets, as in ``zk://[::1]:2181,[::1]:2182/scope``. A host without a
port has the backend's usual port. The scope may have several segments. A URI contains neither
credentials nor names of TLS files; `MetadataSecurity` contains both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from bookie.addresses import join_address, split_address
from bookie.errors import ConfigurationError, InvalidKeyError
from bookie.metadata.model import check_key

_PORTS = {"zk": 2181, "etcd": 2379}
_URI = re.compile(r"([^:/?#]+):(?://([^/?#]*))?([^?#]*)([?#].*)?", re.DOTALL)


class MetadataUri(NamedTuple):
    """The parts of a metadata URI.

    Python's `urlsplit` is not used, because it takes only one server, and refuses most lists with
    an IPv6 address.
    """

    scheme: str
    authority: str
    """The servers, or the name of a store in memory."""
    path: str
    """The directory or the scope, still percent-encoded."""


class Host(NamedTuple):
    """One server: a host name or IP address, and a port. `str` puts IPv6 addresses in brackets."""

    name: str
    port: int

    def __str__(self) -> str:
        return join_address(self.name, self.port)


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers and the scope of a ``zk://`` or ``etcd://`` URI."""

    hosts: tuple[Host, ...]
    scope: str
    """The prefix of all keys of the store, with a slash at the start and no slash at the end."""


def parse_servers(uri: str, parts: MetadataUri) -> Servers:
    """Return the servers and the scope of a ``zk://`` or ``etcd://`` URI.

    Raises:
        ConfigurationError: the URI is wrong; the message is one sentence with the reason.
    """
    hosts = tuple(_host(uri, text, _PORTS[parts.scheme]) for text in parts.authority.split(","))
    if len(set(hosts)) != len(hosts):
        raise ConfigurationError(f"the metadata URI {shown_uri(uri)!r} names a server twice")
    scope = unquote(parts.path)
    if scope in ("", "/"):
        raise ConfigurationError(
            f"the metadata URI {shown_uri(uri)!r} must name a scope, as in "
            f"{parts.scheme}://HOST/bookie"
        )
    try:
        return Servers(hosts, check_key(scope))
    except InvalidKeyError as error:
        raise ConfigurationError(
            f"the metadata URI {shown_uri(uri)!r} has no valid scope: {error}"
        ) from error


def _host(uri: str, text: str, default_port: int) -> Host:
    try:
        return Host(*split_address(text, default_port))
    except ValueError:
        raise ConfigurationError(
            f"the metadata URI {shown_uri(uri)!r} must name servers as HOST:PORT,HOST:PORT, "
            f"not {shown_uri(text)!r}"
        ) from None


def require_shared(uri: str) -> None:
    """Check that other processes can also use the store of a URI.

    Raises:
        ConfigurationError: the store is in memory, or `split_uri` refuses the URI.
    """
    if split_uri(uri).scheme == "memory":
        raise ConfigurationError(
            f"{shown_uri(uri)} is seen by one process only; bookies need local:///, zk:// or etcd://"
        )


def shown_uri(uri: str) -> str:
    """Return a URI for messages and logs, without the parts that could contain a password.

    A user may write credentials into a URI by mistake. So the text before the last ``@``, and the
    text after a question mark or ``#``, is left out.
    """
    _, at, rest = uri.rpartition("@")
    kept = re.split("[?#]", rest, maxsplit=1)
    return ("…@" if at else "") + kept[0] + ("…" if len(kept) > 1 else "")


def split_uri(uri: str) -> MetadataUri:
    """Split a metadata URI into its parts, and check the parts without opening the store.

    Raises:
        ConfigurationError: the URI is wrong; the message is one sentence with the reason.
    """
    if not isinstance(uri, str):
        raise ConfigurationError(f"the metadata URI must be a string, not {type(uri).__name__}")
    found = _URI.fullmatch(uri.strip())
    scheme, authority, path, rest = found.groups(default="") if found else ("", "", "", "")
    parts = MetadataUri(scheme.lower(), authority, path)
    if parts.scheme not in ("memory", "local", "zk", "etcd"):
        raise ConfigurationError(
            f"the metadata URI {shown_uri(uri)!r} must begin with local:///, memory://, zk:// or "
            "etcd://"
        )
    if "@" in parts.authority:
        # The message does not show the URI, because the URI may contain a password.
        raise ConfigurationError("the metadata URI must not contain credentials")
    if rest:
        raise ConfigurationError(
            f"the metadata URI {shown_uri(uri)!r} must not have a query or fragment"
        )
    if parts.scheme == "memory" and (not parts.authority or parts.path not in ("", "/")):
        raise ConfigurationError(
            f"the metadata URI {shown_uri(uri)!r} must look like memory://NAME"
        )
    if parts.scheme == "local" and (parts.authority or not parts.path.startswith("/")):
        raise ConfigurationError(
            f"the metadata URI {shown_uri(uri)!r} must look like local:///absolute/directory"
        )
    return parts
