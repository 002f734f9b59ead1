"""A node in memory that does as it is told: what the rpc floor is tested against."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import numpy as np

from bookie.config import NodeSettings
from bookie.entry.batch import EntryBatch
from bookie.env import Outcome
from bookie.errors import TooManyRequestsError
from bookie.ids import NO_ENTRY, Status
from bookie.wire.commands import (
    AddCommand,
    Info,
    LacReply,
    LacState,
    LedgerRow,
    ReadCommand,
    ReadReply,
    Reply,
)
from bookie.wire.unary_codec import Ranges

BOOKIE_ID = "b1"
INSTANCE_ID = "5c2b0c1e-0000-4000-8000-000000000001"
INFO = Info("b1", INSTANCE_ID, "0.1.0", False, 1000, 400, 3)


def batch_of(
    sizes: list[int], *, ledger_id: int = 3, first: int = 0, steps: list[int] | None = None
) -> EntryBatch:
    """A batch of zeros; the rpc floor does not look into packets."""
    return EntryBatch(
        ledger_id,
        first,
        None if steps is None else np.array(steps, np.int64),
        np.array(sizes, np.int64),
        bytes(sum(sizes)),
    )


class FakeWatcher:
    """A subscriber whose ledgers the test sees."""

    def __init__(self, node: FakeNode, callback: Callable[[LacState], None]) -> None:
        self.node = node
        self.callback = callback
        self.ledgers: set[int] = set()
        self.closed = False

    def subscribe(self, ledger_id: int) -> None:
        if len(self.ledgers) >= self.node.watches_max:
            raise TooManyRequestsError("too many watches")
        self.ledgers.add(ledger_id)
        lac = self.node.lacs.get(ledger_id)
        status = Status.NO_SUCH_LEDGER if lac is None else Status.OK
        self.callback(LacState(ledger_id, NO_ENTRY if lac is None else lac, False, status))

    def unsubscribe(self, ledger_id: int) -> None:
        self.ledgers.discard(ledger_id)

    def close(self) -> None:
        self.closed = True
        self.node.watchers.remove(self)


class FakeNode:
    """Remembers what it was asked; answers at once, unless the test holds it back.

    `failure`, when set, is raised by every call.
    """

    def __init__(self, settings: NodeSettings | None = None) -> None:
        self.instance_id = INSTANCE_ID
        self.bookie_id = BOOKIE_ID
        self.incarnation = ""
        self.settings = settings or NodeSettings()
        self.admitting = asyncio.Event()
        self.admitting.set()
        self.admitted: list[int] = []
        self.added: list[AddCommand] = []
        self.held: list[Outcome[Reply]] | None = None
        self.calls: list[object] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self.read_reply = ReadReply(Status.NO_SUCH_ENTRY, "nothing here")
        self.lac_reply = LacReply(Status.OK, "", b"last", b"lac", 7, True)
        self.pages: list[Ranges] = []
        self.rows: list[list[LedgerRow]] = []
        self.listing = asyncio.Event()
        self.listing.set()
        self.listed = 0
        self.watchers: list[FakeWatcher] = []
        self.watches_max = 1000
        self.lacs: dict[int, int] = {}
        self.failure: BaseException | None = None

    def _called(self, *call: object) -> None:
        self.calls.append(call)
        if self.failure is not None:
            raise self.failure

    def try_admit_add(self, message_bytes: int, recovery: bool = False) -> bool:
        if self.admitting.is_set():
            self.admitted.append(message_bytes)
        return self.admitting.is_set()

    async def admit_add(self, message_bytes: int) -> None:
        await self.admitting.wait()
        self.admitted.append(message_bytes)

    def add(self, command: AddCommand, admitted: int) -> Outcome[Reply]:
        self._called("add", admitted)
        self.added.append(command)
        outcome: Outcome[Reply] = Outcome()
        if self.held is None:
            outcome.settle(Reply(Status.OK))
        else:
            self.held.append(outcome)
        return outcome

    def add_unnamed(self, command: AddCommand, admitted: int) -> Outcome[Reply]:
        return self.add(command, admitted)

    def try_read(self, command: ReadCommand) -> ReadReply | None:
        if not self.reading.is_set():
            return None
        self._called("read", command)
        return self.read_reply

    async def read(self, command: ReadCommand) -> ReadReply:
        self._called("read", command)
        await self.reading.wait()
        return self.read_reply

    async def read_lac(self, ledger_id: int, master_key: bytes) -> LacReply:
        self._called("read_lac", ledger_id, master_key)
        return self.lac_reply

    async def fence(self, ledger_id: int, master_key: bytes) -> LacReply:
        self._called("fence", ledger_id, master_key)
        return self.lac_reply

    async def force(self, ledger_id: int) -> Reply:
        self._called("force", ledger_id)
        return Reply(Status.OK)

    async def write_lac(self, ledger_id: int, master_key: bytes, packet: bytes) -> Reply:
        self._called("write_lac", ledger_id, master_key, packet)
        return Reply(Status.OK)

    async def list_entries(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, key: bytes
    ) -> AsyncIterator[Ranges]:
        for page in self.pages:
            yield page
        self._called("list_entries", ledger_id, first_entry_id, last_entry_id, key)

    async def list_ledgers(self, after_ledger_id: int) -> AsyncIterator[list[LedgerRow]]:
        self.listed += 1
        await self.listing.wait()
        for page in self.rows:
            yield page
        self._called("list_ledgers", after_ledger_id)

    async def info(self) -> Info:
        self._called("info")
        return INFO

    def watch(self, callback: Callable[[LacState], None]) -> FakeWatcher:
        watcher = FakeWatcher(self, callback)
        self.watchers.append(watcher)
        return watcher

    def advance(self, ledger_id: int, lacs: Iterable[int]) -> None:
        """Tell every watcher of a ledger about each of `lacs`."""
        for lac in lacs:
            self.lacs[ledger_id] = lac
            for watcher in self.watchers:
                if ledger_id in watcher.ledgers:
                    watcher.callback(LacState(ledger_id, lac, False))


UNTIL_SECONDS_MAX = 60.0


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until `condition` holds, within a minute."""
    async with asyncio.timeout(UNTIL_SECONDS_MAX):
        while not condition():  # noqa: ASYNC110  (gRPC's threads set no event of ours)
            await asyncio.sleep(0.001)
