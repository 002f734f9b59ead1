"""From a URI to a metadata store: the only place that knows which backends there are.

``memory://NAME`` and ``local:///absolute/directory`` open; ``zk://`` and ``etcd://`` are understood
and refused. Credentials never stand in the URI.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from bookie.errors import ConfigurationError
from bookie.metadata.memory import MemoryStore
from bookie.metadata.store import MetadataStore

SESSION_TIMEOUT_SECONDS = 30.0
"""The default session timeout, in seconds."""

_SESSION_TIMEOUT_SECONDS_MIN = 0.1
_SESSION_TIMEOUT_SECONDS_MAX = 3600.0


def open_store(
    uri: str, *, session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS
) -> AbstractAsyncContextManager[MetadataStore]:
    """The store that `uri` names; its session begins when the context is entered.

    `session_timeout_seconds` lies in 0.1 … 3600. Nothing is opened by this call itself.

    Raises:
        ConfigurationError: the URI or the timeout is wrong, or this build lacks the backend.
        FormatError: (on entering) the directory holds something else, or a newer format.
        MetadataUnavailableError: (on entering) the store does not answer.
    """
    parts = split_uri(uri)
    if not _SESSION_TIMEOUT_SECONDS_MIN <= session_timeout_seconds <= _SESSION_TIMEOUT_SECONDS_MAX:
        raise ConfigurationError(
            f"the session timeout of {session_timeout_seconds} seconds is outside "
            f"{_SESSION_TIMEOUT_SECONDS_MIN} … {_SESSION_TIMEOUT_SECONDS_MAX}"
        )
    if parts.scheme == "memory":
        return MemoryStore(parts.netloc, session_timeout_seconds=session_timeout_seconds)
    if parts.scheme == "local":
        # Lazy: only who uses it pays for loading LMDB.
        from bookie.metadata.local import LocalStore

        return LocalStore(
            Path(unquote(parts.path)), session_timeout_seconds=session_timeout_seconds
        )
    raise ConfigurationError(f"this build has no metadata backend for {parts.scheme}:// yet")


def split_uri(uri: str) -> SplitResult:
    """The parts of a metadata URI, checked for what can be checked without opening it.

    Raises:
        ConfigurationError: one sentence that says what is wrong with it.
    """
    if not isinstance(uri, str):
        raise ConfigurationError(f"the metadata URI must be a string, not {uri!r}")
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise ConfigurationError(f"the metadata URI {uri!r} cannot be parsed: {error}") from error
    if parts.scheme not in ("memory", "local", "zk", "etcd"):
        raise ConfigurationError(
            f"the metadata URI {uri!r} must begin with local:///, memory://, zk:// or etcd://"
        )
    if "@" in parts.netloc:
        # Not even in the message: it may hold a password.
        raise ConfigurationError("credentials do not belong into the metadata URI")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"the metadata URI {uri!r} must not have a query or fragment")
    if parts.scheme == "memory" and (not parts.netloc or parts.path not in ("", "/")):
        raise ConfigurationError(f"the metadata URI {uri!r} must look like memory://NAME")
    if parts.scheme == "local" and (parts.netloc or not parts.path.startswith("/")):
        raise ConfigurationError(
            f"the metadata URI {uri!r} must look like local:///absolute/directory"
        )
    return parts
