"""What a bookie shows over HTTP: its metrics, whether it lives, whether it takes traffic.

=============  ======================================================================
``/metrics``   Prometheus text
``/healthz``   200 while the event loop answers and storage works; 503 asks for a restart
``/readyz``    200 when traffic may come; 503 with the reasons otherwise
=============  ======================================================================

Nothing here changes the bookie, so there is no authentication; it listens on loopback unless the
configuration says otherwise. Kubernetes and systemd ask ``/healthz`` and ``/readyz``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from bookie.errors import ConfigurationError
from bookie.server.readiness import Readiness
from bookie.telemetry import Metrics

REQUEST_BYTES_MAX = 4096
"""Nobody has a reason to send a body."""

SHUTDOWN_SECONDS = 1.0
"""A scrape in flight may end; a kept-alive connection is not waited for."""


class _Pages:
    def __init__(self, metrics: Metrics, readiness: Readiness) -> None:
        self._metrics = metrics
        self._readiness = readiness

    async def metrics(self, _request: web.Request) -> web.Response:
        body, content_type = self._metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def healthz(self, _request: web.Request) -> web.Response:
        if self._readiness.is_alive:
            return web.json_response({"healthy": True})
        return web.json_response({"healthy": False, **self._readiness.report()}, status=503)

    async def readyz(self, _request: web.Request) -> web.Response:
        status = 200 if self._readiness.is_ready else 503
        return web.json_response(self._readiness.report(), status=status)


@asynccontextmanager
async def serve_http(
    metrics: Metrics, readiness: Readiness, *, host: str, port: int
) -> AsyncIterator[int]:
    """Serve until the block ends; the value is the port, which matters when `port` is 0.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    pages = _Pages(metrics, readiness)
    application = web.Application(client_max_size=REQUEST_BYTES_MAX)
    application.add_routes(
        [
            web.get("/metrics", pages.metrics),
            web.get("/healthz", pages.healthz),
            web.get("/readyz", pages.readyz),
        ]
    )
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            raise ConfigurationError(f"cannot serve HTTP on {host}:{port}: {reason}") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
