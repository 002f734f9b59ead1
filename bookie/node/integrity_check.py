"""The integrity check: it ends limbo for complete ledgers, and reports the others.

A ledger leaves limbo if its metadata says CLOSED and every entry that this bookie must have is here
and intact. Other ledgers stay in limbo: their next recovery decides the end without this bookie. Of
these the check reads only the fragments before the last. Missing entries must come from other
bookies.

A check covers all ledgers of the metadata store. Missing entries put the bookie in doubt, durably.
When every ledger is whole the doubt ends, durably.

Missing entries alone put no open ledger in limbo. This bookie may have been away when they were
written. Each loss that it knows of put every ledger that named it in limbo before the next request.
A ledger that named it later has no entries here from before the loss: a writer learns the
incarnation of a newcomer after the ledger names it, and a recovery names it by closing the ledger.
So denials outside of limbo are true, and recovery needs them: it finds no end if too many bookies
deny nothing. `_may_be_lost` has the exceptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import NoReturn

from bookie.cluster.ledgers import LedgerManager
from bookie.config import NodeSettings
from bookie.env import Environment, Pause
from bookie.errors import (
    BookieError,
    CorruptionError,
    DiskFullError,
    MetadataError,
    NoSuchLedgerError,
    RequestError,
    StorageFailedError,
)
from bookie.formats.digest import digester_for_key
from bookie.formats.entry import verify_batch
from bookie.formats.ledger_metadata import LedgerMetadata
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.node.holdings import Holding, Missing, holdings, missing_of
from bookie.node.limbo_entry import names
from bookie.storage.admission import Waiter
from bookie.storage.boot.start import Identity
from bookie.storage.engine import Engine
from bookie.storage.index.entry_index import INTEGRITY_IN_LIMBO, INTEGRITY_SOUND
from bookie.storage.ledger_state import LocalLedger
from bookie.storage.reader import ReadResult
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)

ENTRIES_PER_READ = 4096
BYTES_PER_READ = 1024 * 1024
LEDGERS_PER_PAGE = 1000
PAUSE_SECONDS_MAX = 3600.0
UNREADABLE_MAX = 1000
"""After this many unreadable entries of a ledger, the check of it ends."""

PROBLEMS_MAX = 100
"""Sentences that a report holds; counts continue beyond."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check. It counts ledgers of the metadata store that name this bookie."""

    ledgers: int = 0
    released: int = 0
    """Ledgers that this check released from limbo."""
    waiting: int = 0
    """In limbo and not closed: a recovery must find their ends."""
    incomplete: int = 0
    """Something of what is closed in them is missing or cannot be read."""
    missing_entries: int = 0
    unreadable_entries: int = 0
    problems: tuple[str, ...] = ()
    """A sentence for each incomplete ledger, up to `PROBLEMS_MAX`."""
    whole: bool = False
    """True if all entries were present, readable and intact, and no ledger waits or is in doubt."""


@dataclass(slots=True)
class _Progress:
    """A report while it is made."""

    report: CheckReport = field(default_factory=CheckReport)
    limbo_seen: set[int] = field(default_factory=set)
    """Ledgers in limbo that a listing has handled."""

    def count(self, problem: str = "", **more: int) -> None:
        values = {name: getattr(self.report, name) + number for name, number in more.items()}
        problems = self.report.problems
        if problem and len(problems) < PROBLEMS_MAX:
            problems = (*problems, problem)
        self.report = replace(self.report, problems=problems, **values)


class IntegrityCheck:
    """The check of one bookie, repeated while there is doubt, and made on request.

    `end_doubt` records the end of the doubt in the metadata store, then calls its argument.
    """

    def __init__(
        self,
        environment: Environment,
        engine: Engine,
        ledgers: LedgerManager,
        settings: NodeSettings,
        metrics: Metrics,
        identity: Identity,
        end_doubt: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
    ) -> None:
        self._env = environment
        self._engine = engine
        self._ledgers = ledgers
        self._settings = settings
        self._metrics = metrics
        self._bookie_id, self._instance_id = identity.bookie_id, identity.instance_id
        self._end_doubt = end_doubt
        self._asked = False
        self._interval, self._rest = Pause(), Pause()
        self._lock = asyncio.Lock()
        self.report: CheckReport | None = None
        """The result of the last finished check; None before the first."""
        self.unfinished = "no check was made since the start"
        """Why there is no current result; empty once a check has finished."""
        metrics.limbo_ledgers.set_function(lambda: engine.admission.limbo.ledgers)

    def start(self) -> None:
        """Start a check now, or after the current one."""
        self._asked = True
        self._interval.end()

    @property
    def settings(self) -> NodeSettings:
        """Rate and interval of checks; may be replaced at any time."""
        return self._settings

    @settings.setter
    def settings(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._interval.measure_again()
        self._rest.measure_again()

    @property
    def needed(self) -> bool:
        """Whether there is doubt about what is stored."""
        return self._engine.needs_integrity_check

    @property
    def whole(self) -> bool:
        """True if the last check finished, found everything, and no damage was found since."""
        report = None if self.unfinished else self.report
        return report is not None and report.whole and not self.needed

    def status(self) -> dict[str, object]:
        """For an operator: whether all entries are here, and the result of the last check.

        ``whole`` is true only if that is known. ``unfinished`` says why it is not.
        """
        return {
            "needed": self.needed,
            "running": self.running,
            "whole": self.whole,
            "unfinished": self.unfinished,
            "report": None if self.report is None else asdict(self.report),
        }

    async def run(self) -> NoReturn:
        """Check until cancelled. An error of the metadata store postpones a check.

        A check covers all ledgers. While ledgers wait for another client, checks become rarer, down
        to one in `PAUSE_SECONDS_MAX`.
        """
        with suppress(CorruptionError):
            await self._engine.admission.limbo.count(self._engine.ledgers)
        longer = 1.0

        def pause() -> float:
            interval = self._settings.integrity_check_interval_seconds
            return min(longer * interval, max(interval, PAUSE_SECONDS_MAX))

        while True:
            if self.needed or self._asked:
                try:
                    async with self._lock:
                        self._asked = False
                        self._interval.clear()
                        await self._finish_check()
                except (MetadataError, RequestError, CorruptionError, DiskFullError) as error:
                    _log.warning("integrity_check_stopped", reason=str(error))
            if await self._interval.wait(pause):
                longer = 1.0
            elif self.needed:
                longer *= 2

    async def check(self) -> CheckReport:
        """Check every ledger once; the report is kept.

        Raises:
            MetadataError, RequestError: the ledgers could not be listed, or the store holds another
                cluster; results so far are kept.
            DiskFullError: there is no room to record the result.
            StorageFailedError: the engine failed.
        """
        async with self._lock:
            return await self._finish_check()

    @property
    def running(self) -> bool:
        """Whether a check is running, or will be at once."""
        return self._lock.locked() or self._asked

    async def _finish_check(self) -> CheckReport:
        try:
            report = await self._check()
        except BookieError as error:
            self.unfinished = f"the last check could not be finished: {error}"
            raise
        self.unfinished = ""
        return report

    async def _check(self) -> CheckReport:
        found = _Progress()
        # The ledgers of another cluster may have the same ids, and other entries.
        await self._ledgers.require_instance(self._instance_id)
        async for versioned in self._ledgers.list_all():
            if names(versioned.value, self._bookie_id):
                await self._look_at(versioned.value, found)
        await self._ledgers.require_instance(self._instance_id)
        await self._release_others(found)
        report = found.report
        damage = self._engine.scrubber.findings
        whole = not (report.waiting or report.incomplete or damage)
        if not whole:
            await self._doubt()
        elif self._engine.integrity.value == INTEGRITY_IN_LIMBO:
            await self._end_doubt(lambda: self._engine.integrity.set(INTEGRITY_SOUND))
            if self._engine.scrubber.findings:
                # The scrubber found them meanwhile, while the doubt was still recorded.
                await self._doubt()
        self.report = replace(report, whole=whole and not self.needed)
        self._metrics.missing_entries.set(report.missing_entries)
        _log.info(
            "integrity_checked",
            ledgers=report.ledgers,
            released=report.released,
            waiting=report.waiting,
            incomplete=report.incomplete,
            whole=self.report.whole,
        )
        return self.report

    async def _doubt(self) -> None:
        """Record the doubt durably, so that checks continue."""
        if self._engine.integrity.value == INTEGRITY_SOUND:
            await self._engine.integrity.set(INTEGRITY_IN_LIMBO)

    async def _look_at(self, metadata: LedgerMetadata, found: _Progress) -> None:
        ledger_id = metadata.ledger_id
        found.count(ledgers=1)
        try:
            state = await self._engine.load(ledger_id)
            state.users += 1
            try:
                await self._decide(state, metadata, found)
            finally:
                state.users -= 1
        except CorruptionError as error:
            found.count(f"ledger {ledger_id} cannot be checked: {error}", incomplete=1)

    async def _decide(self, state: LocalLedger, metadata: LedgerMetadata, found: _Progress) -> None:
        ledger_id = metadata.ledger_id
        if state.limbo:
            found.limbo_seen.add(ledger_id)
        missing, unreadable = Missing(), Missing()
        for holding in holdings(metadata, self._bookie_id):
            stored = self._engine.entry_ranges(state, holding.first, holding.last)
            missing = missing.plus(await missing_of(holding, stored))
        if state.limbo and metadata.is_closed and not missing.count:
            unreadable = await self._unreadable(state, metadata)
        if missing.count or unreadable.count:
            problem = f"ledger {ledger_id}: {missing.count} entries are missing"
            problem += f" (the first is {missing.first})" if missing.count else ""
            problem += f", {unreadable.count} cannot be read" if unreadable.count else ""
            found.count(
                problem,
                incomplete=1,
                missing_entries=missing.count,
                unreadable_entries=unreadable.count,
            )
            if not state.limbo:
                await self._doubt()
                if self._may_be_lost(state, metadata):
                    await self._set_limbo(state, in_limbo=True)
        elif state.limbo and not metadata.is_closed:
            found.count(f"ledger {ledger_id} is not closed", waiting=1)
        elif state.limbo:
            # The fence may be lost, and until now limbo kept unnamed writers out.
            await self._wait_for(state, self._engine.admission.fence(state, metadata.password_key))
            await self._set_limbo(state, in_limbo=False)
            found.count(released=1)

    def _may_be_lost(self, state: LocalLedger, metadata: LedgerMetadata) -> bool:
        """Whether missing entries of a ledger outside of limbo may have been acknowledged here.

        Damage and a deletion here may have taken them. In a closed ledger any cause is assumed: its
        end is known, so no recovery waits for a denial, and a reader is better told the doubt.
        """
        return metadata.is_closed or state.deleted or bool(self._engine.scrubber.findings)

    async def _unreadable(self, state: LocalLedger, metadata: LedgerMetadata) -> Missing:
        """Read all entries that should be here and verify their digests."""
        digester = digester_for_key(metadata.digest_type, metadata.password_key)
        result = Missing()
        for holding in holdings(metadata, self._bookie_id):
            async for answer in self._answers(state, holding):
                problem = answer.next_entry_id if answer.batch is None else None
                if answer.batch is not None:
                    try:
                        await self._env.workers.run("read", verify_batch, answer.batch, digester)
                    except CorruptionError:
                        problem = answer.batch.first_entry_id
                if problem is not None:
                    result = result.plus(Missing(1, problem))
                    if result.count >= UNREADABLE_MAX:
                        return result
        return result

    async def _answers(self, state: LocalLedger, holding: Holding) -> AsyncIterator[ReadResult]:
        """The results of reading `holding` completely: batches and failures."""
        following = holding.first
        while following <= holding.last:
            answer = await self._engine.read(
                state,
                following,
                holding.last,
                entries_max=ENTRIES_PER_READ,
                bytes_max=BYTES_PER_READ,
                stripe=holding.stripe,
            )
            if self._engine.failure is not None:
                raise StorageFailedError(str(self._engine.failure))
            following = answer.next_entry_id
            if answer.batch is not None:
                yield answer
                await self._keep_to_the_rate(answer.batch.payload_bytes)
            elif answer.stopped_by is not Status.OK:
                yield answer
                following += 1

    async def _keep_to_the_rate(self, size: int) -> None:
        await self._rest.wait(lambda: size / self._settings.integrity_check_bytes_per_second)

    async def _release_others(self, found: _Progress) -> None:
        """Release ledgers in limbo that are gone, or no longer name this bookie."""
        after = NO_ENTRY
        while after != MAX_ID:
            page, after = await self._engine.ledgers(after, LEDGERS_PER_PAGE)
            for item in page:
                if item.row.limbo and item.ledger_id not in found.limbo_seen:
                    await self._release_other(item.ledger_id, found)

    async def _release_other(self, ledger_id: int, found: _Progress) -> None:
        try:
            metadata = (await self._ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            # It is deleted, and leaves limbo with its data.
            return
        if names(metadata, self._bookie_id) or not metadata.is_closed:
            found.count(f"ledger {ledger_id} is in limbo and changed meanwhile", waiting=1)
        else:
            await self._set_limbo(await self._engine.load(ledger_id), in_limbo=False)

    async def _set_limbo(self, state: LocalLedger, *, in_limbo: bool) -> None:
        admission = self._engine.admission
        await self._wait_for(state, admission.set_limbo(state, in_limbo=in_limbo, fence=False))

    async def _wait_for(self, state: LocalLedger, waiter: Waiter) -> None:
        outcome = await waiter
        if self._engine.failure is not None:
            raise StorageFailedError(str(self._engine.failure))
        if outcome.status is not Status.OK:
            raise DiskFullError(f"ledger {state.ledger_id}: {outcome.message}")
