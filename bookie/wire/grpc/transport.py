"""Transport settings of servers and clients: gRPC options, ports and channels.

Servers and clients take their keepalive from the same settings. A server disconnects a client that
pings too often (``GOAWAY too_many_pings``). So the shortest ping interval that a server allows must
stay below the ping interval of every client.

All ports and channels are opened in this module, with or without the credentials that `credentials`
makes.
"""

from __future__ import annotations

from typing import Any, Final

from grpc import aio

from bookie.config import RpcSettings, with_free_poller

ChannelOptions = list[tuple[str, int]]

RECONNECT_BACKOFF_MS: Final = (100, 250)
"""The first and the longest pause of a channel between two attempts to connect, in ms.

The pauses are short, because a restarting bookie is back within a second and its writers wait for
it. With a longest pause of a second, a rolling restart of five bookies cost some ledgers an
ensemble change.
"""


WINDOW_BYTES: Final = 4 * 1024 * 1024
"""The largest number of bytes that a peer may send on one call before they are read.

The window size is fixed. By default gRPC begins with 64 KiB and grows the window by measurements,
which takes long on a fast network. With batches of 256 entries of 1 KB a fixed window saves a fifth
of the time that client and bookie need. This window size allows 400 MB/s over a network with a
round trip of 10 ms. The window also bounds the memory of gRPC for a stream that the bookie does not
read.
"""

UNBOUNDED: Final = 2**31 - 2
"""The largest number of connections that gRPC takes; one more ends the process."""

_FLOW_CONTROL: Final = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW_BYTES))


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def server_options(settings: RpcSettings, connections_max: int = UNBOUNDED) -> ChannelOptions:
    """Return the server's gRPC options, which limit the resources that a peer can use.

    Connections have no age limit: a stream of adds lives as long as its writer. If a listening
    socket already has `connections_max` connections, gRPC accepts a further connection and closes
    it at once. Connections in a handshake count, too. Each listening socket has its own count.
    """
    return [
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.max_receive_message_length", settings.message_bytes_max),
        ("grpc.max_send_message_length", settings.message_bytes_max),
        ("grpc.max_concurrent_streams", settings.concurrent_streams_max),
        ("grpc.max_metadata_size", settings.metadata_bytes_max),
        ("grpc.absolute_max_metadata_size", 2 * settings.metadata_bytes_max),
        ("grpc.keepalive_time_ms", _milliseconds(settings.keepalive_seconds)),
        ("grpc.keepalive_timeout_ms", _milliseconds(settings.keepalive_timeout_seconds)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Without these two options, gRPC (1.85) waits a minute for an answer to a ping or to its
        # own settings, even with a shorter timeout of keepalive. So does a client.
        ("grpc.http2.ping_timeout_ms", _milliseconds(settings.keepalive_timeout_seconds)),
        ("grpc.http2.settings_timeout", _milliseconds(settings.keepalive_timeout_seconds)),
        (
            "grpc.http2.min_ping_interval_without_data_ms",
            _milliseconds(settings.ping_interval_seconds_min),
        ),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.max_connection_idle_ms", _milliseconds(settings.connection_idle_seconds_max)),
        ("grpc.server_handshake_timeout_ms", _milliseconds(settings.handshake_timeout_seconds)),
        ("grpc.so_reuseport", 0),  # a second bookie must not silently share the port
        ("grpc.enable_channelz", 0),
        ("grpc.per_message_compression", 0),
        ("grpc.per_message_decompression", 0),
        *_FLOW_CONTROL,
    ]


def channel_options(settings: RpcSettings, connect_timeout_seconds: float) -> ChannelOptions:
    """Return the gRPC options of a client's channel.

    Each channel gets a connection of its own, even to the same bookie. So bulk data on one channel
    does not delay a fence on another. The retry policy is gRPC's default: it repeats only calls
    that no server can have seen, for example after an idle connection was closed.
    """
    first, longest = RECONNECT_BACKOFF_MS
    return [
        ("grpc.max_receive_message_length", settings.message_bytes_max),
        ("grpc.max_send_message_length", settings.message_bytes_max),
        ("grpc.keepalive_time_ms", _milliseconds(settings.keepalive_seconds)),
        ("grpc.keepalive_timeout_ms", _milliseconds(settings.keepalive_timeout_seconds)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.ping_timeout_ms", _milliseconds(settings.keepalive_timeout_seconds)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", first),
        ("grpc.max_reconnect_backoff_ms", longest),
        # Despite its name, this option is the timeout of one attempt to connect.
        ("grpc.min_reconnect_backoff_ms", _milliseconds(connect_timeout_seconds)),
        ("grpc.enable_http_proxy", 0),
        *_FLOW_CONTROL,
    ]


def open_channel(address: str, options: ChannelOptions, credentials: Any = None) -> Any:
    """Make a channel to ``HOST:PORT``, which connects at its first use.

    With credentials, the channel uses only TLS, and verifies that the bookie's certificate is valid
    for ``HOST``.
    """
    return with_free_poller(lambda: _open_channel(address, options, credentials))


def _open_channel(address: str, options: ChannelOptions, credentials: Any) -> Any:
    if credentials is None:
        return aio.insecure_channel(address, options=options)
    return aio.secure_channel(address, credentials, options=options)


def bind(server: Any, address: str, credentials: Any = None) -> int:
    """Make `server` listen on ``HOST:PORT``, with TLS if `credentials` is set; return the port.

    Raises:
        RuntimeError: gRPC could not bind the address.
    """
    if credentials is None:
        port: int = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    return port
