"""One client's subscription to changes of LACs on the bookie, for any number of ledgers.

Level-triggered: what waits to be sent is at most one state per ledger, the latest. A client that
reads slowly gets fewer updates, never old ones, and costs the bookie no more than a quick one.

A subscription that is refused (too many watches) is answered by an update of that ledger with the
status; a message that is refused as a whole, by an update of ledger -1.
"""

from __future__ import annotations

import asyncio
from typing import Final

from grpc import aio

from bookie.errors import BookieError, WrongClusterError
from bookie.formats.commands import LacState
from bookie.ids import NO_ENTRY
from bookie.rpc.cold import encode_lac_state, parse_watch_request
from bookie.rpc.contract import CallContext, Node, Watcher
from bookie.rpc.faults import Faults

NO_LEDGER: Final = -1
"""The ledger of an update that speaks about a whole message."""

RPC: Final = "WatchLac"


class LacWatch:
    """Serves one call."""

    def __init__(self, node: Node, faults: Faults, refusal: WrongClusterError | None) -> None:
        self._node = node
        self._faults = faults
        self._refusal = refusal
        self._latest: dict[int, LacState] = {}
        self._changed = asyncio.Event()
        self._ended = False

    async def serve(self, context: CallContext) -> None:
        """Serve until the client closes its side. Cancelled when the stream breaks."""
        if self._refusal is not None:
            self._refuse(NO_LEDGER, self._refusal)
            self.end()
            await self._write(context)
            return
        watcher = self._node.watch(self._note)
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read(context, watcher), name="lac watch reader")
                try:
                    await context.send_initial_metadata(())
                    await self._write(context)
                except aio.BaseError:
                    pass  # the stream broke while an update was being written
                finally:
                    reader.cancel()
        finally:
            watcher.close()

    def end(self) -> None:
        """End the stream after the updates that wait."""
        self._ended = True
        self._changed.set()

    def _note(self, state: LacState) -> None:
        """Remember the latest state of a ledger."""
        self._latest[state.ledger_id] = state
        self._changed.set()

    def _refuse(self, ledger_id: int, error: Exception) -> None:
        status = self._faults.reply(RPC, error).status
        self._faults.count(RPC, status)
        self._note(LacState(ledger_id, NO_ENTRY, fenced=False, status=status))

    async def _read(self, context: CallContext, watcher: Watcher) -> None:
        """Carry out changes until the client or the bookie ends the stream."""
        while not self._ended:
            try:
                data = await context.read()
            except aio.BaseError:
                break
            if data is aio.EOF:
                break
            try:
                change = parse_watch_request(data)
            except BookieError as error:
                self._refuse(NO_LEDGER, error)
                continue
            for ledger_id in change.unsubscribe:
                watcher.unsubscribe(ledger_id)
                self._latest.pop(ledger_id, None)
            for ledger_id in change.subscribe:
                try:
                    watcher.subscribe(ledger_id)
                except BookieError as error:
                    self._refuse(ledger_id, error)
        self.end()

    async def _write(self, context: CallContext) -> None:
        """Write the latest states, each round of changes in the order of its first change."""
        while True:
            while self._latest:
                ledger_id = next(iter(self._latest))
                await context.write(encode_lac_state(self._latest.pop(ledger_id)))
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()
