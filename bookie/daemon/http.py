"""The HTTP server of a bookie: metrics, liveness, readiness, and an operator's commands.

==================  ======================================================================
``/metrics``        Prometheus text
``/healthz``        200 while the event loop answers; a bookie whose disk fails ends by itself
``/readyz``         200 when traffic may come; 503 with the reasons otherwise
``GET /bookie``     the bookie's own description
``PUT /read-only``  ``{"read_only": true}`` refuses new entries, ``false`` takes them again. With
                    ``"persist": true`` a restart refuses them, too. 409: it could not be kept
``GET /check``      the result of the last check of all entries; ``PUT``: make one now
``PUT /garbage``    409 says why it was not done. ``{"action": …}`` is one of these:
                    ``"run"`` looks for deleted ledgers now;
                    ``"force"`` deletes all absent ones without their grace;
                    ``"confirm-store"`` trusts the metadata store as it is;
                    ``"suspend"``, ``"resume"`` stop and continue it, and compactions;
                    ``"undelete"`` gives the absent ``"ledgers": […]``, or all, a whole grace
``PUT /compaction`` ``{"action": "run"}`` compacts every file that holds anything dead
``GET /scrub``      the scrubber's progress, and damage; ``PUT``: read everything now
==================  ======================================================================

The server listens on loopback unless the configuration says otherwise. With a certificate it speaks
TLS 1.3, and asks for a client certificate or a token, except at `http.open_paths`: Kubernetes and
systemd ask there. What a caller may do is decided by his roles (`HTTP_RIGHTS`); a change needs the
role admin. A bookie without roles accepts changes only from processes of the same machine. Changes
come only as JSON, so that a web page cannot send them.

An address may lead to another bookie than the caller means: every machine has a 127.0.0.1. So a
change must name its bookie in the header ``Bookie-Id``. Other requests may name their bookie.
``Bookie-Instance-Id`` may name the cluster. A request that names another bookie or cluster is
refused with 421.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger

from bookie.daemon.http_listener import HTTP_BOUNDS, Listener, ListenerBounds
from bookie.daemon.readiness import Readiness
from bookie.errors import BookieError, NotPermittedError
from bookie.ids import BOOKIE_ID_METADATA_KEY, INSTANCE_ID_METADATA_KEY, MAX_ID
from bookie.node.garbage import GarbageStatus
from bookie.security import PemFiles
from bookie.security.gatekeeper import Gatekeeper
from bookie.security.identity import identity_of_certificate
from bookie.security.rights import HTTP_RIGHTS, Right
from bookie.telemetry import Metrics
from bookie.wire.commands import Info

REQUEST_BYTES_MAX = 4096
"""The most bytes of a request; requests need small bodies only."""

IDLE_SECONDS_MAX = 75.0
"""A connection is closed after so long without a whole header, from its start or its last request.
It is longer than the usual interval of scrapes."""

BODY_SECONDS_MAX = 10.0
"""The time within which the body of a change must arrive."""

SHUTDOWN_SECONDS = 1.0
"""The time for a scrape in flight to end at a stop; idle connections are closed at once."""


HANDSHAKE_SECONDS_MAX = 5.0
"""The time for the TLS handshake of a new connection."""

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""The paths that need no client certificate by default: Kubernetes' probes cannot show one."""


WANTED = web.RequestKey("wanted", str)
"""The key of a request under which is kept what a change's body asks for, for the audit log."""

_GARBAGE_ACTIONS = ("run", "force", "confirm-store", "undelete", "suspend", "resume")


class Administered(Protocol):
    """A running bookie, as an operator's commands see it."""

    @property
    def read_only(self) -> bool:
        """True while the bookie refuses new entries."""

    def read_only_reasons(self) -> list[str]:
        """Return why new entries are refused; empty while the bookie takes entries."""

    async def info(self) -> Info:
        """Return the bookie's description of itself."""


class ReadOnlySwitching(Protocol):
    """The switch by which an operator makes a bookie read-only."""

    @property
    def persists(self) -> bool:
        """True if the bookie will be read-only after a restart, too."""

    async def set(self, *, read_only: bool, persist: bool = False) -> None:
        """Refuse new entries or take them; BookieError says why this fails."""


class Upkeep(Protocol):
    """Work of a bookie on its own data that goes on in the background."""

    def start(self) -> None:
        """Start the work now."""

    def status(self) -> dict[str, object]:
        """Return the work's state (needed, running) and its last result."""


class Reclaiming(Protocol):
    """The garbage collection and the compaction of a running bookie."""

    def status(self) -> GarbageStatus:
        """Return the present state of garbage collection and compaction."""

    def wake(self, *, force: bool = False) -> None:
        """Start a collection now; raise BadRequestError if it cannot be forced."""

    async def confirm_store(self) -> None:
        """Trust the metadata store as it is now; BookieError says why this fails."""

    async def keep(self, ledger_ids: Iterable[int] = ()) -> int:
        """Restart the grace of these absent ledgers, or of all; return their number."""

    def suspend(self, *, suspended: bool) -> None:
        """Suspend garbage collection and compaction, or continue them."""

    def compact(self) -> None:
        """Compact every file that holds dead data."""


class Administration:
    """The bookie that executes commands; None while the process starts or stops.

    Args:
        bookie_id: the bookie of this process, set at all times.
    """

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.instance_id = ""
        """The id of the cluster; empty until it was read from the metadata store."""
        self.bookie: Administered | None = None
        self.switch: ReadOnlySwitching | None = None
        self.upkeep: dict[str, Upkeep] = {}
        """Background work, by the last part of the work's URL."""
        self.reclaiming: Reclaiming | None = None


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """Who may ask what over HTTP."""

    files: PemFiles | None = None
    """The certificate with which the server speaks TLS; None speaks plaintext."""
    gatekeeper: Gatekeeper | None = None
    """Knows the roles of callers; None asks for none."""
    open_paths: frozenset[str] = OPEN_PATHS
    """The paths that need neither certificate nor role."""

    @property
    def asks_roles(self) -> bool:
        """True if callers need roles."""
        return self.gatekeeper is not None and self.gatekeeper.is_required

    @property
    def asks_certificates(self) -> bool:
        """True if callers without roles at least need a certificate."""
        return self.files is not None and self.files.settings.require_client_certificate

    @web.middleware
    async def for_those_who_may(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Refuse a request that its caller may not make; note changes in the audit log."""
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
        # The audit log gets no text of a stranger: a path may have 8 KiB.
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
        """Refuse a request that names another bookie, and a change that names none."""
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
        """True if the request is JSON, and comes from this machine or from an admin."""
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
        """Return the value that a change's body asks for, or an answer that refuses the change."""
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
        # Not JSON, an unknown charset, a number of thousands of digits, or another kind of value.
        wanted = None
    for value in allowed:
        # The type counts too: 1 == True in Python.
        if type(wanted) is type(value) and wanted == value:
            return value
    bodies = " or ".join(json.dumps({key: value}) for value in allowed)
    return _error(400, f"the body must be {bodies}")


def _is_our_fault(record: logging.LogRecord) -> bool:
    """False for what aiohttp logs, with a traceback, if a peer sends no HTTP or goes away."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


def _are_ledger_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x <= MAX_ID for x in value)


def _refused() -> web.Response:
    return _error(403, "a change must come from the bookie's own machine, as application/json")


def _error(status: int, sentence: str) -> web.Response:
    return web.json_response({"error": sentence}, status=status)


def is_same_machine(peer: str | None, own: str | None) -> bool:
    """True if both ends of a connection are on one machine; `own` is the address that was reached.

    A process that connects to an address of its own machine has that same address as its source.
    """
    try:
        theirs, ours = (_address(one or "") for one in (peer, own))
    except ValueError:
        return False
    return theirs.is_loopback or theirs == ours


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address; an IPv4 address that a socket wrote as IPv6 becomes IPv4 again."""
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
    """Serve HTTP until the block ends; yield the port, which is chosen if `port` is 0.

    With the files of `access` the server speaks TLS. It takes them as they are at each handshake.
    With one connection more than the `bounds` allow, the oldest is closed.

    Raises:
        CannotStartError: the address cannot be listened on now.
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
        lingering_time=0,  # a body that was refused is not read to its end
    )
    # Whoever reaches the port could fill the log otherwise. The answer tells the peer its fault.
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
