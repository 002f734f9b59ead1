"""Notifies watchers when a ledger's LAC advances or the ledger is fenced, without polling.

Updates are level-triggered: a watcher gets the current state, and a slow watcher skips states. The
first update of a ledger may need a read of the index. One message may name thousands of ledgers,
and all index reads of the bookie share one queue. So only `FIRST_UPDATES_MAX` first updates run at
a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from bookie.entry.entry import lac_packet_ids
from bookie.ids import NO_ENTRY, Status
from bookie.node.engine.ledger_state import LocalLedger
from bookie.wire.commands import LacState

LacCallback = Callable[[LacState], None]

FIRST_UPDATES_MAX: Final = 32
"""The greatest number of concurrent first updates of all watchers."""


def lac_state(state: LocalLedger) -> LacState:
    """Return the ledger's state in the form that watchers get."""
    if state.deleted or not state.exists:
        return LacState(state.ledger_id, NO_ENTRY, state.fenced, Status.NO_SUCH_LEDGER)
    packet = state.lac_packet
    if packet and lac_packet_ids(packet).last_add_confirmed < state.max_lac:
        packet = b""
    return LacState(
        state.ledger_id, state.max_lac, state.fenced, lac_packet=packet, key_tag=state.key_tag
    )


class LacWatches:
    """The watchers of each ledger on this bookie."""

    def __init__(self, count_changed: Callable[[int], None]) -> None:
        self._watchers: dict[int, list[LacCallback]] = {}
        self._count = 0
        self._count_changed = count_changed

    def __len__(self) -> int:
        return self._count

    def add(self, ledger_id: int, callback: LacCallback) -> None:
        """Call `callback` after every change of the ledger from now on."""
        self._watchers.setdefault(ledger_id, []).append(callback)
        self._set_count(self._count + 1)

    def remove(self, ledger_id: int, callback: LacCallback) -> None:
        callbacks = self._watchers.get(ledger_id, [])
        if callback in callbacks:
            callbacks.remove(callback)
            self._set_count(self._count - 1)
        if not callbacks:
            self._watchers.pop(ledger_id, None)

    def has(self, ledger_id: int, callback: LacCallback) -> bool:
        return callback in self._watchers.get(ledger_id, ())

    def notify(self, state: LocalLedger) -> None:
        """Call the ledger's watchers with its new state; without watchers, do one look-up only."""
        callbacks = self._watchers.get(state.ledger_id)
        if callbacks:
            update = lac_state(state)
            for callback in tuple(callbacks):
                callback(update)

    def _set_count(self, count: int) -> None:
        self._count = count
        self._count_changed(count)


class FirstUpdates:
    """Sends the first updates of ledgers to watchers; all watchers get equal turns.

    Args:
        tell: sends the state of one ledger to one watcher.
        spawn: starts a task.
    """

    def __init__(
        self,
        tell: Callable[[int, LacCallback], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._tell = tell
        self._spawn = spawn
        self._lines: dict[LacCallback, dict[int, None]] = {}
        """Maps a watcher to the ledgers of its waiting updates, in order; the first watcher is
        next."""
        self._under_way = 0

    def __len__(self) -> int:
        """Return the number of waiting updates."""
        return sum(map(len, self._lines.values()))

    def add(self, ledger_id: int, callback: LacCallback) -> None:
        """Queue the first update of a ledger for a watcher, after the watcher's earlier updates."""
        self._lines.setdefault(callback, {})[ledger_id] = None
        self._start()

    def remove(self, ledger_id: int, callback: LacCallback) -> None:
        """Remove a waiting update from the queue, because its watch has ended."""
        line = self._lines.get(callback)
        if line is not None:
            line.pop(ledger_id, None)
            if not line:
                del self._lines[callback]

    def _start(self) -> None:
        while self._lines and self._under_way < FIRST_UPDATES_MAX:
            callback = next(iter(self._lines))
            line = self._lines.pop(callback)
            ledger_id = next(iter(line))
            del line[ledger_id]
            if line:
                self._lines[callback] = line  # behind the other watchers
            self._under_way += 1
            self._spawn(self._run(ledger_id, callback))

    async def _run(self, ledger_id: int, callback: LacCallback) -> None:
        try:
            await self._tell(ledger_id, callback)
        finally:
            self._under_way -= 1
        self._start()
