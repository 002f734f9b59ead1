"""One client's subscription to changes of LACs on the bookie, for any number of ledgers.

For each ledger, at most one state waits to be sent: the latest. So a slow client gets fewer
updates, and uses no more of the bookie's memory than a fast client. The node limits the watches of
all clients together. The shares limit the watches of each connection and of each identity.

If the bookie refuses to watch a ledger, it sends an update of that ledger with the status of the
refusal. If the bookie refuses a whole message, it sends an update of ledger -1.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bookie.errors import BookieError
from bookie.ids import NO_ENTRY
from bookie.security.gatekeeper import Caller
from bookie.security.rights import Right
from bookie.wire.commands import LacState
from bookie.wire.interfaces import BookieNode, CallContext
from bookie.wire.server.error_mapper import ErrorMapper
from bookie.wire.server.stream_handler import StreamHandler
from bookie.wire.server.visits import Visit
from bookie.wire.unary_codec import WATCH_IDS_MAX, encode_lac_state, parse_watch_request

NO_LEDGER: Final = -1
"""The ledger id of an update that refuses a whole message."""

RPC: Final = "WatchLac"


class LacWatchHandler(StreamHandler):
    """Serves one WatchLac call; if `refusal` is set, the handler sends only this error.

    For each subscription and each update, the handler checks the roles of `caller`. Without a
    `caller` everything is permitted.
    """

    _rpc = RPC

    def __init__(
        self,
        node: BookieNode,
        errors: ErrorMapper,
        refusal: BookieError | None,
        caller: Caller | None = None,
        *,
        visit: Visit,
    ) -> None:
        super().__init__(visit, errors, refusal)
        self._caller = caller
        self._learning: dict[int, asyncio.Task[None]] = {}
        """Ledger to be watched → the task that looks up the ledger's log."""
        self._latest: dict[int, LacState] = {}
        self._watched: set[int] = set()
        """Ledgers that are charged to the shares as watches."""
        self._refused: set[int] = set()
        """Ledgers whose refusals wait to be sent; these ledgers do not count as watched."""
        self._watcher = node.watch(self._note)
        if refusal is not None:
            self._untold = None
            self._refuse(NO_LEDGER, refusal)
            self.end()

    @property
    def _is_full(self) -> bool:
        return len(self._refused) + len(self._learning) > WATCH_IDS_MAX

    def _note(self, state: LacState) -> None:
        if self._ended:
            return  # else constant changes of ledgers would keep the stream open
        ledger_id = state.ledger_id
        if self._caller is not None and ledger_id not in self._refused:
            decided = self._caller.decide(Right.READ, ledger_id)
            if not decided:
                # The role was taken away, or narrowed to some logs, while the ledger was watched.
                self._unsubscribe(ledger_id)
                self._subscribe_if(ledger_id, decided)
                return
        self._latest[ledger_id] = state
        self._wake()

    def _refuse(self, ledger_id: int, error: Exception) -> None:
        status = self._errors.reply(RPC, error).status
        self._errors.count(RPC, status)
        self._refused.add(ledger_id)
        self._note(LacState(ledger_id, NO_ENTRY, fenced=False, status=status))

    def _take(self, data: bytes) -> None:
        try:
            change = parse_watch_request(data)
        except BookieError as error:
            self._refuse(NO_LEDGER, error)
            return
        for ledger_id in change.unsubscribe:
            self._unsubscribe(ledger_id)
            self._refused.discard(ledger_id)
            if (learning := self._learning.pop(ledger_id, None)) is not None:
                learning.cancel()
        for ledger_id in change.subscribe:
            decided = True if self._caller is None else self._caller.decide(Right.READ, ledger_id)
            self._subscribe_if(ledger_id, decided)

    def _subscribe_if(self, ledger_id: int, is_permitted: bool | None) -> None:
        """Subscribe or refuse; if `is_permitted` is None, first look up the ledger's log."""
        if is_permitted:
            self._subscribe(ledger_id)
        elif is_permitted is False:
            assert self._caller is not None
            self._refuse(ledger_id, self._caller.refuse(RPC, Right.READ, ledger_id))
        elif ledger_id not in self._learning:
            self._learning[ledger_id] = self._tasks.create_task(
                self._subscribe_later(ledger_id), name="log of a watched ledger"
            )

    def _subscribe(self, ledger_id: int) -> None:
        is_watched = ledger_id in self._watched
        try:
            if not is_watched:
                self._visit.watch()
                self._watched.add(ledger_id)
            self._watcher.subscribe(ledger_id)
        except BookieError as error:
            if not is_watched:
                self._end_watch(ledger_id)
            self._refuse(ledger_id, error)

    def _unsubscribe(self, ledger_id: int) -> None:
        self._watcher.unsubscribe(ledger_id)
        self._latest.pop(ledger_id, None)
        self._end_watch(ledger_id)

    def _end_watch(self, ledger_id: int) -> None:
        if ledger_id in self._watched:
            self._watched.remove(ledger_id)
            self._visit.end_watches()

    async def _subscribe_later(self, ledger_id: int) -> None:
        """Look up the ledger's log; then subscribe, or refuse if the caller may not read it."""
        assert self._caller is not None
        try:
            await self._caller.require(RPC, Right.READ, ledger_id)
        except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
            self._refuse(ledger_id, error)
        else:
            self._subscribe(ledger_id)
        finally:
            # If this look-up was cancelled, the entry may belong to a later subscription.
            if self._learning.get(ledger_id) is asyncio.current_task():
                del self._learning[ledger_id]
            self._answered.set()

    async def _write(self, context: CallContext) -> None:
        """Write the latest state of each changed ledger; the longest waiting ledger comes first."""
        latest, loop = self._latest, asyncio.get_running_loop()
        while True:
            while latest:
                ledger_id = next(iter(latest))
                self._refused.discard(ledger_id)
                await self._send(context, encode_lac_state(latest.pop(ledger_id)))
                self._answered.set()
            if self._ended:
                return
            self._sleep = loop.create_future()
            await self._sleep

    def _stop(self) -> None:
        for learning in self._learning.values():
            learning.cancel()

    def _forget(self) -> None:
        self._watcher.close()
        self._visit.end_watches(len(self._watched))
        self._watched.clear()
