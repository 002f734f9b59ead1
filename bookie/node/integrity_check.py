"""The integrity check finds missing entries, and releases complete ledgers from limbo.

A ledger leaves limbo if its metadata says CLOSED and the bookie has every required entry intact.
Other ledgers stay in limbo, and the next recovery of such a ledger finds its end without this
bookie. In a ledger that is not closed, the check covers all fragments except the last. Missing
entries must be copied from other bookies.

A check covers all ledgers of the metadata store. If entries are missing, the bookie durably records
that it is in doubt (it may lack entries). When every ledger is complete, the bookie durably records
that the doubt has ended.

A bookie that is not in doubt also checks: soon after its start, then periodically. Such checks are
needed because a writer may have continued without the bookie while the bookie was absent. Such
checks are slow, trust the entry counts in ledger rows, and look twice before they report a missing
entry.

Missing entries alone put no ledger in limbo, because the bookie may have been absent when the
entries were written. After each known loss, every ledger that named the bookie entered limbo before
the next request. A ledger that named the bookie only after the loss had no entries here before the
loss. When a bookie joins a ledger, the writer reads the bookie's incarnation only after the
ledger's metadata names the bookie. If a recovery adds a bookie to a ledger, the recovery cannot
close the ledger if the bookie's incarnation has changed since. So outside of limbo, the bookie
denies no entry that it acknowledged. Recovery needs denials: it finds the end of a ledger only if
enough bookies deny the next entry. In the cases that `_may_be_lost` lists, missing entries put a
ledger in limbo.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import NoReturn, TypeVar

from bookie.config import NodeSettings
from bookie.entry.batch import EntryBatch
from bookie.entry.checksum import crc32c
from bookie.entry.digest import digester_for_key
from bookie.entry.entry import verify_batch
from bookie.env import Backoff, Environment, Pause
from bookie.errors import (
    BookieError,
    CorruptionError,
    DiskFullError,
    FormatError,
    MetadataError,
    NoSuchLedgerError,
    RequestError,
    StorageFailedError,
)
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerMetadata
from bookie.node.engine.admission import Waiter
from bookie.node.engine.boot.start import Identity
from bookie.node.engine.engine import Engine
from bookie.node.engine.format.arrays import IdRanges
from bookie.node.engine.index.entry_index import INTEGRITY_IN_LIMBO, INTEGRITY_SOUND
from bookie.node.engine.ledger_state import LocalLedger
from bookie.node.engine.reader import ReadResult
from bookie.node.engine.scrub import Scrubber
from bookie.node.holdings import Holding, Missing, holdings, missing_of, nothing_stored
from bookie.node.limbo_entry import names
from bookie.telemetry import Metrics, event_log
from bookie.wire.commands import AddCommand

_log = event_log(__name__)

R = TypeVar("R")

ENTRIES_PER_READ = 4096
BYTES_PER_READ = 1024 * 1024
LEDGERS_PER_PAGE = 1000
PAUSE_SECONDS_MAX = 3600.0
SETTLE_SECONDS = 10.0
"""A bookie that is not in doubt looks again after this time before it reports a missing entry."""

LEDGERS_AT_ONCE = 100
"""The number of ledgers that a slow check lists between two pauses."""

LOCATION_BYTES = 17
"""The approximate number of bytes that the index needs for an entry."""

LACKING_MAX = 100
"""The largest number of ledgers with missing entries that are examined again between two checks."""

INCOMPLETE_MAX = 10_000
"""The largest number of ledgers that one check passes to `IntegrityCheck.on_incomplete`."""

UNREADABLE_MAX = 1000
"""After this many unreadable entries, the check of a ledger ends."""

EXAMPLES_MAX = 5
"""The largest number of ledgers that a log line names."""

PROBLEMS_MAX = 100
"""The largest number of sentences in a report; the counts of the report include all problems."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check, which counts the ledgers whose metadata names this bookie."""

    ledgers: int = 0
    released: int = 0
    """The number of ledgers that this check released from limbo."""
    waiting: int = 0
    """The number of ledgers in limbo that are not closed: a recovery must find their ends."""
    incomplete: int = 0
    """The number of ledgers whose closed part has a missing or unreadable entry."""
    missing_entries: int = 0
    unreadable_entries: int = 0
    problems: tuple[str, ...] = ()
    """A sentence for each incomplete or damaged ledger, up to `PROBLEMS_MAX`."""
    damaged_metadata: int = 0
    """The number of ledgers with unreadable metadata, so their entries here cannot be checked."""
    whole: bool = False
    """True if all entries were present and intact, and no ledger waits or is in doubt."""


@dataclass(slots=True)
class _Progress:
    """A report under construction."""

    report: CheckReport = field(default_factory=CheckReport)
    limbo_seen: set[int] = field(default_factory=set)
    """Ledgers in limbo that the listing of this check has handled."""
    lacking: list[int] = field(default_factory=list)
    """Ledgers with missing entries, up to `LACKING_MAX`."""
    incomplete: list[int] = field(default_factory=list)
    """Ledgers with missing or unreadable entries, up to `INCOMPLETE_MAX`."""

    def count(self, problem: str = "", **more: int) -> None:
        values = {name: getattr(self.report, name) + number for name, number in more.items()}
        problems = self.report.problems
        if problem and len(problems) < PROBLEMS_MAX:
            problems = (*problems, problem)
        self.report = replace(self.report, problems=problems, **values)


class IntegrityCheck:
    """Checks one bookie: often while the bookie is in doubt, otherwise seldom, and on request.

    The function `end_doubt` records the end of the doubt in the metadata store, and then calls its
    argument.
    """

    def __init__(
        self,
        environment: Environment,
        engine: Engine,
        scrubber: Scrubber,
        ledgers: LedgerManager,
        settings: NodeSettings,
        metrics: Metrics,
        identity: Identity,
        end_doubt: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
    ) -> None:
        self._env = environment
        self._engine = engine
        self._scrubber = scrubber
        self._ledgers = ledgers
        self._settings = settings
        self._metrics = metrics
        self._bookie_id, self._instance_id = identity.bookie_id, identity.instance_id
        self._end_doubt = end_doubt
        self._asked = False
        self._interval, self._rest, self._pace = Pause(), Pause(), Pause()
        self._is_look_due = False
        self._lacking: list[int] = []
        """Ledgers with missing entries at the last check, up to `LACKING_MAX`."""
        self._missing_entries = 0
        self._damage: frozenset[tuple[int, int, int]] = frozenset()
        """The scrubber's findings at the start of the last check."""
        self._read: set[int] = set()
        """Ledgers whose entries have all been read, and were correct, since the newest finding.

        Only a read shows which entries a damaged place contained.
        """
        self._finished_at = environment.clock.monotonic()
        self._lock = asyncio.Lock()
        self.report: CheckReport | None = None
        """The result of the last finished check; None before the first check has finished."""
        self.on_incomplete: Callable[[Sequence[int]], object] = lambda _: None
        """Called after each check with the ledgers that have missing or unreadable entries."""
        self.unfinished = "no check was made since the start"
        """The reason why there is no current result; empty once a check has finished."""
        metrics.limbo_ledgers.set_function(lambda: engine.ledgers_in_limbo)
        metrics.integrity_check_age_seconds.set_function(
            lambda: environment.clock.monotonic() - self._finished_at
        )

    def start(self) -> None:
        """Start a check now, or after a running check; that one pauses no more between ledgers."""
        self._asked = True
        self._interval.end()
        self._pace.end()

    def look_again(self) -> None:
        """Examine the ledgers that lacked entries again now, because some may have been deleted."""
        self._is_look_due = True
        self._interval.measure_again()

    @property
    def settings(self) -> NodeSettings:
        """The settings of checks (rate and interval), which may be replaced at any time."""
        return self._settings

    @settings.setter
    def settings(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._interval.measure_again()
        self._rest.measure_again()
        self._pace.measure_again()

    @property
    def needed(self) -> bool:
        """True if the bookie is in doubt: its data may be incomplete or damaged."""
        return self._engine.needs_integrity_check

    @property
    def whole(self) -> bool:
        """True if the last check found every entry, and no damage was found since."""
        report = None if self.unfinished else self.report
        return report is not None and report.whole and not self.needed

    def status(self) -> dict[str, object]:
        """Return the state for an operator, and the result of the last check.

        ``whole`` is true only if all entries are known to be here. If the last check did not
        finish, ``unfinished`` is the reason.
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

        While doubt or errors last, checks become rarer, down to one check in `PAUSE_SECONDS_MAX`.
        Between checks, ledgers that lacked entries are examined again. When each ledger that lacked
        entries is complete, a check starts at once.
        """
        with suppress(CorruptionError):
            await self._engine.count_limbo()
        now = asyncio.get_running_loop().time
        rarer = Backoff(1.0, math.inf)  # a number of check intervals
        last, longer, share = now(), rarer.next(), self._random_share()
        is_first, has_failed = True, False

        def pause() -> float:
            interval = self._settings.integrity_check_interval_seconds
            if self.needed or has_failed:
                return min(longer * interval, max(interval, PAUSE_SECONDS_MAX))
            if is_first:
                return share * interval
            return (0.75 + share / 2) * self._settings.integrity_check_repeat_seconds

        is_due = self.needed
        while True:
            if is_due or self._asked:
                is_first = False
                has_failed = not await self._try(self._check_in_turn())
                last, share = now(), self._random_share()
            began = now()

            def until_next_look(began: float = began, last: float = last) -> float:
                until_check = last + pause() - began
                if not self._lacking:
                    return until_check
                if self._is_look_due:
                    return 0.0
                return min(until_check, self._settings.integrity_check_interval_seconds)

            is_asked = await self._interval.wait(until_next_look)
            self._is_look_due = False
            is_due = now() >= last + pause()
            if not (is_due or is_asked):
                is_asked = is_due = bool(await self._try(self._is_filled()))
            if is_asked:
                rarer.reset()
                longer = rarer.next()
            elif is_due and (self.needed or has_failed):
                longer = rarer.next()

    async def _try(self, work: Awaitable[R]) -> R | None:
        """Return the result of `work`; None if the store or the index fails, or a disk is full."""
        try:
            return await work
        except (MetadataError, RequestError, CorruptionError, DiskFullError) as error:
            _log.warning("integrity_check_stopped", reason=str(error))
            return None

    async def _check_in_turn(self) -> bool:
        async with self._lock:
            is_asked, self._asked = self._asked, False
            self._interval.clear()
            self._pace.clear()
            await self._finish_check(is_asked=is_asked)
        return True

    def _random_share(self) -> float:
        """Return a random number in 0 … 1, so that bookies do not all check at the same time."""
        return int.from_bytes(self._env.clock.nonce()[:4], "big") / 2**32

    async def _is_filled(self) -> bool:
        """True if the last check found ledgers with missing entries that are all complete now."""
        for ledger_id in self._lacking:
            metadata = await self._current(ledger_id)
            if metadata is None:
                continue
            state = await self._engine.load(ledger_id)
            if (await self._missing(state, list(holdings(metadata, self._bookie_id)))).count:
                return False
        return bool(self._lacking)

    async def check(self) -> CheckReport:
        """Check every ledger once, with all entries and without pauses between ledgers.

        Raises:
            MetadataError, RequestError: the ledgers could not be listed, or the store belongs to
                another cluster. Ledgers that were released stay released.
            DiskFullError: there is no room to record the result.
            StorageFailedError: the engine failed.
        """
        async with self._lock:
            return await self._finish_check(is_asked=True)

    @property
    def running(self) -> bool:
        return self._lock.locked() or self._asked

    async def _finish_check(self, *, is_asked: bool) -> CheckReport:
        try:
            report = await self._check(is_asked=is_asked)
        except BookieError as error:
            self.unfinished = f"the last check could not be finished: {error}"
            raise
        self.unfinished = ""
        self._finished_at = self._env.clock.monotonic()
        return report

    async def _check(self, *, is_asked: bool) -> CheckReport:
        found = _Progress()
        await self._settle_damage()
        damage = self._engine.damage
        if is_asked or damage - self._damage:
            self._read.clear()
        self._damage = damage
        was_sound = not self.needed
        is_deep = is_asked or not was_sound
        # The ledgers of another cluster may have the same ids, and other entries.
        await self._ledgers.require_instance(self._instance_id)
        async with aclosing(self._listed(found, is_asked=is_asked)) as listed:
            lacking = [
                metadata.ledger_id
                async for metadata in listed
                if await self._look_at(metadata, found, is_deep=is_deep)
            ]
        if lacking and was_sound and not is_asked:
            await self._pace.wait(lambda: SETTLE_SECONDS)
        for ledger_id in lacking:
            # The ledger may have been deleted or changed its ensemble since it was listed.
            current = await self._current(ledger_id)
            if current is not None:
                await self._look_at(current, found, is_deep=True, is_final=True)
        await self._ledgers.require_instance(self._instance_id)
        await self._release_others(found)
        report = found.report
        if not report.incomplete:
            await self._settle_damage()
        damage = self._engine.damage
        whole = not (report.waiting or report.incomplete) and await self._is_spare(damage)
        if not whole:
            await self._doubt()
        elif report.damaged_metadata:
            # The bookies of a ledger with damaged metadata are unknown. Such a ledger causes no
            # doubt, but an existing doubt stays.
            whole = False
        elif self._engine.verdict == INTEGRITY_IN_LIMBO:
            await self._end_doubt(lambda: self._engine.set_verdict(INTEGRITY_SOUND))
            if self._engine.damage - damage:
                # The scrubber found damage while the doubt was still recorded.
                await self._doubt()
        self.report = replace(report, whole=whole and not self.needed)
        self._tell(report, found.lacking)
        self.on_incomplete(found.incomplete)
        _log.info(
            "integrity_checked",
            ledgers=report.ledgers,
            released=report.released,
            waiting=report.waiting,
            incomplete=report.incomplete,
            whole=self.report.whole,
        )
        return self.report

    async def _settle_damage(self) -> None:
        """Forget each damaged place into which the index no longer points."""
        if self._engine.damage:
            await self._engine.checkpoint()  # the scrubber examines the index, not the memtable
            await self._scrubber.settle()

    async def _is_spare(self, damage: frozenset[tuple[int, int, int]]) -> bool:
        """True if metadata does not require this bookie to store any entry in a damaged place.

        Two kinds of entries may stay in damaged places: entries after the end of a closed ledger,
        and entries that other bookies must store now. If a client reads a damaged entry, the client
        gets an error or a wrong digest, never a denial.
        """
        if not damage:
            return True
        metadata: LedgerMetadata | None = None
        try:
            async for ledger_id, ids in self._scrubber.entries_in_damage():
                if metadata is None or metadata.ledger_id != ledger_id:
                    metadata = (await self._ledgers.read(ledger_id)).value
                if not metadata.is_closed:
                    return False
                if any(one.holds_any(ids) for one in holdings(metadata, self._bookie_id)):
                    self._read.discard(ledger_id)  # read again: entries may be newly required
                    return False
        except (CorruptionError, FormatError, NoSuchLedgerError):
            return False
        return True

    def _tell(self, report: CheckReport, lacking: list[int]) -> None:
        """Export the number of missing entries; log its change from 0, and its change to 0."""
        before, self._missing_entries = self._missing_entries, report.missing_entries
        self._lacking = lacking
        self._metrics.missing_entries.set(report.missing_entries)
        if report.missing_entries and not before:
            some = [str(ledger_id) for ledger_id in lacking[:EXAMPLES_MAX]]
            _log.warning("entries_missing", entries=report.missing_entries, ledgers=some)
        elif before and not report.missing_entries:
            _log.info("no_more_entries_missing")

    async def _listed(
        self, found: _Progress, *, is_asked: bool
    ) -> AsyncGenerator[LedgerMetadata, None]:
        """Yield the ledgers that name this bookie; pause between parts of the listing."""
        after, damaged = NO_ENTRY, set[int]()
        while after < MAX_ID:
            count = 0
            listing = self._ledgers.list_readable(damaged.add, after)
            async with aclosing(listing) as ledgers:  # type: ignore[type-var]
                async for versioned in ledgers:
                    if names(versioned.value, self._bookie_id):
                        yield versioned.value
                    after, count = versioned.value.ledger_id, count + 1
                    if count == LEDGERS_AT_ONCE and not is_asked and not self._is_urgent:
                        break
                else:
                    break
            await self._pace.wait(self._rest_of_a_listing)
        for ledger_id in sorted(damaged):
            found.count(f"the metadata of ledger {ledger_id} is damaged", damaged_metadata=1)

    @property
    def _is_urgent(self) -> bool:
        """True if a check should hurry: it may release ledgers, or an operator waits."""
        return self._asked or self._engine.ledgers_in_limbo > 0

    def _rest_of_a_listing(self) -> float:
        return LEDGERS_AT_ONCE / self._settings.integrity_check_ledgers_per_second

    async def _current(self, ledger_id: int) -> LedgerMetadata | None:
        """Read a ledger's metadata now; None if it was deleted or does not name this bookie."""
        try:
            metadata = (await self._ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            return None
        return metadata if names(metadata, self._bookie_id) else None

    async def _doubt(self) -> None:
        """Durably record that the bookie is in doubt, so that checks continue."""
        if self._engine.verdict == INTEGRITY_SOUND:
            await self._engine.set_verdict(INTEGRITY_IN_LIMBO)

    async def _look_at(
        self, metadata: LedgerMetadata, found: _Progress, *, is_deep: bool, is_final: bool = False
    ) -> bool:
        """Check and count a ledger; if it must be checked again, return True and do not count it.

        Args:
            metadata: the metadata of the ledger, which names this bookie.
            found: the report under construction.
            is_deep: list the ledger's entries even if its row counts enough entries.
            is_final: report missing entries now, instead of asking for another check.
        """
        ledger_id = metadata.ledger_id
        try:
            state = await self._engine.load(ledger_id)
            state.users += 1
            try:
                held = list(holdings(metadata, self._bookie_id))
                if state.limbo:
                    found.limbo_seen.add(ledger_id)
                missing = Missing()
                if not state.accepts_key(metadata.password_key):
                    # This bookie stores another ledger with this id.
                    for holding in held:
                        missing = missing.plus(await missing_of(holding, nothing_stored()))
                elif is_deep or state.limbo or not _is_counted(state, held):
                    missing = await self._missing(state, held)
                if missing.count and not is_final:
                    return True
                found.count(ledgers=1)
                await self._decide(state, metadata, missing, found)
            finally:
                state.users -= 1
        except CorruptionError as error:
            found.count(f"ledger {ledger_id} cannot be checked: {error}", ledgers=1, incomplete=1)
        return False

    async def _missing(self, state: LocalLedger, held: Sequence[Holding]) -> Missing:
        """List the ledger's entries in the index, and return the missing entries of `held`."""
        missing = Missing()
        for holding in held:
            stored = self._engine.entry_ranges(state, holding.first, holding.last)
            missing = missing.plus(await missing_of(holding, self._slowly(stored)))
        return missing

    async def _slowly(self, listing: AsyncIterator[IdRanges]) -> AsyncIterator[IdRanges]:
        async for firsts, lasts in listing:
            yield firsts, lasts
            await self._keep_to_the_rate(LOCATION_BYTES * int((lasts - firsts + 1).sum()))

    async def _decide(
        self, state: LocalLedger, metadata: LedgerMetadata, missing: Missing, found: _Progress
    ) -> None:
        ledger_id = metadata.ledger_id
        unreadable = Missing()
        is_suspect = state.limbo or (bool(self._damage) and ledger_id not in self._read)
        if is_suspect and metadata.is_closed and not missing.count:
            unreadable = await self._unreadable(state, metadata)
            if not unreadable.count:
                self._read.add(ledger_id)
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
            if missing.count and len(found.lacking) < LACKING_MAX:
                found.lacking.append(ledger_id)
            if len(found.incomplete) < INCOMPLETE_MAX:
                found.incomplete.append(ledger_id)
            if not state.limbo:
                await self._doubt()
                if self._may_be_lost(state):
                    await self._set_limbo(state, in_limbo=True)
        elif state.limbo and not metadata.is_closed:
            found.count(f"ledger {ledger_id} is not closed", waiting=1)
        elif state.limbo:
            # The fence may be lost: fence again. So far, limbo refused writers without incarnation.
            await self._wait_for(state, self._engine.fence(state, metadata.password_key))
            await self._set_limbo(state, in_limbo=False)
            found.count(released=1)

    def _may_be_lost(self, state: LocalLedger) -> bool:
        """True if missing entries of a ledger outside of limbo may have been acknowledged here.

        Damage, a deletion of the ledger, or a reclaim of its copies may have removed acknowledged
        entries. If metadata names deleted or reclaimed entries again, the store may have gone back
        in time.
        """
        return state.deleted or state.reclaimed or bool(self._engine.damage)

    async def _unreadable(self, state: LocalLedger, metadata: LedgerMetadata) -> Missing:
        """Read and verify all entries that this bookie must store; count the unreadable entries."""
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
                if problem is None and answer.batch is not None and self._engine.damage:
                    await self._save(state, metadata, answer.batch)
                if problem is not None:
                    result = result.plus(Missing(1, problem))
                    if result.count >= UNREADABLE_MAX:
                        return result
        return result

    async def _save(self, state: LocalLedger, metadata: LedgerMetadata, batch: EntryBatch) -> None:
        """Store verified entries again if their stored copies are in a damaged place."""
        ids = await self._scrubber.ids_in_damage(state.ledger_id, batch.entry_ids())
        if not len(ids):
            return
        part = batch.clip(int(ids[0]), int(ids[-1]))
        key = metadata.password_key
        crc = crc32c(part.payload)
        if self._engine.refusal(state, key, recovery=True) is not None:
            return  # the ledger was deleted meanwhile
        command = AddCommand(part, state.ledger_id, key, crc, recovery=True)
        await self._wait_for(state, self._engine.add(state, command, NO_ENTRY))

    async def _answers(self, state: LocalLedger, holding: Holding) -> AsyncIterator[ReadResult]:
        """Read all entries of `holding`; yield each result, a batch or a failure."""
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
        """Release closed ledgers in limbo whose metadata no longer names this bookie.

        A deleted ledger stays in limbo until garbage collection removes its data.
        """
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
            # The ledger is deleted: its limbo ends when garbage collection removes its data.
            return
        except FormatError:
            return  # the report counts this ledger, which may name this bookie
        if names(metadata, self._bookie_id) or not metadata.is_closed:
            found.count(f"ledger {ledger_id} is in limbo and changed meanwhile", waiting=1)
        else:
            await self._set_limbo(await self._engine.load(ledger_id), in_limbo=False)

    async def _set_limbo(self, state: LocalLedger, *, in_limbo: bool) -> None:
        waiter = self._engine.set_limbo(state, in_limbo=in_limbo, fence=False)
        await self._wait_for(state, waiter)

    async def _wait_for(self, state: LocalLedger, waiter: Waiter) -> None:
        outcome = await waiter
        if self._engine.failure is not None:
            raise StorageFailedError(str(self._engine.failure))
        if outcome.status is not Status.OK:
            raise DiskFullError(f"ledger {state.ledger_id}: {outcome.message}")


def _is_counted(state: LocalLedger, held: Sequence[Holding]) -> bool:
    """True if the row of a ledger proves that all entries in `held` are stored here.

    A row has only a count and bounds of the stored ids. The count is a proof only if every stored
    id must be in `held`: `held` is one run of ids and contains the row's bounds. If the row counts
    more entries than `held`, a larger write quorum placed other entries here. These may hide
    missing entries.
    """
    if state.deleted:
        return False
    if not held:
        return True
    first, last = held[0].first, held[-1].last
    is_one_run = all(
        one.last + 1 == following.first and one.stripe == following.stripe
        for one, following in pairwise(held)
    )
    return (
        is_one_run
        and first <= state.first_entry_id
        and state.last_entry_id <= last
        and state.entries == sum(one.entries for one in held)
    )
