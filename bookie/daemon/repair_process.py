"""A repair process: the auditor and the replicator without a bookie, and metrics over HTTP.

Repair processes are for clusters whose bookies have ``repair.enabled`` off. Several repair
processes share the work: one process audits, and every process locks and repairs ledgers. A repair
process ignores ``repair.enabled``, but ``bookie repair disable`` pauses all repair processes.

SIGTERM and SIGINT make the process release its locks and end.
"""

from __future__ import annotations

import os
import socket

import bookie
from bookie.cluster.cluster_settings import ClusterSettings
from bookie.cluster.instance import read_instance_id
from bookie.config import Settings, Sources
from bookie.daemon.http import Administration, HttpAccess, serve_http
from bookie.daemon.live_settings import LiveSettings, fetch_cluster_settings, open_configured
from bookie.daemon.own_security import prepare_security, watching_certificates
from bookie.daemon.readiness import Part, Readiness
from bookie.daemon.session_policy import obey_session_policy
from bookie.daemon.signals import NOTED_SIGNALS, noting, until_signal
from bookie.env import SystemClock, beside
from bookie.metadata.uri import require_shared
from bookie.repair.service import keep_repairing
from bookie.telemetry import Metrics, configure_logging, event_log, set_log_level

_log = event_log(__name__)


class RepairProcessMetrics(Metrics):
    """The metrics that a repair process shows.

    All other metrics describe a bookie. A repair process hides the metrics of a bookie, because
    their value 0 would raise alerts.
    """

    exposed = (
        "bookie_repair_",
        "bookie_errors",
        "bookie_metadata_away_seconds",
        "bookie_certificate_",
        "bookie_plaintext_",
        "process_",
    )


async def run_repair_process(sources: Sources) -> None:
    """Run a repair process until SIGTERM or SIGINT, then stop it in order.

    Args:
        sources: the values from file, environment and flags.

    Raises:
        ConfigurationError: a setting is wrong, or settings contradict each other.
        CannotStartError: another process already listens on the HTTP address, or the certificate
            and the key do not belong together.
        SessionGivenUpError: the metadata store was unreachable for longer than the policy allows.
        BookieError: the metadata store does not answer, or holds no cluster.
    """
    first = sources.first_settings()
    sources.require_one_store()
    require_shared(first.metadata.uri)
    worker = f"{socket.gethostname()}:{os.getpid()}"
    configure_logging(first.log.level, first.log.format, bookie=worker)
    live = LiveSettings(sources, await fetch_cluster_settings(first))
    configure_logging(live.settings.log.level, live.settings.log.format, bookie=worker)
    _log.info("starting", version=bookie.__version__, metadata=live.settings.metadata.uri)
    try:
        with noting(*NOTED_SIGNALS, note=_note_signal):
            await _run(live, worker)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    _log.info("stopped")


async def _run(live: LiveSettings, worker: str) -> None:
    settings = live.settings
    metrics, readiness = RepairProcessMetrics(), Readiness()
    administration = Administration(worker)
    files = prepare_security(settings, metrics, listeners=("http",))
    async with (
        until_signal() as stop_requested,
        serve_http(
            metrics,
            readiness,
            administration,
            host=settings.http.host,
            port=settings.http.port,
            access=HttpAccess(files),
        ),
        watching_certificates(files, metrics),
        open_configured(settings) as store,
        beside([obey_session_policy(store, settings.session, metrics, readiness)]),
    ):
        instance_id = administration.instance_id = await read_instance_id(store)
        follow = ClusterSettings(store).follow(
            lambda cluster: live.take(cluster, _apply), instance_id=instance_id
        )
        repair = keep_repairing(
            store,
            live.sources,
            settings.rpc,
            lambda: live.settings.repair,
            metrics,
            SystemClock(),
            worker,
        )
        async with beside([follow, repair]):
            readiness.clear(Part.BOOT)
            _log.info("repairing", worker=worker)
            await stop_requested.wait()
            readiness.block(Part.SHUTDOWN, "the process is stopping")
            _log.info("stopping")


def _apply(settings: Settings) -> None:
    set_log_level(settings.log.level)


def _note_signal(name: str) -> None:
    _log.warning("signal_ignored", signal=name)
