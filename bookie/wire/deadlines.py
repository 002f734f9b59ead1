"""Deadlines of calls and timers of state machines: one event-loop timer serves many deadlines.

One event-loop timer per call would take a fifth of a client's cost to read one entry, and nearly
every such timer would be cancelled.

Deadlines count only the time in which the event loop ran. A program may block its event loop, or
the process may be stopped. Such a pause must not look like a timeout, although deadlines pass
before the loop reads the answers that arrived meanwhile. So a timer fires at least every half
second. If the timer fires late, all deadlines are moved by the length of the pause. A deadline that
has passed despite the move gets half a second more, but only once. So an event loop that is always
late also has timeouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")

LATE_SECONDS: Final = 0.1
"""If a timer fires later than this, the event loop was blocked."""

PART_SECONDS: Final = 0.5
"""The longest time between two checks of the clock; also the extra time of a passed deadline."""


def is_being_cancelled() -> bool:
    """True if the current task itself was cancelled, not only the call that it awaits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _cancel(call: Any) -> None:
    call.cancel()


class Deadlines(Generic[K]):
    """Expires each key that is not stopped in time; one event loop uses it.

    Args:
        expire: called with each expired key; by default it cancels the key, which is then a call.
    """

    def __init__(self, expire: Callable[[K], object] = _cancel) -> None:
        self._expire = expire
        self._due: dict[K, float] = {}
        self._spared: set[K] = set()
        """Keys that were due after a pause and got more time."""
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = 0.0
        self._was_held_up = False
        self._is_abandoned = False

    def start(self, key: K, seconds: float) -> None:
        """Expire `key` after `seconds` unless `stop` comes first; restart the time if it runs."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._timer is not None and now - self._wake_at > LATE_SECONDS:
            self._skip_pause(now)
        if self._spared:
            self._spared.discard(key)
        due = self._due[key] = now + seconds
        if self._timer is None or due < self._wake_at:
            self._arm(loop, min(due, now + PART_SECONDS))

    def stop(self, key: K) -> bool:
        """Forget a key; return True if its time had not passed."""
        return self._due.pop(key, None) is not None

    def abandon(self) -> None:
        """Expire no more keys; `stop` still reports that the time of a key has not passed."""
        self._is_abandoned = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop, wake_at: float) -> None:
        if self._is_abandoned:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = wake_at
        self._timer = loop.call_at(wake_at, self._fire)

    def _skip_pause(self, now: float) -> None:
        """Move all deadlines by the time for which the loop was blocked."""
        pause = now - self._wake_at
        for key in self._due:
            self._due[key] += pause
        self._wake_at, self._was_held_up = now, True

    def _fire(self) -> None:
        """Expire the due keys in the order of their deadlines; set the timer for the next keys."""
        self._timer = None
        loop = asyncio.get_running_loop()
        # Some loops wake up slightly early, by the resolution of their clock.
        now = max(loop.time(), self._wake_at)
        if now - self._wake_at > LATE_SECONDS:
            self._skip_pause(now)
        is_late, self._was_held_up = self._was_held_up, False
        passed = [(due, key) for key, due in self._due.items() if due <= now]
        try:
            for due, key in sorted(passed, key=lambda one: one[0]):
                if self._due.get(key) != due:
                    continue  # stopped or restarted by a key that expired before
                if is_late and key not in self._spared:
                    self._spared.add(key)
                    self._due[key] = now + PART_SECONDS
                else:
                    del self._due[key]
                    self._spared.discard(key)
                    self._expire(key)
        finally:
            if self._due:
                self._spared &= self._due.keys()
                self._arm(loop, min(now + PART_SECONDS, *self._due.values()))
