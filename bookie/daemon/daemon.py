"""The daemon: starts all parts of one bookie, waits for a signal, and stops the parts.

The parts are nested contexts: they start in the order of this list, and stop in reverse order.

1. The HTTP server answers probes while the bookie starts and while the bookie stops.
2. The ports for clients listen but refuse calls. A bookie without its ports must not write its
   cookies.
3. The session with the metadata store begins.
4. `start_bookie` prepares the directories, cookies, engine and node: see `bookie.node.start`.
5. The ports serve calls. At the stop, each stream ends after the answers to all its requests.
6. The bookie writes its registration last and deletes the registration first, so clients find only
   a bookie that serves.

SIGTERM and SIGINT end the innermost context, so that all parts stop in order. A failed disk ends
the process at once with status 74. After a disk failure, the process must not answer requests, sync
or delete files.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import NoReturn

import bookie
from bookie.addresses import is_wildcard, join_address
from bookie.cluster import keys
from bookie.cluster.cluster_settings import ClusterSettings
from bookie.cluster.cookies import CookieManager
from bookie.cluster.endpoints import ENTRIES, FRAMES, FRAMES_PROTOCOLS
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint
from bookie.config import Settings, Sources, Supervision, require_bookie_id
from bookie.daemon.connections import Doorkeeper, OwnSockets
from bookie.daemon.descriptors import limits, require_descriptors, watch_descriptors
from bookie.daemon.http import Administration, HttpAccess, serve_http
from bookie.daemon.live_settings import LiveSettings, fetch_cluster_settings, open_configured
from bookie.daemon.loop import observe_loop_lag
from bookie.daemon.own_access import OwnAccess
from bookie.daemon.own_security import prepare_security, registered_host, watching_certificates
from bookie.daemon.patient_start import StoppedBeforeStartError, patiently
from bookie.daemon.readiness import Part, Readiness
from bookie.daemon.registration_updater import (
    RegistrationUpdater,
    keep_registered,
    show_registration,
)
from bookie.daemon.session_policy import after_outages, obey_session_policy
from bookie.daemon.signals import NOTED_SIGNALS, noting, until_signal
from bookie.daemon.systemd import ServiceManager, beat
from bookie.daemon.unfinished import bound_unfinished
from bookie.env import (
    Environment,
    Failpoints,
    SystemClock,
    ThreadWorkers,
    beside,
    system_environment,
)
from bookie.errors import BookieError, StorageFailedError
from bookie.ledger.catalog.bookie_losses import BookieLosses
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.copies.departures import Departures
from bookie.ledger.place.labels import BookieLabels
from bookie.metadata.store import MetadataStore
from bookie.metadata.uri import require_shared
from bookie.node.own_copies import OwnCopies
from bookie.node.start import StartedBookie, start_bookie
from bookie.security import PemFiles
from bookie.security.exposure import is_loopback
from bookie.telemetry import Metrics, configure_logging, event_log, set_log_level
from bookie.wire.frames.server import FramesPort, hold_frames_port
from bookie.wire.grpc.credentials import ServerSecurity
from bookie.wire.grpc.server.grpc_server import HeldPort, hold_port
from bookie.wire.server.arrivals import Arrivals

EXIT_DISK_FAILED = 74
"""EX_IOERR of sysexits.h: the engine could not write or sync; only a new process may continue."""

LEAVING = "decommission"
"""The name of the reason why a bookie that leaves the cluster is read-only."""

_log = event_log(__name__)


async def run_daemon(sources: Sources, supervision: Supervision, failpoints: str = "") -> None:
    """Run one bookie until SIGTERM or SIGINT, then stop it in order.

    The function first fetches the cluster's settings and merges them with `sources`. If a disk
    fails, the process ends with status 74, and the function does not return.

    Args:
        sources: the values from file, environment and flags.
        supervision: how to notify the service manager.
        failpoints: the points at which a crash test kills the process; empty outside tests.

    Raises:
        ConfigurationError: a setting is missing or wrong, or the limit of open files is too low.
        CannotStartError: another process has an address, a directory cannot be used now, or the
            certificate and the key do not belong together.
        IdentityError: the directories or the id belong to another bookie.
        SessionGivenUpError: the metadata store was unreachable for longer than the policy allows.
        BookieError: the metadata store does not answer, or holds no cluster. Also raised if a newer
            version of bookie wrote some of the data.
    """
    first = sources.first_settings()
    sources.require_one_store()
    require_bookie_id(first)
    require_shared(first.metadata.uri)
    configure_logging(first.log.level, first.log.format, bookie=first.bookie.id)
    require_descriptors()
    for name, right in sources.unknown_variables.items():
        _log.warning("variable_ignored", variable=name, likely_name=right)
    live = LiveSettings(sources, await fetch_cluster_settings(first))
    settings = live.settings
    configure_logging(settings.log.level, settings.log.format, bookie=settings.bookie.id)
    _log.info(
        "starting",
        version=bookie.__version__,
        pid=os.getpid(),
        metadata=settings.metadata.uri,
        journal_dir=str(settings.storage.journal_dir),
        ledgers_dir=str(settings.storage.ledgers_dir),
        changed_settings=json.dumps(settings.model_dump(mode="json", exclude_defaults=True)),
        cluster_settings=live.cluster,
        overridden_settings=live.overridden,
    )
    if settings.repair.enabled:
        # Import before the bookie registers: an import in the event loop delays requests.
        import_module("bookie.repair.own_damage")
    try:
        with noting(*NOTED_SIGNALS, note=_note_signal):
            await _run(live, ServiceManager(supervision), supervision, Failpoints(failpoints))
    except BaseExceptionGroup as group:
        error = _first_error(group)
        if isinstance(error, StorageFailedError):
            _die(error)
        if not isinstance(error, StoppedBeforeStartError):
            _note(error)
            raise error from None
    except StorageFailedError as error:
        _die(error)
    except Exception as error:
        _note(error)
        raise
    _log.info("stopped")


async def _run(
    live: LiveSettings, manager: ServiceManager, supervision: Supervision, failpoints: Failpoints
) -> None:
    settings = live.settings
    metrics, readiness = Metrics(), Readiness()
    administration = Administration(settings.bookie.id)
    metrics.server_status.set(-1)
    files, access = prepare_security(settings, metrics), OwnAccess(settings)
    http = HttpAccess(files, access.gatekeeper, frozenset(settings.http.open_paths.split()))
    doorkeeper = Doorkeeper(lambda: live.settings.limits, limits()[0], metrics)
    arrivals = Arrivals()
    async with (
        until_signal() as stop_requested,
        _serve_http(settings, metrics, readiness, administration, http, doorkeeper) as http_port,
        _hold_ports(settings, files, doorkeeper) as (held, frames),
        beside(_bounds_of_connections(live, held, frames, doorkeeper, arrivals, metrics)),
        beside([*_signs_of_life(metrics, manager, supervision), watch_descriptors(readiness)]),
        watching_certificates(files, metrics),
        open_configured(settings) as store,
        beside([obey_session_policy(store, settings.session, metrics, readiness)]),
        ThreadWorkers(settings.storage.read_threads) as workers,
    ):
        environment = system_environment(workers, failpoints)
        instance_id = administration.instance_id = await access.load(store)
        metrics.info.info(
            {"id": settings.bookie.id, "instance": instance_id, "version": bookie.__version__}
        )
        async with (
            beside([access.follow(store, instance_id), doorkeeper.bookies.follow(store)]),
            patiently(
                lambda: _start(store, settings, metrics, environment, instance_id),
                stop_requested,
                readiness,
                environment.clock,
            ) as started,
            held.serve(started.bookie, metrics, access.gatekeeper, arrivals, frames),
        ):
            updater = RegistrationUpdater(
                started.bookie,
                _endpoints(settings, held, http_port, frames),
                settings.bookie.labels,
                await BookieLabels(store).read(settings.bookie.id),
                lambda: started.check.needed,
                lambda: started.garbage.store_doubt,
            )
            started.garbage.on_store_doubt = updater.interval.end
            registration = await updater.registration()
            async with (
                BookieRegistration(store, registration, instance_id=instance_id) as registered,
                beside([keep_registered(updater, registered, metrics, readiness)]),
                beside(_followers(store, instance_id, live, started, updater)),
                beside(_repair(store, live, metrics, started)),
            ):
                remarks = updater.remarks()
                show_registration(registration, registered, metrics, readiness, remarks)
                readiness.clear(Part.BOOT)
                administration.bookie = started.bookie
                administration.switch, administration.reclaiming = started.switch, started.garbage
                administration.upkeep = {
                    "check": started.check,
                    "scrub": started.engine.scrubber,
                }
                manager.ready(f"serving on {join_address(settings.listen.host, held.port)}")
                await _until_stopped(stop_requested, started)
                administration.bookie = administration.switch = administration.reclaiming = None
                administration.upkeep = {}
                readiness.block(Part.SHUTDOWN, "the bookie is stopping")
                manager.stopping()
                _log.info("stopping")
                metrics.server_status.set(-1)


def _start(
    store: MetadataStore,
    settings: Settings,
    metrics: Metrics,
    environment: Environment,
    instance_id: str,
) -> AbstractAsyncContextManager[StartedBookie]:
    return start_bookie(
        environment,
        settings.storage,
        settings.limits,
        metrics,
        cookies=CookieManager(store),
        ledgers=LedgerManager(store),
        bookie_id=settings.bookie.id,
        instance_id=instance_id,
        garbage=settings.garbage,
        losses=_losses(store, settings),
    )


def _bounds_of_connections(
    live: LiveSettings,
    held: HeldPort,
    frames: Sequence[FramesPort],
    doorkeeper: Doorkeeper,
    arrivals: Arrivals,
    metrics: Metrics,
) -> list[Coroutine[object, object, None]]:
    """Return coroutines that bound the number of connections, and the memory of unread messages."""
    ports = [held.port, held.plaintext_port, *(one.port for one in frames)]
    ports = [port for port in ports if port]
    return [
        *doorkeeper.works(*ports),
        bound_unfinished(
            OwnSockets(ports),
            arrivals,
            lambda: live.settings.limits.unfinished_bytes_max,
            metrics,
        ),
    ]


def _signs_of_life(
    metrics: Metrics, manager: ServiceManager, supervision: Supervision
) -> list[Coroutine[object, object, NoReturn]]:
    """Return the coroutine that measures the event loop's lag, and the watchdog's coroutine.

    The watchdog's coroutine reports to the service manager that the bookie is alive. Without a
    watchdog, the result has only the first coroutine.
    """
    lag = observe_loop_lag(metrics.loop_lag_seconds.observe)
    if supervision.watchdog_seconds is None:
        return [lag]
    return [lag, beat(manager.alive, interval_seconds=supervision.watchdog_seconds / 2)]


def _followers(
    store: MetadataStore,
    instance_id: str,
    live: LiveSettings,
    started: StartedBookie,
    updater: RegistrationUpdater,
) -> list[Coroutine[object, object, None]]:
    """Return coroutines that apply changes of cluster settings, labels and decommissions.

    Another coroutine starts a garbage collection after each new session with the metadata store.
    """

    def apply(settings: Settings) -> None:
        set_log_level(settings.log.level)
        started.apply(settings.storage, settings.limits, settings.garbage)
        updater.set_own_labels(settings.bookie.labels)

    return [
        ClusterSettings(store).follow(
            lambda cluster: live.take(cluster, apply), instance_id=instance_id
        ),
        BookieLabels(store).follow(
            started.bookie.bookie_id, updater.set_given_labels, instance_id=instance_id
        ),
        # A bookie that leaves the cluster gets no new ledgers.
        Departures(store, keys.LEAVING_BOOKIES).follow(
            started.bookie.bookie_id,
            lambda leaving: started.bookie.set_read_only(LEAVING, read_only=leaving),
            instance_id=instance_id,
        ),
        # A restore of the metadata store from a backup ends sessions. So the garbage collector
        # checks after each new session if the store is an older copy.
        after_outages(store, started.garbage.wake),
    ]


def _repair(
    store: MetadataStore, live: LiveSettings, metrics: Metrics, started: StartedBookie
) -> list[Coroutine[object, object, NoReturn]]:
    """Return the coroutine that repairs ledgers; an empty list if `repair.enabled` is off."""
    if not live.settings.repair.enabled:
        return []
    from bookie.repair.own_damage import OwnDamage

    own_damage = OwnDamage(store, live.settings.bookie.id)
    # Set this callback now, because the check of all entries already runs, and reports only once.
    started.check.on_incomplete = own_damage.note

    async def repair() -> NoReturn:
        # Import the 67 modules of a client only now, because this import takes an eighth of a
        # bookie's start time. Import in a thread: an import in the event loop delays requests.
        await asyncio.to_thread(import_module, "bookie.repair.service")
        from bookie.repair.service import keep_repairing

        await keep_repairing(
            store,
            live.sources,
            live.settings.rpc,
            lambda: live.settings.repair,
            metrics,
            SystemClock(),
            live.settings.bookie.id,
            own_damage,
            OwnCopies(started.engine, started.garbage),
        )

    return [repair()]


def _losses(store: MetadataStore, settings: Settings) -> BookieLosses | None:
    """Return the object that decides if the bookie may start without its lost data.

    If the settings forbid such a start, return None.
    """
    may_replace = settings.repair.enabled and settings.bookie.replace_lost_data
    return BookieLosses(store) if may_replace else None


async def _until_stopped(stop_requested: asyncio.Event, started: StartedBookie) -> None:
    """Wait until a stop is requested; end the process at once if a disk fails during the wait.

    If any part of the daemon fails, the wait is cancelled.
    """
    try:
        await stop_requested.wait()
    except asyncio.CancelledError:
        # After a disk failure the bookie must not finish requests: each answer could be wrong.
        failure = started.engine.failure
        if failure is not None:
            _die(failure)
        raise


def _serve_http(
    settings: Settings,
    metrics: Metrics,
    readiness: Readiness,
    administration: Administration,
    access: HttpAccess,
    doorkeeper: Doorkeeper,
) -> AbstractAsyncContextManager[int]:
    """Serve HTTP at the address in the settings, with the bounds of `doorkeeper.http`."""
    return serve_http(
        metrics,
        readiness,
        administration,
        host=settings.http.host,
        port=settings.http.port,
        access=access,
        bounds=doorkeeper.http,
    )


def _hold_port(
    settings: Settings, files: PemFiles | None, doorkeeper: Doorkeeper
) -> AbstractAsyncContextManager[HeldPort]:
    """Listen for clients: without TLS if `files` is None, otherwise with TLS.

    If the settings allow plaintext in addition to TLS, a second port accepts clients without TLS.
    """
    listen, is_second = settings.listen, _has_second_port(settings)
    return hold_port(
        listen.host,
        listen.port,
        settings.rpc,
        security=None if files is None else ServerSecurity(files),
        plaintext_port=listen.plaintext_port if is_second else None,
        connections_max=doorkeeper.each_max(listen.host, ports=_ports(settings)),
    )


@asynccontextmanager
async def _hold_ports(
    settings: Settings, files: PemFiles | None, doorkeeper: Doorkeeper
) -> AsyncIterator[tuple[HeldPort, Sequence[FramesPort]]]:
    """Listen for clients by gRPC, and also by frames unless the settings forbid it."""
    listen = settings.listen
    async with _hold_port(settings, files, doorkeeper) as held:
        if not offers_frames(settings):
            if listen.frames:
                _log.info(
                    "frames_off",
                    hint="set listen.frames_port, which firewalls and mappings can name",
                )
            yield held, ()
            return
        async with hold_frames_port(
            listen.host,
            listen.frames_port,
            settings.rpc,
            files=files,
            connections_max=doorkeeper.each_max(listen.host, ports=_ports(settings)),
        ) as frames:
            yield held, (frames,)


def _has_second_port(settings: Settings) -> bool:
    """True if a bookie with TLS also listens in plaintext."""
    return settings.security.serves_tls and settings.security.allow_plaintext


def _ports(settings: Settings) -> int:
    """Return the number of ports for clients."""
    return 1 + _has_second_port(settings) + offers_frames(settings)


def offers_frames(settings: Settings) -> bool:
    """True if the bookie listens for frames.

    Without a port in the settings, frames take any free port, but only on loopback and only if no
    other address is advertised. A firewall or a mapping cannot name an unknown port. A firewall
    would either keep clients out, or let everybody in.
    """
    listen = settings.listen
    if not listen.frames or listen.frames_port:
        return listen.frames
    is_mapped = listen.advertised_host or listen.advertised_port or listen.advertised_frames_port
    return not is_mapped and is_loopback(listen.host)


def _endpoints(
    settings: Settings, held: HeldPort, http_port: int, frames: Sequence[FramesPort]
) -> tuple[Endpoint, ...]:
    """Return the addresses that belong to the ports on which this bookie listens."""
    framed = (one.port for one in frames)
    return endpoints_of(settings, held.port, http_port, held.plaintext_port, *framed)


def endpoints_of(
    settings: Settings, port: int, http_port: int, plaintext_port: int = 0, frames_port: int = 0
) -> tuple[Endpoint, ...]:
    """Return the addresses of this bookie, for its registration; a port of 0 is not served.

    If the bookie has an address without TLS, this address comes first, because clients of earlier
    versions use a service's first address.
    """
    listen, http_host = settings.listen, settings.http.host
    host = registered_host(settings)
    if is_wildcard(http_host):
        # An HTTP server that accepts only IPv4 cannot be reached at an IPv6 address.
        is_reached = ":" in http_host or ":" not in host
        http_host = host if is_reached else socket.gethostname()
    tls = "s" if settings.security.serves_tls else ""
    plaintext = (Endpoint(ENTRIES, host, plaintext_port, "grpc"),) if plaintext_port else ()
    protocol = FRAMES_PROTOCOLS[settings.security.serves_tls]
    frames: tuple[Endpoint, ...] = ()
    if frames_port:
        offered = listen.advertised_frames_port or frames_port
        frames = (Endpoint(FRAMES, host, offered, protocol),)
    return (
        *plaintext,
        Endpoint(ENTRIES, host, listen.advertised_port or port, f"grpc{tls}"),
        Endpoint("http", http_host, http_port, f"http{tls}"),
        *frames,
    )


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in nested groups; prefer the error of a failed disk."""
    found: list[BaseException] = []

    def collect(error: BaseException) -> None:
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                collect(inner)
        else:
            found.append(error)

    collect(group)
    found.sort(key=lambda error: not isinstance(error, StorageFailedError))
    return found[0]


def _note_signal(name: str) -> None:
    _log.warning(
        "signal_ignored",
        signal=name,
        hint="a start reads the file; bookie cluster settings change a running bookie",
    )


def _note(error: BaseException) -> None:
    """Log an error that ended the daemon, with its traceback; ignore a `BookieError`."""
    if not isinstance(error, BookieError):
        _log.error("crashed", error)


def _die(error: BookieError) -> NoReturn:
    """Log the error, then end the process at once; no exit handler runs after a disk failure."""
    _log.error("disk_failed", error, exit_status=EXIT_DISK_FAILED)
    os._exit(EXIT_DISK_FAILED)
