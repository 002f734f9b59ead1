"""Decides if a bookie is lost or a writer is gone, from the length of the absence, without I/O."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AbsenceVerdict:
    """The bookies that are away, the lost bookies, and whether the network may be split."""

    away: frozenset[str] = frozenset()
    """Bookies that are not registered, but have a cookie or are named by ledgers."""
    lost: frozenset[str] = frozenset()
    """Bookies that were away for the whole delay. Empty while too many bookies are away."""
    is_split: bool = False
    """True if too many bookies were away for the whole delay, so that the network may be split."""
    too_many: bool = False
    """True if too many bookies are away at this moment."""


class BookieAbsence:
    """Measures how long each bookie is away, with the clock of one auditor.

    A new auditor begins without knowledge of absences. So a change of auditor can only delay a
    verdict. If more than `unseen_seconds_max` seconds pass between two calls of `look`, only so
    many seconds count as absence.
    """

    def __init__(self, unseen_seconds_max: float) -> None:
        self._unseen_max = unseen_seconds_max
        self._since: dict[str, float] = {}
        self._looked_at = math.inf
        self._split_since: float | None = None
        """The time since when every `look` has found too many bookies away; None if few are
        away."""

    def look(
        self,
        now: float,
        known: Collection[str],
        registered: Collection[str],
        strangers: Collection[str] = (),
        *,
        delay_seconds: float,
        share_max: float,
    ) -> AbsenceVerdict:
        """Return the verdict at the time `now`.

        Args:
            now: a monotonic time in seconds.
            known: the bookies that have a cookie, and so belong to the cluster.
            registered: the bookies that are registered, read-only bookies included.
            strangers: bookies without a cookie that ledgers name. Strangers may become lost, but do
                not change the share that `share_max` limits.
            delay_seconds: the absence after which a bookie is lost.
            share_max: if a larger share of the known bookies is away, no bookie is lost, because
                the network may be split.
        """
        away = frozenset({*known, *strangers}) - frozenset(registered)
        passed = max(0.0, now - self._looked_at)
        unseen = max(0.0, passed - self._unseen_max)
        self._looked_at = now
        self._since = {name: self._since.get(name, now - unseen) + unseen for name in away}
        if self._split_since is not None:
            self._split_since += unseen
        if len(away.intersection(known)) > share_max * len(known):
            # The time of a split does not count as absence, because after the split the bookies
            # come back one by one.
            seen = passed - unseen
            self._since = {name: min(now, since + seen) for name, since in self._since.items()}
            if self._split_since is None:
                self._split_since = now
            is_split = now - self._split_since >= delay_seconds
            return AbsenceVerdict(away, is_split=is_split, too_many=True)
        self._split_since = None
        lost = {name for name, since in self._since.items() if since + delay_seconds <= now}
        return AbsenceVerdict(away, frozenset(lost))


class WriterAbsence:
    """Measures how long the records of writers are missing, with the clock of one auditor.

    If more than `unseen_seconds_max` seconds pass between two calls of `look`, only so many seconds
    count as absence. So an auditor whose machine was suspended does not find all writers gone when
    the machine resumes.
    """

    def __init__(self, unseen_seconds_max: float) -> None:
        self._unseen_max = unseen_seconds_max
        self._since: dict[str, float] = {}
        self._looked_at = math.inf

    def look(self, now: float, named: Collection[str], present: Collection[str]) -> None:
        """Record, at the time `now` in seconds, which writers in `named` are not in `present`."""
        unseen = max(0.0, now - self._looked_at - self._unseen_max)
        self._looked_at = now
        self._since = {
            name: self._since.get(name, now - unseen) + unseen
            for name in frozenset(named) - frozenset(present)
        }

    def forget(self, name: str) -> None:
        """Forget a writer's absence, so that a new absence begins at the next `look`."""
        self._since.pop(name, None)

    @property
    def missing(self) -> frozenset[str]:
        """The writers that had no record at the last call of `look`."""
        return frozenset(self._since)

    def is_gone(self, name: str, grace_seconds: float) -> bool:
        """True if the writer's record was missing in each `look` of the last `grace_seconds`."""
        since = self._since.get(name)
        return since is not None and self._looked_at - since >= grace_seconds
