"""A bookie's gRPC server, from binding its port to draining its calls.

A bookie binds its port before it creates files or records, so a start that fails because of the
port changes nothing. Until the bookie serves, it refuses each call at once as UNAVAILABLE, so
clients do not wait. Without this refusal, gRPC would answer that the methods are unknown, and
clients would take the bookie for an older version.

Health (``grpc.health.v1``) is SERVING from the moment the bookie serves until the shutdown begins,
under the empty name and under the service's name. In a shutdown, each stream ends after it has
answered the requests that it accepted. Other calls may continue until the grace period ends, and
are cancelled then.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from bookie.addresses import join_address
from bookie.config import NodeSettings, RpcSettings, with_free_poller
from bookie.env import SystemClock, gather
from bookie.errors import CannotStartError
from bookie.security.gatekeeper import Gatekeeper
from bookie.security.rates import LogDirectory, Rates
from bookie.telemetry import Metrics, event_log
from bookie.wire.grpc import transport
from bookie.wire.grpc.credentials import ServerSecurity
from bookie.wire.grpc.server.grpc_call import grpc_handlers
from bookie.wire.interfaces import SERVICE, BookieNode
from bookie.wire.server.arrivals import Arrivals
from bookie.wire.server.service import BookieService, Handlers

_log = event_log(__name__)


class ServedNode(BookieNode, Protocol):
    """A node that also provides its limits on requests."""

    @property
    def settings(self) -> NodeSettings:
        """The node's limits on requests in flight."""


class PortBeside(Protocol):
    """A port of another carrier, which serves the same bookie."""

    def serve(self, handlers: Handlers, /) -> None:
        """Serve calls from now on."""

    async def stop(self, grace_seconds: float, /) -> None:
        """Accept no further calls; after `grace_seconds`, end the calls that still run."""


class _Gate(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses the service's calls while the bookie starts, and later passes them to the service."""

    def __init__(self) -> None:
        self.service_handlers: grpc.GenericRpcHandler | None = None
        # The refusing handler can serve calls of every kind: messages are bytes, and it reads no
        # request.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call; None for methods of other services."""
        if self.service_handlers is not None:
            return self.service_handlers.service(handler_call_details)
        ours = handler_call_details.method.startswith(f"/{SERVICE}/")
        return self._refusal if ours else None


async def _refuse(_requests: object, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the bookie is starting")


class HeldPort:
    """A bound port, on which calls are refused until `serve` is called; `hold_port` makes it."""

    def __init__(
        self, server: Any, host: str, port: int, settings: RpcSettings, plaintext_port: int = 0
    ) -> None:
        self.port = port
        self.plaintext_port = plaintext_port
        """The additional port without TLS; 0 if there is none."""
        self._server = server
        self._host = host
        self._settings = settings
        self._gate = _Gate()
        self._health = health.aio.HealthServicer()

    async def refuse(self) -> None:
        self._server.add_generic_rpc_handlers((self._gate,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self._settings.reflection:
            _serve_reflection(self._server)
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()

    @contextlib.asynccontextmanager
    async def serve(
        self,
        bookie: ServedNode,
        metrics: Metrics,
        gatekeeper: Gatekeeper | None = None,
        arrivals: Arrivals | None = None,
        beside: Sequence[PortBeside] = (),
    ) -> AsyncIterator[None]:
        """Serve `bookie` while the context lasts; the end of the context releases the port.

        Without a `gatekeeper`, every caller may do everything. `arrivals` counts the bytes that
        reach the handlers. The ports `beside` this one serve the same bookie, with the same
        limits, by other carriers.

        At the end of the context, the server accepts no new connections, and each stream ends after
        it has answered the requests that it accepted. Calls that still run after `drain_seconds` of
        the settings are cancelled.
        """
        rates = Rates(
            lambda: bookie.settings,
            SystemClock().monotonic,
            lambda kind: metrics.rate_limited_total.labels(kind).inc(),
            LogDirectory() if gatekeeper is None else gatekeeper.logs,
        )
        service = BookieService(
            bookie, bookie.settings, metrics, gatekeeper, rates, self._settings, arrivals
        )
        handlers = service.handlers()
        self._gate.service_handlers = grpc_handlers(handlers)
        for one in beside:
            one.serve(handlers)
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        _log.info(
            "rpc_listening", host=self._host, port=self.port, plaintext_port=self.plaintext_port
        )
        try:
            yield
        finally:
            await self._health.enter_graceful_shutdown()
            service.end_streams()
            seconds = self._settings.drain_seconds
            await gather([self._server.stop(seconds), *(one.stop(seconds) for one in beside)])
            service.close()
            _log.info("rpc_stopped", host=self._host, port=self.port)


@contextlib.asynccontextmanager
async def hold_port(
    host: str,
    port: int,
    settings: RpcSettings,
    *,
    security: ServerSecurity | None = None,
    plaintext_port: int | None = None,
    connections_max: int = transport.UNBOUNDED,
) -> AsyncIterator[HeldPort]:
    """Listen on `host` and `port` (0 means any free port); refuse calls until `HeldPort.serve`.

    The port stays bound during the context, so that no other process can bind it.

    Args:
        host: the address to listen on.
        port: the port to listen on.
        settings: message sizes, keepalive and limits.
        security: the credentials for TLS on the port; None means a port without TLS.
        plaintext_port: an additional port without TLS (0 means any free port); None for no such
            port.
        connections_max: the most connections of each port and each address of `host`.

    Raises:
        CannotStartError: The address cannot be bound now; the message says why.
    """
    options = transport.server_options(settings, connections_max)
    server = with_free_poller(lambda: aio.server(options=options))
    bound = _bind(server, host, port, security)
    beside = 0 if plaintext_port is None else _bind(server, host, plaintext_port)
    held = HeldPort(server, host, bound, settings, beside)
    await held.refuse()
    try:
        yield held
    finally:
        await server.stop(None)


def _bind(server: Any, host: str, port: int, security: ServerSecurity | None = None) -> int:
    """Listen; on failure raise an error with the reason, which gRPC does not report."""
    address = join_address(host, port)
    try:
        _probe(host, port)
        return transport.bind(server, address, security and security.credentials())
    except socket.gaierror as error:
        reason = f"the host name cannot be resolved ({error.strerror})"
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    except RuntimeError:
        reason = "address already in use"
        if security is not None:
            reason += ", or gRPC refuses security.certificate_file"
    raise CannotStartError(f"cannot listen on {address}: {reason}")


def _probe(host: str, port: int) -> None:
    """Bind the address like gRPC and release it at once, to get the operating system's error."""
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()


def _serve_reflection(server: Any) -> None:
    """Serve gRPC reflection; its module is loaded only here, because nothing else needs it."""
    from grpc_reflection.v1alpha import reflection

    from bookie._pb import bookie_pb2  # noqa: F401  (for its registration)

    reflection.enable_server_reflection(
        (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
