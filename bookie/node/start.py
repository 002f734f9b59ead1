"""Starts a bookie in nested steps, and stops it in the reverse order.

1. The directories are locked for this process.
2. The cookies are compared, or created if the bookie is new.
3. The engine starts: index, replay, new journal.
4. If acknowledged data may be lost, the bookie gets a new incarnation. Then every ledger that names
   the bookie enters limbo.
5. The bookie serves requests, and the integrity check examines the ledgers in limbo.

In step 4, the new incarnation is durable before the ledgers enter limbo; limbo is durable before
step 5. A ledger that was created before the new incarnation was published is listed, and enters
limbo. The writer of a ledger that is created later learns the new incarnation, or is refused.

The caller registers the bookie last, so that clients find it only when its answers are reliable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import bookie
from bookie.cluster.cookies import CookieManager
from bookie.config import GarbageSettings, NodeSettings, StorageSettings
from bookie.env import Environment, beside, is_disk_full
from bookie.errors import ConfigurationError, DiskFullError, StorageFailedError
from bookie.ledger.catalog.bookie_losses import BookieLosses
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.node.bookie import Bookie, open_bookie
from bookie.node.disk_watch import DiskWatch
from bookie.node.engine.boot.start import Identity
from bookie.node.engine.directories import Directories, locked_directories
from bookie.node.engine.engine import Engine, open_engine
from bookie.node.engine.index.entry_index import INTEGRITY_SOUND, INTEGRITY_SUSPECT
from bookie.node.engine.index.opening import make_index
from bookie.node.garbage import GarbageCollector
from bookie.node.identity import ClaimedDirectories, Decision, ensure_identity
from bookie.node.integrity_check import IntegrityCheck
from bookie.node.limbo_entry import put_ledgers_in_limbo
from bookie.node.own_cookie import OwnCookie
from bookie.node.read_only_switch import ReadOnlySwitch
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class StartedBookie:
    """A bookie that serves requests, with its engine and its other parts."""

    bookie: Bookie
    engine: Engine
    garbage: GarbageCollector
    check: IntegrityCheck
    watch: DiskWatch
    cookie: OwnCookie
    switch: ReadOnlySwitch

    def apply(
        self, storage: StorageSettings, limits: NodeSettings, garbage: GarbageSettings
    ) -> None:
        """Apply new settings; only dynamic settings take effect.

        Each part keeps its section of the settings in its attribute `settings`, and reads this
        section in each round.
        """
        self.engine.apply(storage)
        for part in (self.bookie, self.check, self.watch):
            if part.settings != limits:
                part.settings = limits
        if self.garbage.settings != garbage:
            self.garbage.settings = garbage


async def _claim(
    environment: Environment,
    storage: StorageSettings,
    directories: Directories,
    cookies: CookieManager,
    bookie_id: str,
    instance_id: str,
    losses: BookieLosses | None,
) -> ClaimedDirectories:
    """Claim the directories for this bookie, and translate errors of their devices."""
    furnish = partial(make_index, environment, storage, directories)
    try:
        return await ensure_identity(
            environment, directories, cookies, bookie_id, instance_id, furnish, losses
        )
    except (OSError, DiskFullError) as error:
        if is_disk_full(error):
            raise ConfigurationError(f"no room for cookies and index: {error}") from error
        raise StorageFailedError(f"a cookie or the index failed: {error}") from error


def _is_suspect(integrity: bytes, own: OwnCookie) -> bool:
    """True if a ledger that may have lost entries may not be in limbo yet.

    ========= ===================== ==========================================================
    index     cookie                meaning
    ========= ===================== ==========================================================
    suspect   any                   data is damaged or missing; no ledgers were put in limbo
    in limbo  with an incarnation   all ledgers in doubt are in limbo
    in limbo  no incarnation        an older version put only open ledgers in limbo
    sound     in doubt              a new bookie, or a crash before the index said "suspect"
    sound     not in doubt          nothing is missing
    ========= ===================== ==========================================================
    """
    if integrity == INTEGRITY_SOUND:
        return own.is_in_doubt
    return integrity == INTEGRITY_SUSPECT or not own.incarnation


async def _settle_doubts(
    directories: Directories,
    engine: Engine,
    own: OwnCookie,
    ledgers: LedgerManager,
    collector: GarbageCollector,
    bookie_id: str,
) -> None:
    """Before any request: if data may be lost, renew the incarnation, then put ledgers in limbo.

    Otherwise only the state number increases; if the store went back in time, the incarnation is
    renewed, too. Each step is durable before the next step begins. After a crash between two steps,
    the bookie is still in doubt.

    Raises:
        MetadataError: the store does not answer, so the bookie must not serve.
        StorageFailedError: a disk failed.
    """
    found = own.comparison
    if found.store_went_back:
        # Record the doubt first: once the state number is increased, nothing shows that the store
        # went back.
        reason = found.store_went_back
        await _even_if_full(directories, lambda: collector.doubt_store(reason))
    if found.older:
        _log.error("older_state", reason=found.older)
    if not (found.older or _is_suspect(engine.verdict, own)):
        # A store that went back in time may have an old incarnation.
        await own.advance(renew=bool(found.store_went_back))
        return
    await _even_if_full(directories, lambda: engine.set_verdict(INTEGRITY_SUSPECT))
    await own.advance(renew=True, is_in_doubt=True)
    _log.info("incarnation_renewed", incarnation=own.incarnation)
    if not await put_ledgers_in_limbo(engine, ledgers, bookie_id):
        await own.advance(is_in_doubt=False)


async def _even_if_full(
    directories: Directories, record: Callable[[], Coroutine[None, None, None]]
) -> None:
    """Record a doubt, which must be durable even on a full device; the device has a reserve."""
    try:
        await record()
    except DiskFullError:
        directories.release_reserve()
        await record()


@asynccontextmanager
async def _advanced_at_the_end(own: OwnCookie) -> AsyncIterator[None]:
    """Increase the state number after an orderly stop, so that earlier copies are outdated."""
    yield
    await own.stop()


def _disk_watch(
    environment: Environment,
    storage: StorageSettings,
    directories: Directories,
    served: Bookie,
    engine: Engine,
    metrics: Metrics,
) -> DiskWatch:
    return DiskWatch(
        served,
        engine,
        served.settings,
        metrics,
        lambda: {
            "journal": environment.disk.usage(directories.journal),
            "ledgers": environment.disk.usage(directories.ledgers),
        },
        lambda: environment.workers.run("room", directories.has_room, storage.journal_step_bytes),
    )


_GARBAGE_DEFAULTS = GarbageSettings()


@asynccontextmanager
async def start_bookie(
    environment: Environment,
    storage: StorageSettings,
    limits: NodeSettings,
    metrics: Metrics,
    *,
    cookies: CookieManager,
    ledgers: LedgerManager,
    bookie_id: str,
    instance_id: str,
    garbage: GarbageSettings = _GARBAGE_DEFAULTS,
    losses: BookieLosses | None = None,
) -> AsyncIterator[StartedBookie]:
    """Start a bookie; stop it in order at the end of the ``with`` block.

    With `losses`, a bookie that lost all its data may start empty (`ensure_identity`).

    Raises:
        DirectoryLockedError: another process uses the directories.
        CookieError: the directories belong to another bookie, or a cookie is missing.
        MetadataError: the metadata store does not answer.
        FormatError: a newer version wrote a file in the directories.
        ConfigurationError: a directory cannot be used, or its device is full.
        StorageFailedError: (in an exception group) a disk failed; the process must exit with code
            74.
    """
    with locked_directories(environment.disk, storage) as directories:
        claim = await _claim(
            environment, storage, directories, cookies, bookie_id, instance_id, losses
        )
        own = claim.cookie
        stamped_before = claim.decision is Decision.START
        identity = Identity(bookie_id, instance_id, stamped_before=stamped_before)
        async with (
            _advanced_at_the_end(own),
            open_engine(environment, storage, metrics, directories, identity) as engine,
        ):
            collector = GarbageCollector(
                environment.clock, engine, ledgers, instance_id, garbage, metrics, bookie_id
            )
            await _settle_doubts(directories, engine, own, ledgers, collector, bookie_id)
            async with open_bookie(
                engine,
                limits,
                metrics,
                bookie_id=bookie_id,
                instance_id=instance_id,
                incarnation=own.incarnation,
                version=bookie.__version__,
                usage=lambda: environment.disk.usage(directories.ledgers),
            ) as served:
                watch = _disk_watch(environment, storage, directories, served, engine, metrics)
                switch = ReadOnlySwitch(environment, directories, served)
                await switch.load()
                check = IntegrityCheck(
                    environment,
                    engine,
                    engine.scrubber,
                    ledgers,
                    limits,
                    metrics,
                    identity,
                    own.end_doubt,
                )
                collector.on_deletions = check.look_again
                work = [
                    watch.run(),
                    collector.run(),
                    check.run(),
                    engine.scrub(),
                    own.keep(
                        lambda: engine.needs_integrity_check,
                        lambda: metrics.journal_bytes_total.value,
                        collector.doubt_store,
                    ),
                ]
                try:
                    async with beside(work):
                        yield StartedBookie(served, engine, collector, check, watch, own, switch)
                finally:
                    own.is_in_doubt_at_stop = engine.needs_integrity_check
