"""The functions `connect` for clients of bookies, and `coordinate` for locks and other recipes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypedDict, Unpack

from bookie.api.bookkeeper import BookKeeper, DigestName
from bookie.config import RpcSettings, Sources, Transport, load_settings
from bookie.coordination.participant import Participant
from bookie.errors import ConfigurationError
from bookie.metadata.connect import SESSION_TIMEOUT_SECONDS, open_store
from bookie.metadata.security import security_of


class ClientOptions(TypedDict, total=False):
    """Keyword arguments of `connect`: settings of the sections ``[client]`` and ``[security]``."""

    add_timeout_seconds: float
    replace_after_seconds: float
    changes_per_minute_max: int
    read_timeout_seconds: float
    connect_timeout_seconds: float
    speculative_read_seconds: float
    in_flight_entries_max: int
    in_flight_bytes_max: int | str
    batch_entries_max: int
    batch_bytes_max: int | str
    tail_refresh_seconds: float
    digest_least: DigestName
    rate_patience_seconds: float
    transport: Transport
    # The settings of the section [security]:
    ca_file: str | Path
    certificate_file: str | Path
    key_file: str | Path
    token_file: str | Path
    allow_plaintext: bool


_FILES = ("ca_file", "certificate_file", "key_file", "token_file")


def connect(
    metadata_uri: str,
    *,
    session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    rpc: RpcSettings | None = None,
    **settings: Unpack[ClientOptions],
) -> BookKeeper:
    """Return a client of the cluster whose metadata is at `metadata_uri`; enter it to connect.

    Args:
        metadata_uri: ``local:///directory``, ``zk://host:2181/scope``, ``etcd://host:2379/scope``
            or ``memory://name``. TLS and credentials for this store come from the settings of the
            section [metadata].
        session_timeout_seconds: the timeout of the session with the metadata store.
        rpc: message sizes and keepalive; None takes the settings of the section ``[rpc]``.
        settings: settings of the sections ``[client]`` and ``[security]``, such as
            ``add_timeout_seconds=10``. With ``ca_file="ca.pem"`` the client connects by TLS. With
            ``token_file="token"`` the client sends the token in this file with each request. All
            other settings come from environment variables such as ``BOOKIE_SECURITY__CA_FILE``,
            from the file that ``BOOKIE_CONFIG`` names, or from the defaults.

    Raises:
        ConfigurationError: a setting or the URI is wrong. Entering the client may also raise
            ConfigurationError.
    """
    if not isinstance(rpc, RpcSettings | None):
        raise ConfigurationError(f"rpc must be an RpcSettings, not {type(rpc).__name__}")
    sources = Sources.read(None, dict(_named(key, value) for key, value in settings.items()))
    loaded = sources.settings()
    return BookKeeper(
        metadata_uri,
        sources,
        rpc or loaded.rpc,
        session_timeout_seconds=session_timeout_seconds,
        security=security_of(loaded.metadata),
    )


def _named(key: str, value: object) -> tuple[str, str]:
    """Return the name ``section.key`` of the setting called `key`, and its value as text."""
    if key in _FILES and not isinstance(value, str | Path):
        raise ConfigurationError(f"{key} must be a path, not {type(value).__name__}")
    section = "security" if key in _FILES or key == "allow_plaintext" else "client"
    return f"{section}.{key}", str(value)


@asynccontextmanager
async def coordinate(
    metadata_uri: str, *, session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS
) -> AsyncIterator[Participant]:
    """Open a session and yield the participant that locks and all other recipes need.

    The end of the block, or of the session, releases the participant's locks, leaderships,
    memberships and unfinished queue items. A process that was stopped for a while learns late that
    it has lost a lock. So guard the protected data by `Lock.token`, or by `Lock.check` in a
    transaction of `Participant.store`.

    Args:
        metadata_uri: a URI as for `connect`, but with a scope that no cluster of bookies uses. In a
            cluster's scope, the keys of these recipes would prevent the removal of the cluster.
        session_timeout_seconds: the time after which other processes get the locks of a process
            that died or cannot be reached.

    Raises:
        ConfigurationError: the URI or a setting of [metadata] is wrong.
        MetadataUnavailableError: the store does not answer.
    """
    security = security_of(load_settings(None).metadata)
    async with (
        open_store(
            metadata_uri, session_timeout_seconds=session_timeout_seconds, security=security
        ) as store,
        Participant(store) as participant,
    ):
        yield participant
