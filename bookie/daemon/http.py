"""The HTTP server of a bookie: metrics, liveness, readiness, and an operator's commands.

=================== ======================================================================
``/metrics``        returns the metrics as Prometheus text
``/healthz``        returns 200 while the event loop runs; a failed disk ends the process
``/readyz``         returns 200 if the bookie is ready for clients, otherwise 503 with the reasons
``GET /bookie``     returns the bookie's description of itself
``PUT /read-only``  ``{"read_only": true}`` makes the bookie refuse new entries, and ``false``
                    makes it accept them again. With ``"persist": true`` the bookie also refuses
                    new entries after a restart. Status 409: the switch could not be saved
``GET /check``      returns the result of the last check of all entries
``PUT /check``      starts a check of all entries
``PUT /garbage``    does one ``"action"`` of garbage collection; status 409 has the reason of a
                    failure:
                    ``"run"`` searches for deleted ledgers now;
                    ``"force"`` deletes all absent ledgers before their grace ends;
                    ``"confirm-store"`` makes the bookie trust the metadata store as it is;
                    ``"suspend"`` stops garbage collection and compaction;
                    ``"resume"`` continues garbage collection and compaction;
                    ``"undelete"`` restarts the grace of the absent ledgers in
                    ``"ledgers": […]``, or of all absent ledgers
``PUT /compaction`` ``{"action": "run"}`` compacts every file that holds dead data
``GET /scrub``      returns the scrubber's progress, and the damage found
``PUT /scrub``      starts a whole pass of the scrubber
=================== ======================================================================

The server listens on loopback unless the configuration names another host. If the bookie has a
certificate, the server speaks TLS 1.3. With TLS, each request by default needs a client certificate
or a token, except requests for the paths in `http.open_paths`. So Kubernetes and systemd can probe
these paths without a certificate. A caller's roles decide which requests are allowed
(`HTTP_RIGHTS`); a change needs the role admin. A bookie that requires no roles accepts changes only
from processes of its own machine. A change must have the content type of JSON, because a foreign
web page cannot send this type.

A caller may reach another bookie than intended, because 127.0.0.1 exists on every machine. So a
change must name the intended bookie in the header ``Bookie-Id``. A GET request may also have the
header ``Bookie-Id``. The header ``Bookie-Instance-Id`` may name the cluster. If a request names
another bookie or cluster, the server answers with status 421.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger

from bookie.daemon.http_listener import HTTP_BOUNDS, Listener, ListenerBounds
from bookie.daemon.readiness import Readiness
from bookie.errors import BookieError, NotPermittedError
from bookie.ids import BOOKIE_ID_METADATA_KEY, INSTANCE_ID_METADATA_KEY, MAX_ID
from bookie.security import PemFiles
from bookie.security.gatekeeper import Gatekeeper
from bookie.security.identity import identity_of_certificate
from bookie.security.rights import HTTP_RIGHTS, Right
from bookie.telemetry import Metrics

if TYPE_CHECKING:
    from bookie.node.bookie import Bookie
    from bookie.node.garbage import GarbageCollector
    from bookie.node.read_only_switch import ReadOnlySwitch

REQUEST_BYTES_MAX = 4096
"""The largest body of a request in bytes."""

IDLE_SECONDS_MAX = 75.0
"""The longest time until the next request's header is complete, measured from the connection's
start or its last request. If the header comes later, the server closes the connection. Prometheus
usually scrapes more often."""

BODY_SECONDS_MAX = 10.0
"""The longest time until a change's body has arrived; after it, the server answers with 408."""

SHUTDOWN_SECONDS = 1.0
"""The longest time that a stop waits for unfinished requests; idle connections close at once."""


HANDSHAKE_SECONDS_MAX = 5.0
"""The longest time of a new connection's TLS handshake; after it, the connection is closed."""

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""The paths that by default need no client certificate, because Kubernetes probes send none."""


WANTED = web.RequestKey("wanted", str)
"""The key under which a request object keeps the requested change, as text for the audit log."""

_GARBAGE_ACTIONS = ("run", "force", "confirm-store", "undelete", "suspend", "resume")


class Upkeep(Protocol):
    """A background task that examines the bookie's own data: the check or the scrubber."""

    def start(self) -> None:
        """Start the background task now."""

    def status(self) -> dict[str, object]:
        """Return the task's state (needed, running) and its last result."""


class Administration:
    """The parts of the bookie that execute commands; each is None while the bookie does not serve.

    Args:
        bookie_id: the id of the bookie, which is set even while the parts are None.
    """

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.instance_id = ""
        """The id of the cluster; empty until the daemon has read it from the metadata store."""
        self.bookie: Bookie | None = None
        self.switch: ReadOnlySwitch | None = None
        self.upkeep: dict[str, Upkeep] = {}
        """The background tasks (``check`` and ``scrub``), by the last part of the task's URL."""
        self.reclaiming: GarbageCollector | None = None


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """Decides which callers may send which HTTP requests."""

    files: PemFiles | None = None
    """The certificate with which the server speaks TLS; None means plaintext."""
    gatekeeper: Gatekeeper | None = None
    """Determines the roles of callers; None means that no request needs a role."""
    open_paths: frozenset[str] = OPEN_PATHS
    """The paths that need neither certificate nor role."""

    @property
    def asks_roles(self) -> bool:
        return self.gatekeeper is not None and self.gatekeeper.is_required

    @property
    def asks_certificates(self) -> bool:
        """True if a TLS client needs a certificate; ignored by a server that requires roles."""
        return self.files is not None and self.files.settings.require_client_certificate

    @web.middleware
    async def for_those_who_may(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Refuse a request if the caller lacks the right; write each change to the audit log."""
        if request.path in self.open_paths and request.method in ("GET", "HEAD"):
            return await handler(request)
        transport = request.transport
        certificate = None if transport is None else transport.get_extra_info("peercert")
        identity = identity_of_certificate(certificate)
        if self.asks_certificates and not self.asks_roles and identity is None:
            return _error(403, "this bookie answers only clients that show a certificate of its CA")
        if self.gatekeeper is None:
            return await handler(request)
        method = "GET" if request.method == "HEAD" else request.method
        row = HTTP_RIGHTS.get((method, request.path))
        right = Right.CHANGE if row is None else row
        # The audit log must not contain the path of an unknown page, because this path can be 8 KiB
        # long.
        what = "another page" if row is None else f"{method} {request.path}"
        try:
            token = request.headers.get("Authorization", "")
            caller = self.gatekeeper.caller(identity, token, str(request.remote))
            caller.require_everywhere(what, right)
        except NotPermittedError as error:
            return _error(403, str(error))
        answer = await handler(request)
        if right is Right.CHANGE and answer.status < 400:
            caller.did(f"{what} {request.get(WANTED, '')}".rstrip(), always=True)
        return answer


class _Handlers:
    def __init__(
        self,
        metrics: Metrics,
        readiness: Readiness,
        administration: Administration,
        access: HttpAccess,
    ) -> None:
        self._access = access
        self._metrics = metrics
        self._readiness = readiness
        self._administration = administration

    @web.middleware
    async def for_this_bookie(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Refuse a request for another bookie or cluster, and a change that names no bookie."""
        own, cluster = self._administration.bookie_id, self._administration.instance_id
        named = request.headers.get(BOOKIE_ID_METADATA_KEY, "")
        named_cluster = request.headers.get(INSTANCE_ID_METADATA_KEY, "")
        if named not in ("", own):
            return _error(
                421,
                f"this is bookie {own}, and the request is for bookie {named}; "
                f"run the command on the machine of bookie {named}",
            )
        if cluster and named_cluster not in ("", cluster):
            return _error(
                421,
                f"this is bookie {own} of cluster {cluster}, not of cluster {named_cluster}; "
                "run the command on the machine of the bookie that you mean",
            )
        if request.method == "PUT" and not named:
            return _error(
                400, f"a change must name its bookie in the header Bookie-Id; this is bookie {own}"
            )
        return await handler(request)

    async def metrics(self, _request: web.Request) -> web.Response:
        body, content_type = self._metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"healthy": True})

    async def readyz(self, _request: web.Request) -> web.Response:
        status = 200 if self._readiness.is_ready else 503
        return web.json_response(self._readiness.report(), status=status)

    async def bookie(self, _request: web.Request) -> web.Response:
        return await self._report({})

    async def _report(self, done: dict[str, object]) -> web.Response:
        """Return the bookie's description of itself, together with the result of a command."""
        bookie = self._administration.bookie
        if bookie is None:
            return _error(503, "the bookie does not serve now")
        report = asdict(await bookie.info()) | {"read_only_reasons": bookie.read_only_reasons()}
        switch = self._administration.switch
        if switch is not None:
            report["read_only_persists"] = switch.persists
        reclaiming = self._administration.reclaiming
        if reclaiming is not None:
            report |= asdict(reclaiming.status())
        return web.json_response(report | done)

    async def upkeep(self, request: web.Request) -> web.Response:
        work = self._administration.upkeep.get(request.match_info["work"])
        if work is None:
            return _error(503, "the bookie does not serve now")
        if request.method == "PUT":
            if not self._is_command(request):
                return _refused()
            work.start()
        return web.json_response(work.status())

    async def set_read_only(self, request: web.Request) -> web.Response:
        wanted = await self._wanted(request, "read_only", (True, False))
        if isinstance(wanted, web.Response):
            return wanted
        persist = (await request.json()).get("persist", False)
        if not isinstance(persist, bool):
            return _error(400, "persist must be true or false")
        if persist and not wanted:
            return _error(400, "a bookie that takes entries has no switch to persist")
        switch = self._administration.switch
        if switch is not None:
            try:
                await switch.set(read_only=bool(wanted), persist=persist)
            except BookieError as error:
                return _error(409, str(error))
        return await self.bookie(request)

    async def garbage(self, request: web.Request) -> web.Response:
        action = await self._wanted(request, "action", _GARBAGE_ACTIONS)
        if isinstance(action, web.Response):
            return action
        reclaiming = self._administration.reclaiming
        done: dict[str, object] = {}
        if reclaiming is not None:
            try:
                match action:
                    case "suspend" | "resume":
                        reclaiming.suspend(suspended=action == "suspend")
                    case "confirm-store":
                        await reclaiming.confirm_store()
                    case "undelete":
                        ledger_ids = (await request.json()).get("ledgers", [])
                        if not _are_ledger_ids(ledger_ids):
                            return _error(400, "ledgers must be a list of ledger ids")
                        done["undeleted_ledgers"] = await reclaiming.keep(ledger_ids)
                    case _:
                        reclaiming.wake(force=action == "force")
            except BookieError as error:
                return _error(409, str(error))
        return await self._report(done)

    async def compaction(self, request: web.Request) -> web.Response:
        action = await self._wanted(request, "action", ("run",))
        if isinstance(action, web.Response):
            return action
        if self._administration.reclaiming is not None:
            self._administration.reclaiming.compact()
        return await self.bookie(request)

    def _is_command(self, request: web.Request) -> bool:
        """True if the request is JSON and, on a bookie without roles, comes from this machine.

        If the bookie requires roles, `HttpAccess` has already checked the caller's roles.
        """
        transport = request.transport
        if transport is None or request.content_type != "application/json":
            return False
        if self._access.asks_roles:
            return True
        peer, own = (transport.get_extra_info(end) for end in ("peername", "sockname"))
        return is_same_machine(peer and peer[0], own and own[0])

    async def _wanted(
        self, request: web.Request, key: str, allowed: tuple[bool | str, ...]
    ) -> bool | str | web.Response:
        """Return the value of `key` in a change's body, or an error answer for a wrong value."""
        if not self._is_command(request):
            return _refused()
        wanted = await _value(request, key, allowed)
        if not isinstance(wanted, web.Response):
            request[WANTED] = f"{key}={json.dumps(wanted)}"
        return wanted


async def _value(
    request: web.Request, key: str, allowed: tuple[bool | str, ...]
) -> bool | str | web.Response:
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            wanted = (await request.json())[key]
    except TimeoutError:
        return _error(408, f"the body did not arrive within {BODY_SECONDS_MAX:g} s")
    except (ValueError, RecursionError, LookupError, TypeError):
        # The body is not JSON, has an unknown charset or a number with thousands of digits, or
        # lacks the key.
        wanted = None
    for value in allowed:
        # Compare the types too, because 1 == True in Python.
        if type(wanted) is type(value) and wanted == value:
            return value
    bodies = " or ".join(json.dumps({key: value}) for value in allowed)
    return _error(400, f"the body must be {bodies}")


def _is_our_fault(record: logging.LogRecord) -> bool:
    """False if a log record of aiohttp is about a peer that sent invalid HTTP or disconnected."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


def _are_ledger_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x <= MAX_ID for x in value)


def _refused() -> web.Response:
    return _error(403, "a change must come from the bookie's own machine, as application/json")


def _error(status: int, sentence: str) -> web.Response:
    return web.json_response({"error": sentence}, status=status)


def is_same_machine(peer: str | None, own: str | None) -> bool:
    """True if both ends of a connection are on one machine.

    `peer` is the connection's source address, and `own` is its target address. If a process
    connects to an address of its own machine, the source address equals the target address.
    """
    try:
        theirs, ours = (_address(one or "") for one in (peer, own))
    except ValueError:
        return False
    return theirs.is_loopback or theirs == ours


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an IP address; convert an IPv4 address that is mapped to IPv6 back to IPv4."""
    found = ipaddress.ip_address(text)
    return getattr(found, "ipv4_mapped", None) or found


@asynccontextmanager
async def serve_http(
    metrics: Metrics,
    readiness: Readiness,
    administration: Administration | None = None,
    *,
    host: str,
    port: int,
    access: HttpAccess | None = None,
    bounds: ListenerBounds = HTTP_BOUNDS,
) -> AsyncIterator[int]:
    """Serve HTTP until the block ends; yield the port. If `port` is 0, the system chooses a port.

    If `access` has certificate files, the server speaks TLS. Each TLS handshake uses the newest
    certificate files. If a new connection exceeds the `bounds`, the server closes the oldest
    connection.

    Raises:
        CannotStartError: the server cannot listen on the address now.
    """
    access = access or HttpAccess()
    pages = _Handlers(metrics, readiness, administration or Administration(""), access)
    application = web.Application(
        client_max_size=REQUEST_BYTES_MAX,
        middlewares=[access.for_those_who_may, pages.for_this_bookie],
    )
    application.add_routes(
        [
            web.get("/metrics", pages.metrics),
            web.get("/healthz", pages.healthz),
            web.get("/readyz", pages.readyz),
            web.get("/bookie", pages.bookie),
            web.put("/read-only", pages.set_read_only),
            web.put("/garbage", pages.garbage),
            web.put("/compaction", pages.compaction),
            web.get("/{work:check|scrub}", pages.upkeep),
            web.put("/{work:check|scrub}", pages.upkeep),
        ]
    )
    runner = web.AppRunner(
        application,
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=IDLE_SECONDS_MAX,
        lingering_time=0,  # do not read the rest of a refused body
    )
    # Do not log faults of peers: every machine that reaches the port could fill the log.
    server_logger.addFilter(_is_our_fault)
    await runner.setup()
    server = runner.server
    assert server is not None

    files = access.files
    listener = Listener(
        server,
        bounds,
        None if files is None else lambda: files.context,
        handshake_seconds=HANDSHAKE_SECONDS_MAX,
        shutdown_seconds=SHUTDOWN_SECONDS,
        on_surplus=lambda reason: metrics.connections_ended_total.labels(reason).inc(),
    )
    try:
        await listener.open(host, port)
        try:
            yield listener.port
        finally:
            await listener.close()
    finally:
        await runner.cleanup()
