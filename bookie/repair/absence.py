"""The decision that a bookie is lost, or a writer gone: each was away for long. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AbsenceVerdict:
    """The bookies that are away, and what follows."""

    away: frozenset[str] = frozenset()
    """Bookies that belong to the cluster, or did, and are not registered."""
    lost: frozenset[str] = frozenset()
    """Those that are away for longer than the delay. Empty during a split."""
    is_split: bool = False
    """True if somebody would be lost, and so many are away that the network may be at fault."""
    too_many: bool = False
    """True if so many are away at this moment."""
    next_seconds: float | None = None
    """Time until the next bookie may be lost; None if no bookie is on its way there."""


class BookieAbsence:
    """Notes since when bookies are away, by the clock of one auditor.

    A new auditor begins anew: it has seen nobody leave. So a takeover delays a verdict, and never
    hastens it. Time counts as for `WriterAbsence`: a machine that was suspended saw nobody leave.
    """

    def __init__(self, unseen_seconds_max: float) -> None:
        self._unseen_max = unseen_seconds_max
        self._since: dict[str, float] = {}
        self._looked_at = math.inf
        self._split_since: float | None = None
        """The first of the looks in a row at which so many were away."""

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
        """The verdict of this moment.

        Args:
            now: a monotonic time in seconds.
            known: the bookies that belong to the cluster, by their cookies.
            registered: the bookies that are registered, read-only ones included.
            strangers: bookies that ledgers name although they have no cookie. They may be lost, but
                tell nothing about the network.
            delay_seconds: the absence after which a bookie is lost.
            share_max: if a larger share of the known bookies is away, it is a split.
        """
        away = frozenset({*known, *strangers}) - frozenset(registered)
        passed = max(0.0, now - self._looked_at)
        unseen = max(0.0, passed - self._unseen_max)
        self._looked_at = now
        self._since = {name: self._since.get(name, now - unseen) + unseen for name in away}
        if self._split_since is not None:
            self._split_since += unseen
        if len(away.intersection(known)) > share_max * len(known):
            # Clocks stand still: when a split heals, its bookies come back one by one.
            seen = passed - unseen
            self._since = {name: min(now, since + seen) for name, since in self._since.items()}
            if self._split_since is None:
                self._split_since = now
            is_split = now - self._split_since >= delay_seconds
            return AbsenceVerdict(away, is_split=is_split, too_many=True)
        self._split_since = None
        left = {name: since + delay_seconds - now for name, since in self._since.items()}
        lost = frozenset(name for name, seconds in left.items() if seconds <= 0)
        return AbsenceVerdict(
            away, lost, next_seconds=min((s for s in left.values() if s > 0), default=None)
        )


class WriterAbsence:
    """Counts for how long the records of writers are missing, by the clock of one auditor.

    Time counts while somebody looks: a pause between two looks adds `unseen_seconds_max` at most.
    So a machine that was suspended does not find its writers gone when it wakes up.
    """

    def __init__(self, unseen_seconds_max: float) -> None:
        self._unseen_max = unseen_seconds_max
        self._since: dict[str, float] = {}
        self._looked_at = math.inf

    def look(self, now: float, named: Collection[str], present: Collection[str]) -> None:
        """Note which of the writers that open ledgers name have no record at `now`, in seconds."""
        unseen = max(0.0, now - self._looked_at - self._unseen_max)
        self._looked_at = now
        self._since = {
            name: self._since.get(name, now - unseen) + unseen
            for name in frozenset(named) - frozenset(present)
        }

    def forget(self, name: str) -> None:
        """Count anew from the next look."""
        self._since.pop(name, None)

    @property
    def missing(self) -> frozenset[str]:
        """The writers without a record at the last look."""
        return frozenset(self._since)

    def is_gone(self, name: str, grace_seconds: float) -> bool:
        """True if the writer's record was missing in all looks of so many seconds."""
        since = self._since.get(name)
        return since is not None and self._looked_at - since >= grace_seconds
