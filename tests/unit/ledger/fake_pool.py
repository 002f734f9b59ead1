"""Bookies that answer as a test says, in place of the connections of a client."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import cast

from bookie.config import ClientSettings
from bookie.entry.batch import EntryBatch
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import pack_batch
from bookie.errors import ClientClosedError, OperationTimeoutError
from bookie.ids import Status
from bookie.ledger.connection.pool import AddSender, BookiePool, OnAnswer
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.wire.client.channel import LacReply, LacState, ReadCommand, ReadReply

LEDGER_ID = 9
DIGESTER = digester_for_key(DigestType.CRC32C, b"")

OnRead = Callable[[str, ReadCommand], Awaitable[ReadReply]]
OnLac = Callable[[LacState], None]


def metadata_of(sizes: tuple[int, int, int] = (3, 3, 2)) -> LedgerMetadata:
    """An open ledger on bookies b0, b1, …"""
    return LedgerMetadata(
        ledger_id=LEDGER_ID,
        ensemble_size=sizes[0],
        write_quorum_size=sizes[1],
        ack_quorum_size=sizes[2],
        state=LedgerState.OPEN,
        fragments=(Fragment(0, tuple(f"b{slot}" for slot in range(sizes[0]))),),
    )


def packed(first: int, count_: int) -> EntryBatch:
    """Entries whose payload is their id."""
    payloads = [b"%d" % entry_id for entry_id in range(first, first + count_)]
    return pack_batch(LEDGER_ID, first, -1, 0, payloads, DIGESTER)


def reply_to(command: ReadCommand, until: int) -> ReadReply:
    """The answer of a bookie that stores all entries below `until`; at most 100 entries."""
    first = command.first_entry_id
    end = min(command.last_entry_id + 1, until, first + 100)
    if first >= until:
        return ReadReply(Status.NO_SUCH_ENTRY, next_entry_id=first)
    stopped_by = Status.NO_SUCH_ENTRY if end == until else Status.OK
    return ReadReply(Status.OK, "", packed(first, end - first), end, stopped_by)


class FakeLane:
    """Takes requests; the test answers them."""

    tls_problem = ""

    def __init__(self) -> None:
        self.users: list[AddSender] = []
        self.sent: list[tuple[int, bytes, OnAnswer]] = []

    def join(self, user: AddSender) -> None:
        self.users.append(user)
        user.on_up()

    def leave(self, user: AddSender) -> None:
        if user in self.users:
            self.users.remove(user)

    def suspect(self, teller: AddSender, seconds: float) -> None:
        pass

    def send(self, request_id: int, data: bytes, on_answer: OnAnswer) -> None:
        self.sent.append((request_id, data, on_answer))

    def describe(self) -> str:
        return f"{len(self.sent)} unanswered"

    def answer(
        self, status: Status = Status.OK, message: str = "", retry_after_ms: int = 0
    ) -> None:
        """Answer everything that was sent."""
        sent, self.sent = self.sent, []
        for _, _, on_answer in sent:
            on_answer(status, message, retry_after_ms)


class FakeChannel:
    """One bookie for reads."""

    def __init__(self, bookie_id: str, on_read: OnRead) -> None:
        self._bookie_id = bookie_id
        self._on_read = on_read
        self.lac_reply = LacReply(Status.NO_SUCH_LEDGER)
        """The bookie's answer about the end of a ledger."""
        self.lac_asked = 0

    async def read_lac(self, ledger_id: int, master_key: bytes, *, timeout: float) -> LacReply:
        self.lac_asked += 1
        return self.lac_reply

    async def read(self, command: ReadCommand, *, timeout: float) -> ReadReply:
        try:
            async with asyncio.timeout(timeout):
                return await self._on_read(self._bookie_id, command)
        except TimeoutError as error:
            raise OperationTimeoutError(f"{self._bookie_id} did not answer") from error

    async def read_entry(self, command: ReadCommand, *, timeout: float) -> ReadReply:
        return await self.read(command, timeout=timeout)


class FakeLacs:
    """Hints of one bookie; the test gives them."""

    def __init__(self) -> None:
        self._callbacks: dict[int, list[OnLac]] = defaultdict(list)

    def subscribe(self, ledger_id: int, callback: OnLac) -> None:
        self._callbacks[ledger_id].append(callback)

    def unsubscribe(self, ledger_id: int, callback: OnLac) -> None:
        self._callbacks[ledger_id].remove(callback)

    def hint(self, max_lac: int, packet: bytes = b"") -> None:
        """Tell everybody who follows the ledger."""
        for callback in self._callbacks[LEDGER_ID]:
            callback(LacState(LEDGER_ID, max_lac, fenced=False, lac_packet=packet))


class FakeConnection:
    """One bookie."""

    def __init__(self, bookie_id: str, on_read: OnRead) -> None:
        self.lacs = FakeLacs()
        self._lanes: dict[str, FakeLane] = defaultdict(FakeLane)
        """By incarnation."""
        self._channel = FakeChannel(bookie_id, on_read)

    def plain(self, incarnation: str = "") -> FakeLane:
        return self._lanes[incarnation]

    def channel(self) -> FakeChannel:
        return self._channel


async def refuse_reads(bookie_id: str, command: ReadCommand) -> ReadReply:
    raise AssertionError(f"{bookie_id} was not to be asked for {command}")


UNNAMED: Mapping[str, str] = defaultdict(str)
"""Bookies that have no incarnations."""


class FakePool:
    """Bookies made on demand."""

    def __init__(
        self, tasks: asyncio.TaskGroup, settings: ClientSettings, on_read: OnRead = refuse_reads
    ) -> None:
        self.settings = settings
        self.tasks = tasks
        self.is_closed = False
        self.connections: dict[str, FakeConnection] = {}
        self._on_read = on_read
        self._request_ids = count(1)

    def connection(self, bookie_id: str) -> FakeConnection:
        if bookie_id not in self.connections:
            self.connections[bookie_id] = FakeConnection(bookie_id, self._on_read)
        return self.connections[bookie_id]

    def lane(self, slot: int) -> FakeLane:
        return self.connection(f"b{slot}").plain()

    def next_request_id(self) -> int:
        return next(self._request_ids)

    def spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        return self.tasks.create_task(work, name=name)

    def require_open(self) -> None:
        if self.is_closed:
            raise ClientClosedError("the client is closed")

    def on_close(self, callback: Callable[[], None]) -> None:
        pass

    def linger(self, event: asyncio.Event) -> None:
        """This pool does not wait when it ends."""

    def off_close(self, callback: Callable[[], None]) -> None:
        pass

    @property
    def pool(self) -> BookiePool:
        """The stand-in."""
        return cast("BookiePool", self)


@asynccontextmanager
async def fake_pool(
    settings: ClientSettings | None = None, on_read: OnRead = refuse_reads
) -> AsyncIterator[FakePool]:
    """Fake bookies for the time of a test."""
    async with asyncio.TaskGroup() as tasks:
        yield FakePool(tasks, settings or ClientSettings(), on_read)
