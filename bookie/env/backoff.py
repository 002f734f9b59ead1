"""Delays between attempts: each delay is twice as long as the delay before it, up to a maximum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

UP_TO: Final = (0.5, 1.0)
"""Jitter multiplies each delay by a random number between 0.5 and 1."""
AROUND: Final = (0.5, 1.5)
"""Jitter multiplies each delay by a random number between 0.5 and 1.5; the mean is 1."""
FULL: Final = (0.0, 1.0)
"""Jitter multiplies each delay by a random number between 0 and 1."""

_DOUBLINGS_MAX = 1000


class Backoff:
    """Computes the delays between the attempts of one caller, who sleeps for each delay.

    Args:
        first_seconds: the first delay, before jitter.
        longest_seconds: the longest delay, before jitter.
        jitter: returns random numbers in [0, 1), so that many clients do not retry at the same
            time. If `jitter` is None, delays are exact.
        shares: the range of the random number by which `jitter` multiplies each delay.
    """

    __slots__ = ("_first", "_jitter", "_longest", "_shares", "failures")

    def __init__(
        self,
        first_seconds: float,
        longest_seconds: float,
        jitter: Callable[[], float] | None = None,
        shares: tuple[float, float] = UP_TO,
    ) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._jitter = jitter
        self._shares = shares
        self.failures = 0
        """The number of delays since the last reset."""

    def next(self) -> float:
        """Return the next delay in seconds; each call doubles the delay, up to the maximum."""
        seconds = self.after(self.failures)
        self.failures += 1
        return seconds

    def reset(self) -> None:
        """Make `next` start with the first delay again; call this after a successful attempt."""
        self.failures = 0

    def after(self, failures: int) -> float:
        """Return the delay in seconds after `failures` delays; this call does not change `next`."""
        seconds = min(self._first * 2.0 ** min(failures, _DOUBLINGS_MAX), self._longest)
        if self._jitter is None:
            return seconds
        low, high = self._shares
        return seconds * (low + (high - low) * self._jitter())
