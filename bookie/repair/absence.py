"""The decision that a bookie is lost: it was away for long, while most others were not. Pure."""

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
    next_seconds: float | None = None
    """Time until the next bookie may be lost; None if no bookie is on its way there."""


class BookieAbsence:
    """Notes since when bookies are away, by the clock of one auditor.

    A new auditor begins anew: it has seen nobody leave. So a takeover delays a verdict, and never
    hastens it.
    """

    def __init__(self) -> None:
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
        self._since = {name: self._since.get(name, now) for name in away}
        passed = max(0.0, now - self._looked_at)
        self._looked_at = now
        if len(away.intersection(known)) > share_max * len(known):
            # Clocks stand still: when a split heals, its bookies come back one by one.
            self._since = {name: min(now, since + passed) for name, since in self._since.items()}
            if self._split_since is None:
                self._split_since = now
            return AbsenceVerdict(away, is_split=now - self._split_since >= delay_seconds)
        self._split_since = None
        left = {name: since + delay_seconds - now for name, since in self._since.items()}
        lost = frozenset(name for name, seconds in left.items() if seconds <= 0)
        return AbsenceVerdict(
            away, lost, next_seconds=min((s for s in left.values() if s > 0), default=None)
        )
