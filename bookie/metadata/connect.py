"""Open the store that a metadata URI names; only this module knows all backends."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from bookie.errors import ConfigurationError
from bookie.metadata.memory.backend import MemoryStore
from bookie.metadata.store import MetadataStore
from bookie.metadata.uri import parse_servers, split_uri

if TYPE_CHECKING:
    from bookie.metadata.security import MetadataSecurity

SESSION_TIMEOUT_SECONDS = 30.0

_SESSION_TIMEOUT_SECONDS_MIN = 0.1
_SESSION_TIMEOUT_SECONDS_MAX = 3600.0
_SERVERS = {
    "zk": ("bookie.metadata.zookeeper.backend", "ZooKeeperStore"),
    "etcd": ("bookie.metadata.etcd.backend", "EtcdStore"),
}


def open_store(
    uri: str,
    *,
    session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    security: MetadataSecurity | None = None,
    create: bool = True,
) -> AbstractAsyncContextManager[MetadataStore]:
    """Return the store that `uri` names, as a context manager; entering the context opens it.

    `session_timeout_seconds` must be in 0.1 … 3600. This call opens nothing before the context is
    entered. Only ``zk://`` and ``etcd://`` use `security`. If `create` is false, a ``local://``
    directory must already contain a store; `create` has no effect on the other kinds of stores.

    Raises:
        ConfigurationError: the URI, the timeout or another argument is wrong.
        NoSuchKeyError: (on entering) the directory contains no store, and `create` is false.
        FormatError: (on entering) the directory contains other files, or a store of a newer format.
        MetadataUnavailableError: (on entering) the store does not answer.
        UnauthorizedError: (on entering) the servers refuse the user or the password.
    """
    parts = split_uri(uri)
    if isinstance(session_timeout_seconds, bool) or not isinstance(
        session_timeout_seconds, int | float
    ):
        raise ConfigurationError(
            f"the session timeout must be a number of seconds, not {session_timeout_seconds!r}"
        )
    if not _SESSION_TIMEOUT_SECONDS_MIN <= session_timeout_seconds <= _SESSION_TIMEOUT_SECONDS_MAX:
        raise ConfigurationError(
            f"the session timeout of {session_timeout_seconds} seconds is outside "
            f"{_SESSION_TIMEOUT_SECONDS_MIN} … {_SESSION_TIMEOUT_SECONDS_MAX}"
        )
    if not isinstance(create, bool):
        raise ConfigurationError(f"create must be True or False, not {create!r}")
    if security is not None:
        _require_security(security)
    if parts.scheme == "memory":
        return MemoryStore(parts.authority, session_timeout_seconds=session_timeout_seconds)
    # Import a backend only when it is used, because its library takes time to load.
    if parts.scheme == "local":
        from bookie.metadata.local.backend import LocalStore

        return LocalStore(
            Path(unquote(parts.path)),
            session_timeout_seconds=session_timeout_seconds,
            create=create,
        )
    servers = parse_servers(uri, parts)
    module, name = _SERVERS[parts.scheme]
    from bookie.metadata.security import MetadataSecurity

    if parts.scheme == "etcd":
        from bookie.config import grpc_polling

        with grpc_polling():
            import_module(module)
    backend = getattr(import_module(module), name)
    opened: AbstractAsyncContextManager[MetadataStore] = backend(
        servers.hosts,
        servers.scope,
        session_timeout_seconds=session_timeout_seconds,
        security=security or MetadataSecurity(),
    )
    return opened


def _require_security(security: object) -> None:
    from bookie.metadata.security import MetadataSecurity

    if not isinstance(security, MetadataSecurity):
        raise ConfigurationError(
            f"security must be a MetadataSecurity, not {type(security).__name__}"
        )
