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
        self._split_at = -math.inf
        """The time of the last look at which so many were away."""

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
        if len(away.intersection(known)) > share_max * len(known):
            self._split_at = now
            is_split = any(now - since >= delay_seconds for since in self._since.values())
            return AbsenceVerdict(away, is_split=is_split)
        # When a split heals, its bookies come back one by one: the delay begins anew for all.
        since = {name: max(since, self._split_at) for name, since in self._since.items()}
        left = {name: begin + delay_seconds - now for name, begin in since.items()}
        lost = frozenset(name for name, seconds in left.items() if seconds <= 0)
        return AbsenceVerdict(
            away, lost, next_seconds=min((s for s in left.values() if s > 0), default=None)
        )
