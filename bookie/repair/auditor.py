"""The auditor: one bookie of a cluster finds the ledgers that lack copies, and marks them.

The bookies elect the auditor. Two auditors do no harm, because an auditor only adds bookies to
marks. The auditor marks a ledger if

- a fragment whose entries no longer change names a bookie that is lost or leaving, or has a vacant
  slot (a place without a bookie);
- a registered bookie lacks entries that it must store according to the metadata.

The auditor also recovers open ledgers whose writer is gone (`OpenLedgers`).

A *survey* checks all ledgers. The auditor makes a survey when it begins, and when a bookie is lost
or leaves. The auditor also makes a survey when a bookie comes back, has another incarnation, or has
its cookie added or deleted. While bookies are lost or leaving, the auditor also makes surveys
periodically. A survey reads how many entries each copy has, and lists the entries of a copy that
has too few entries.

An *audit* is a survey that lists every entry of every copy. An audit may take hours, so it runs
concurrently with other surveys, at a long interval. If a bookie does not answer, the audit is
incomplete and must be repeated. The pause before the repetition is 20 times as long as the audit:
at least 60 s, and at most the interval.

If too large a share of all bookies is away, no bookie is declared lost, because the network may be
split. Read-only bookies count as present.

Source: BookKeeper's Auditor, whose checks read the first and the last entry of a fragment only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from bookie.cluster import keys
from bookie.coordination.election import Election, LeaderState
from bookie.coordination.participant import Participant
from bookie.env import Backoff, gather
from bookie.errors import FormatError, MetadataClosedError, NewerFormatError
from bookie.ids import is_vacant
from bookie.ledger.copies.departures import Departures
from bookie.ledger.copies.marks import UnderreplicationManager
from bookie.ledger.copies.repair_history import forget_strangers
from bookie.ledger.copies.replica_plan import settled_fragments
from bookie.ledger.metadata import LedgerMetadata
from bookie.repair.absence import AbsenceVerdict, BookieAbsence
from bookie.repair.comparison import CopyComparison, listed_bookies
from bookie.repair.open_ledgers import UNSEEN_SECONDS_MAX, OpenLedgers
from bookie.repair.worker import RepairWorker
from bookie.telemetry import event_log

AUDIT = "replicas"
"""The name of the audit in `marks.CHECKS`, the checks whose finishing times are recorded."""

ROUND_SECONDS = 1.0
"""The time between two reads of the registrations, in seconds."""

SURVEY_SECONDS, SURVEY_SECONDS_MAX = 60.0, 3600.0
"""Seconds between surveys while bookies are gone; doubled after a survey that finds nothing."""
REST = 20.0
"""The pause after a survey, an audit or a count of the marks is this many times as long as that
work, within limits."""
HISTORY_SECONDS = 3600.0
"""The time, in seconds, between two removals of old records of workers (`forget_strangers`)."""
COUNT_SECONDS = 10.0
"""The shortest time between two counts of the marks, in seconds."""

MARKS_AT_ONCE = 64
ANSWER_SECONDS = 10.0
"""The longest time that a bookie may take for each page of a listing, in seconds."""

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class SurveyReport:
    """The result of a survey."""

    ledgers: int
    silent: tuple[str, ...]
    """Bookies that did not answer; it is unknown which entries these bookies lack."""
    named: frozenset[str]
    """All bookies in the fragments whose entries no longer change."""


class Auditor:
    """Takes part in the election of the auditor, and audits while this process is the leader."""

    def __init__(self, worker: RepairWorker) -> None:
        self._worker = worker
        self._lost = Departures(worker.store, keys.LOST_BOOKIES, worker.clock)
        self._leaving = Departures(worker.store, keys.LEAVING_BOOKIES, worker.clock)
        self._begin()

    def _begin(self) -> None:
        self._absence = BookieAbsence(UNSEEN_SECONDS_MAX)
        self._was_split = self._has_looked = False
        self._are_many_away = True
        """True while too many bookies are away, and before the first call of `_look`."""
        self._open_ledgers = OpenLedgers(self._worker, lambda: self._are_many_away)
        self._seen: dict[str, str] = {}
        self._known: set[str] = set()
        self._gone: frozenset[str] = frozenset()
        """Bookies that are lost or leaving."""
        self._named: frozenset[str] | None = None
        """Bookies that ledgers named at the last survey; None before the first survey."""
        self._strangers: frozenset[str] = frozenset()
        """Bookies among `_named` that had no cookie at the last survey."""
        self._surveyed: frozenset[str] = frozenset()
        """The bookies that were gone when the last finished survey began, and have been gone
        since."""
        self._surveying: frozenset[str] = frozenset()
        """The bookies that were gone when the running survey began, and have been gone since."""
        self._changes, self._surveyed_changes = 0, -1
        """The number of changes of registrations and cookies so far, and this number at the last
        survey."""
        self._history_at = -math.inf
        self._next_at = self._rest_until = self._audit_at = self._count_at = -math.inf
        """The earliest times for the next work: a periodic survey while bookies are gone, a survey
        after a change, an audit, and a count of the marks."""
        self._pauses = Backoff(SURVEY_SECONDS, SURVEY_SECONDS_MAX)
        self._never_since = math.inf
        """The time since when this auditor finds no readable record of a finished audit; infinite
        if there is one."""

    async def run(self) -> NoReturn:
        """Take part in the election until cancelled; audit whenever this process is the leader.

        Raises:
            MetadataClosedError: the store was closed.
        """
        gauge = self._worker.metrics.repair_auditor
        async with (
            Participant(self._worker.store) as participant,
            Election(participant, keys.AUDITOR, owner=self._worker.worker_id) as election,
        ):
            await election.elect()
            while True:
                await election.wait_for(LeaderState.LEADING)
                try:
                    async with asyncio.TaskGroup() as tasks:
                        leading = tasks.create_task(self._lead())
                        gauge.set(1)
                        try:
                            while election.state is LeaderState.LEADING:
                                await election.wait_for_change()
                        finally:
                            gauge.set(0)
                            leading.cancel()
                finally:
                    self._forget()

    def _forget(self) -> None:
        """Reset the metrics of the auditor, because this bookie does not audit any more."""
        for gauge in (
            self._worker.metrics.repair_bookies_away,
            self._worker.metrics.repair_split,
            self._worker.metrics.repair_audit_age_seconds,
            self._worker.metrics.repair_marked_ledgers,
            self._worker.metrics.repair_abandoned_ledgers,
        ):
            gauge.set(0)

    async def _lead(self) -> NoReturn:
        """Do all work of an auditor concurrently: registrations, surveys, audits, recoveries."""
        self._begin()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._look))
            tasks.create_task(self._repeat(self._survey_if_due))
            tasks.create_task(self._repeat(self._audit_if_due))
            tasks.create_task(self._repeat(self._open_ledgers.look))
            tasks.create_task(self._repeat(self._open_ledgers.find))
            tasks.create_task(self._repeat(lambda: self._open_ledgers.work(tasks)))
        raise AssertionError("all go on until they are cancelled")

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> NoReturn:
        pauses = Backoff(ROUND_SECONDS, 30.0)
        while True:
            try:
                await work()
                pauses.reset()
                seconds = ROUND_SECONDS
            except MetadataClosedError:
                raise
            except Exception as error:  # noqa: BLE001  (an error here must not end all repair)
                _log.warning("audit_interrupted", reason=self._worker.reason_of(error))
                seconds = pauses.next()
            await asyncio.sleep(seconds)

    async def _look(self) -> None:
        """Update the records of lost bookies, and note changes that require a survey."""
        now = self._worker.clock.monotonic()
        directory = self._worker.client.directory
        registrations = directory.all()
        known = set(await self._worker.client.ensembles.cookies.bookie_ids())
        lost = await self._note_absence(now, known, directory.names())
        self._gone = frozenset(lost | await self._leaving.names())
        self._surveyed &= self._gone
        self._surveying &= self._gone
        seen = {name: one.incarnation for name, one in registrations.items()}
        if seen.items() - self._seen.items() or known != self._known:
            self._changes += 1  # a bookie is new, or lost its data or its cookie
        self._seen, self._known = seen, known
        self._has_looked = True
        if now >= self._history_at:
            await forget_strangers(
                self._worker.store, known | directory.names(), self._worker.clock.now_ms()
            )
            self._history_at = now + HISTORY_SECONDS
        if now >= self._count_at:
            self._worker.metrics.repair_marked_ledgers.set(await self._worker.marks.count())
            took = self._worker.clock.monotonic() - now
            self._count_at = now + took + max(COUNT_SECONDS, REST * took)

    async def _note_absence(
        self, now: float, known: set[str], registered: Collection[str]
    ) -> set[str]:
        """Update the records of lost bookies; return the lost bookies."""
        settings = self._worker.settings()
        recorded = await self._lost.names()
        # A lost bookie whose cookie is deleted stays lost as long as ledgers name the bookie.
        strangers = self._strangers | recorded.intersection(self._named or ())
        verdict = self._absence.look(
            now,
            known,
            registered,
            strangers,
            delay_seconds=settings.lost_bookie_delay_seconds,
            share_max=settings.away_share_max,
        )
        self._are_many_away = verdict.too_many
        self._tell(verdict, known)
        back = recorded.intersection(registered)
        if self._named is not None:
            back |= recorded - verdict.away  # no ledger names these bookies now
        for name in sorted(back):
            await self._lost.remove(name)
            _log.info("bookie_not_lost", bookie_id=name)
        for name in sorted(verdict.lost - recorded):
            _log.warning("bookie_lost", bookie_id=name)
            await self._lost.add(name)
        return (recorded - back) | verdict.lost

    def _tell(self, verdict: AbsenceVerdict, known: Collection[str]) -> None:
        self._worker.metrics.repair_bookies_away.set(len(verdict.away))
        self._worker.metrics.repair_split.set(verdict.is_split)
        if verdict.is_split and not self._was_split:
            _log.error("too_many_bookies_away", away=sorted(verdict.away), known=len(known))
        self._was_split = verdict.is_split

    async def _is_audit_due(self) -> bool:
        last = None
        with suppress(FormatError):  # the next audit replaces the damaged record
            last = await self._worker.marks.checked_ms(AUDIT)
        now = self._worker.clock.monotonic()
        self._never_since = math.inf if last is not None else min(now, self._never_since)
        if last is None:
            self._worker.metrics.repair_audit_age_seconds.set(now - self._never_since)
            return True
        age = (self._worker.clock.now_ms() - last) / 1000
        self._worker.metrics.repair_audit_age_seconds.set(max(0.0, age))
        interval = self._worker.settings().audit_interval_seconds
        # If the time is in the future, the clock of this process or of another process is wrong.
        return age > interval or age < -interval

    # ---- surveys

    async def _survey_if_due(self) -> None:
        if not (self._has_looked and await self._worker.marks.is_enabled()):
            return
        now = self._worker.clock.monotonic()
        # New gone bookies are rare and need no pause, but registrations may change all the time.
        is_new = bool(self._gone - self._surveyed)
        has_changed = self._changes != self._surveyed_changes and now >= self._rest_until
        is_time = bool(self._gone) and now >= self._next_at
        if is_new or has_changed or is_time:
            await self._survey()

    async def _survey(self) -> None:
        began = self._worker.clock.monotonic()
        gone, known, changes = self._gone, set(self._known), self._changes
        self._surveying = gone
        try:
            report = await self.survey(gone, is_deep=False)
            if report.ledgers or report.silent:
                self._pauses.reset()
        finally:
            took = self._worker.clock.monotonic() - began
            rest = min(REST * took, SURVEY_SECONDS_MAX)
            self._rest_until = began + took + rest
            self._next_at = began + took + max(self._pauses.next(), rest)
        self._named, self._strangers = report.named, report.named - known
        self._surveyed, self._surveyed_changes = self._surveying, changes
        _tell_of("survey", report, gone, took)

    async def _audit_if_due(self) -> None:
        if not (self._has_looked and await self._worker.marks.is_enabled()):
            return
        if await self._is_audit_due() and self._worker.clock.monotonic() >= self._audit_at:
            await self._audit()

    async def _audit(self) -> None:
        began, gone = self._worker.clock.monotonic(), self._gone
        version = await self._worker.marks.check_version(AUDIT)
        try:
            report = await self.survey(gone, is_deep=True)
        finally:
            took = self._worker.clock.monotonic() - began
            rest = min(
                max(SURVEY_SECONDS, REST * took), self._worker.settings().audit_interval_seconds
            )
            self._audit_at = began + took + rest
        _tell_of("audit", report, gone, took)
        if not report.silent:
            # If another audit was requested during this audit, `version` is old, and the call sets
            # nothing.
            await self._worker.marks.set_checked_ms(
                AUDIT, self._worker.clock.now_ms(), version=version
            )
            self._audit_at = -math.inf

    async def survey(self, gone: Collection[str], *, is_deep: bool) -> SurveyReport:
        """Mark every ledger that lacks copies.

        Args:
            gone: bookies whose copies count as missing.
            is_deep: list the entries of every copy, not only of copies with too few entries.

        Raises:
            MetadataError, FormatError: the listing of the ledgers is not complete.
        """
        client = self._worker.client
        registrations = dict(client.directory.all())
        marking = _Marking(self._worker.marks)
        named: set[str] = set()

        async def on_ledger(metadata: LedgerMetadata) -> None:
            names = {name for one, _ in settled_fragments(metadata) for name in one.bookies}
            named.update(name for name in names if not is_vacant(name))
            if wanted := _unfilled(names, gone):
                await marking.add(metadata.ledger_id, wanted)

        async def on_lacking(metadata: LedgerMetadata, lacking: set[str]) -> None:
            names = {name for one, _ in settled_fragments(metadata) for name in one.bookies}
            is_known = bool(_unfilled(names, gone))
            await marking.add(metadata.ledger_id, lacking, is_lacking=True, is_known=is_known)

        async with listed_bookies(
            registrations,
            registrations,
            client.instance_id,
            ANSWER_SECONDS,
            client.pool.security,
        ) as bookies:
            comparison = CopyComparison(
                client.ledgers,
                bookies,
                is_deep=is_deep,
                on_ledger=on_ledger,
                on_lacking=on_lacking,
            )
            await comparison.run()
            silent = tuple(sorted(name for name, one in bookies.items() if one.problem))
        await marking.finish()
        return SurveyReport(marking.ledgers, silent, frozenset(named))


def _unfilled(names: Collection[str], gone: Collection[str]) -> set[str]:
    """Return the bookies in `names` that are gone, and the vacant slots."""
    return {name for name in names if name in gone or is_vacant(name)}


def _tell_of(kind: str, report: SurveyReport, gone: Collection[str], took: float) -> None:
    _log.info(
        "ledgers_surveyed",
        kind=kind,
        lacking=report.ledgers,
        gone=sorted(gone),
        silent=list(report.silent),
        seconds=round(took, 3),
    )


class _Marking:
    """Collects the marks of one survey, and writes several marks at a time."""

    def __init__(self, marks: UnderreplicationManager) -> None:
        self._marks = marks
        self._waiting: list[tuple[int, set[str], bool]] = []
        self.ledgers = 0

    async def add(
        self,
        ledger_id: int,
        replicas: set[str],
        *,
        is_lacking: bool = False,
        is_known: bool = False,
    ) -> None:
        """Collect a mark; if `MARKS_AT_ONCE` marks are collected, write all of them.

        Args:
            ledger_id: the ledger.
            replicas: the bookies that lack copies.
            is_lacking: this survey found entries missing on registered bookies.
            is_known: this survey has already counted the ledger.
        """
        self.ledgers += not is_known
        self._waiting.append((ledger_id, replicas, is_lacking))
        if len(self._waiting) >= MARKS_AT_ONCE:
            await self.finish()

    async def finish(self) -> None:
        """Write all collected marks to the store."""
        waiting, self._waiting = self._waiting, []
        locked = await self._marks.locked() if any(one[-1] for one in waiting) else set()
        await gather(
            self._mark(ledger_id, replicas, again=is_lacking and ledger_id in locked)
            for ledger_id, replicas, is_lacking in waiting
        )

    async def _mark(self, ledger_id: int, replicas: set[str], *, again: bool) -> None:
        """Mark a ledger; with `again`, rewrite an equal mark, to alert a running repair."""
        with suppress(NewerFormatError):  # workers of the newer version handle the mark
            found = await self._marks.find(ledger_id)
            if again or found is None or not replicas <= set(found.replicas):
                await self._marks.mark(ledger_id, replicas)
