"""A bookie's gRPC server: from a free port to a drained one.

Health (``grpc.health.v1``) is SERVING from the moment the port listens until the shutdown begins,
under the empty name and the service's own. On the way out, streams end after the answers they owe,
calls that run get the rest of the grace, and only what is left then is cut off.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any, Protocol

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from bookie.config import NodeSettings, RpcSettings
from bookie.errors import ConfigurationError
from bookie.rpc import security
from bookie.rpc.contract import SERVICE, Node
from bookie.rpc.service import BookieService
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)


class ServedNode(Node, Protocol):
    """A node that knows its own limits."""

    @property
    def settings(self) -> NodeSettings:
        """What it lets in at a time."""


@contextlib.asynccontextmanager
async def serve(
    bookie: ServedNode, host: str, port: int, settings: RpcSettings, metrics: Metrics
) -> AsyncIterator[int]:
    """Serve `bookie` on `host` and `port` (0 picks one) while the context lasts; yields the port.

    Leaving the context drains: no new connections, streams end after the answers they owe, and
    after `settings.drain_seconds` whatever still runs is cancelled.

    Raises:
        ConfigurationError: The address cannot be listened on; one sentence says why.
    """
    server = aio.server(options=security.server_options(settings))
    service = BookieService(bookie, bookie.settings, metrics)
    server.add_generic_rpc_handlers((service.handlers(),))
    health_service = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    if settings.reflection:
        _serve_reflection(server)
    bound_port = _bind(server, host, port)
    await server.start()
    await health_service.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    _log.info("rpc_listening", host=host, port=bound_port)
    try:
        yield bound_port
    finally:
        await health_service.enter_graceful_shutdown()
        service.end_streams()
        await server.stop(settings.drain_seconds)
        _log.info("rpc_stopped", host=host, port=bound_port)


def _bind(server: Any, host: str, port: int) -> int:
    """Listen, or say why not: gRPC itself only says that it failed."""
    name = f"[{host}]" if ":" in host else host
    try:
        _probe(host, port)
        return security.bind(server, f"{name}:{port}")
    except socket.gaierror as error:
        reason = f"the host name cannot be resolved ({error.strerror})"
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    except RuntimeError:
        reason = "address already in use"
    raise ConfigurationError(f"cannot listen on {name}:{port}: {reason}")


def _probe(host: str, port: int) -> None:
    """Bind the address for a moment, the way gRPC will, to hear the system's own reason."""
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()


def _serve_reflection(server: Any) -> None:
    """Serve gRPC reflection; loaded only then, because nothing else needs it."""
    from grpc_reflection.v1alpha import reflection

    from bookie._pb import bookie_pb2  # noqa: F401  (for its registration)

    reflection.enable_server_reflection(
        (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
