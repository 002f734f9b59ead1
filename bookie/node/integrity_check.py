"""Taking ledgers out of limbo that have lost nothing, and saying what the others wait for.

A ledger leaves limbo when its metadata says that it is closed, and every entry that ensembles and
write sets give to this bookie is here and reads as what it should be. A ledger that is not closed
stays: where it ends is for its next recovery to say, without this bookie's word. What is missing
has to come from other bookies.

A check goes over all ledgers of the metadata store, not only those in limbo: a recovery that was
under way while this bookie lost its data may have named it since, and its entries may be gone, too.
When every ledger is whole the doubt is over, durably.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field, replace
from typing import NoReturn

from bookie.cluster.ledgers import LedgerManager
from bookie.config import NodeSettings
from bookie.env import Environment, Pause
from bookie.errors import (
    CorruptionError,
    DiskFullError,
    MetadataError,
    NoSuchLedgerError,
    StorageFailedError,
)
from bookie.formats.digest import digester_for_key
from bookie.formats.entry import verify_batch
from bookie.formats.ledger_metadata import LedgerMetadata
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.node.holdings import Holding, Missing, holdings, missing_of
from bookie.node.integrity import names
from bookie.storage.engine import Engine
from bookie.storage.index import INTEGRITY_IN_LIMBO, INTEGRITY_SOUND
from bookie.storage.ledger_state import LedgerState
from bookie.storage.reader import ReadResult, Stripe
from bookie.telemetry import Metrics, event_log

_log = event_log(__name__)

ENTRIES_PER_READ = 4096
BYTES_PER_READ = 1024 * 1024
LEDGERS_PER_PAGE = 1000
PAUSE_SECONDS_MAX = 3600.0
UNREADABLE_MAX = 1000
"""Entries of one ledger that cannot be read; it is not worth trying more of them."""

PROBLEMS_MAX = 100
"""Sentences that a report holds; the counts go on."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found. Ledgers of the metadata store that name this bookie are counted."""

    ledgers: int = 0
    released: int = 0
    """Out of limbo by this check."""
    waiting: int = 0
    """In limbo and not closed: a recovery has to find their ends."""
    incomplete: int = 0
    """Closed, and something is missing or cannot be read."""
    missing_entries: int = 0
    unreadable_entries: int = 0
    problems: tuple[str, ...] = ()
    """A sentence for each ledger that is not whole, as many as are worth reading."""
    whole: bool = False
    """Whether the doubt is over."""


@dataclass(slots=True)
class _Found:
    """A report while it is made."""

    report: CheckReport = field(default_factory=CheckReport)
    limbo_seen: set[int] = field(default_factory=set)
    """Ledgers in limbo that a listing has dealt with."""

    def count(self, problem: str = "", **more: int) -> None:
        values = {name: getattr(self.report, name) + number for name, number in more.items()}
        problems = self.report.problems
        if problem and len(problems) < PROBLEMS_MAX:
            problems = (*problems, problem)
        self.report = replace(self.report, problems=problems, **values)


class IntegrityCheck:
    """The check of one bookie, again and again while there is doubt, and whenever asked for."""

    def __init__(
        self,
        environment: Environment,
        engine: Engine,
        ledgers: LedgerManager,
        settings: NodeSettings,
        metrics: Metrics,
        *,
        bookie_id: str,
    ) -> None:
        self._env = environment
        self._engine = engine
        self._ledgers = ledgers
        self._settings = settings
        self._metrics = metrics
        self._bookie_id = bookie_id
        self._asked = False
        self._interval, self._rest = Pause(), Pause()
        self._lock = asyncio.Lock()
        self.report: CheckReport | None = None
        """What the last check found; None before the first."""

    def start(self) -> None:
        """Have a check made now, or a second one if one is being made."""
        self._asked = True
        self._interval.end()

    @property
    def settings(self) -> NodeSettings:
        """How often and how fast is checked; may be replaced at any time."""
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

    def status(self) -> dict[str, object]:
        """For an operator: whether a check is needed or running, and what the last one found."""
        report = None if self.report is None else asdict(self.report)
        return {"needed": self.needed, "running": self.running, "report": report}

    async def run(self) -> NoReturn:
        """Check, until cancelled; trouble with the metadata store is for the next time.

        A check goes over all ledgers, so that what waits for somebody else is looked at ever less
        often, down to once in `PAUSE_SECONDS_MAX`.
        """
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
                        await self._check()
                except (MetadataError, CorruptionError, DiskFullError) as error:
                    _log.warning("integrity_check_stopped", reason=str(error))
            if await self._interval.wait(pause):
                longer = 1.0
            elif self.needed:
                longer *= 2

    async def check(self) -> CheckReport:
        """Look at every ledger once; the report is kept.

        Raises:
            MetadataError: the ledgers could not be listed; what was found so far stays true.
            DiskFullError: there is no room to remember what was found.
            StorageFailedError: the engine failed.
        """
        async with self._lock:
            return await self._check()

    @property
    def running(self) -> bool:
        """Whether a check is being made, or will be at once."""
        return self._lock.locked() or self._asked

    async def _check(self) -> CheckReport:
        found = _Found()
        async for versioned in self._ledgers.list_all():
            if names(versioned.value, self._bookie_id):
                await self._look_at(versioned.value, found)
        await self._release_others(found)
        report = found.report
        damage = self._engine.scrubber.findings
        whole = not (report.waiting or report.incomplete or damage)
        if whole and self._engine.integrity.value == INTEGRITY_IN_LIMBO:
            await self._engine.integrity.set(INTEGRITY_SOUND)
        self.report = replace(report, whole=not self.needed)
        self._metrics.limbo_ledgers.set(report.waiting + report.incomplete)
        _log.info(
            "integrity_checked",
            ledgers=report.ledgers,
            released=report.released,
            waiting=report.waiting,
            incomplete=report.incomplete,
            whole=self.report.whole,
        )
        return self.report

    async def _look_at(self, metadata: LedgerMetadata, found: _Found) -> None:
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

    async def _decide(self, state: LedgerState, metadata: LedgerMetadata, found: _Found) -> None:
        ledger_id = metadata.ledger_id
        if state.limbo:
            found.limbo_seen.add(ledger_id)
        if not metadata.is_closed:
            if state.limbo:
                found.count(f"ledger {ledger_id} is not closed", waiting=1)
            return
        missing, unreadable = Missing(), Missing()
        for holding in holdings(metadata, self._bookie_id):
            stored = self._engine.entry_ranges(state, holding.first, holding.last)
            missing = missing.plus(await missing_of(holding, stored))
        if state.limbo and not missing.count:
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
                await self._set_limbo(state, in_limbo=True)
        elif state.limbo:
            await self._set_limbo(state, in_limbo=False)
            found.count(released=1)

    async def _unreadable(self, state: LedgerState, metadata: LedgerMetadata) -> Missing:
        """Read everything that should be here, with its digests; nothing of it is missing."""
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

    async def _answers(self, state: LedgerState, holding: Holding) -> AsyncIterator[ReadResult]:
        """What reading `holding` from its start to its end brings: batches, and what failed."""
        stripe = Stripe(holding.stripe.modulus, holding.stripe.first_residue, holding.stripe.count)
        following = holding.first
        while following <= holding.last:
            answer = await self._engine.read(
                state,
                following,
                holding.last,
                entries_max=ENTRIES_PER_READ,
                bytes_max=BYTES_PER_READ,
                stripe=stripe,
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

    async def _release_others(self, found: _Found) -> None:
        """Ledgers in limbo that are gone, or that do not name this bookie any more."""
        after = NO_ENTRY
        while after != MAX_ID:
            page, after = await self._engine.ledgers(after, LEDGERS_PER_PAGE)
            for item in page:
                if item.row.limbo and item.ledger_id not in found.limbo_seen:
                    await self._release_other(item.ledger_id)

    async def _release_other(self, ledger_id: int) -> None:
        try:
            metadata = (await self._ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            # Nobody asks for it; it leaves with its data.
            return
        if metadata.is_closed and not names(metadata, self._bookie_id):
            await self._set_limbo(await self._engine.load(ledger_id), in_limbo=False)

    async def _set_limbo(self, state: LedgerState, *, in_limbo: bool) -> None:
        admission = self._engine.admission
        outcome = await admission.set_limbo(state, in_limbo=in_limbo, fence=False)
        if self._engine.failure is not None:
            raise StorageFailedError(str(self._engine.failure))
        if outcome.status is not Status.OK:
            raise DiskFullError(f"ledger {state.ledger_id}: {outcome.message}")
