"""What every machine's driver needs: timers, metadata operations, bookies' answers as evidence.

A driver owns one machine. It feeds it one event at a time, carries out the effects in their order,
and starts what takes time (a call, a timer) so that its outcome comes back as an event later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from bookie.cluster.ledgers import LedgerManager
from bookie.errors import BadVersionError, BookieError, ChecksumError, FormatError
from bookie.formats.batch import EntryBatch
from bookie.formats.digest import Digester
from bookie.formats.entry import (
    Entries,
    Entry,
    parse_header,
    unpack_lac,
    unpack_packet,
    verify_batch,
)
from bookie.ids import NO_ENTRY, Status
from bookie.protocol.exchange import (
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    StartTimer,
    TimerId,
    WriteMetadata,
)
from bookie.rpc.channels import LacReply, ReadReply
from bookie.rpc.deadlines import LATE_SECONDS

T = TypeVar("T")

MetadataEvent = MetadataRead | MetadataWritten | MetadataConflict | MetadataFailed


PART_SECONDS = 0.5
"""What one look at the clock adds to a timer at most."""


class Timers:
    """The timers of one machine, which go by the time in which the event loop ran.

    A loop that was held up, by its own program or because the process was stopped, finds its timers
    run out before it has looked at a single answer that arrived meanwhile. So a timer is made of
    short parts, one begun when the one before was over: however long the loop stood still, that is
    one part of the time. After a last part that came late there is one more, and no other, so that
    a loop that is always late has timeouts as well.
    """

    def __init__(self, on_fired: Callable[[TimerId], None]) -> None:
        self._on_fired = on_fired
        self._loop = asyncio.get_running_loop()
        self._running: dict[TimerId, asyncio.TimerHandle] = {}

    def start(self, effect: StartTimer) -> None:
        """Start a timer, or start it anew."""
        self.cancel(effect.timer)
        self._begin_part(effect.timer, effect.seconds, is_last=False)

    def cancel(self, timer: TimerId) -> None:
        """Forget a timer, if it runs."""
        handle = self._running.pop(timer, None)
        if handle is not None:
            handle.cancel()

    def clear(self) -> None:
        """Forget all timers."""
        for handle in self._running.values():
            handle.cancel()
        self._running.clear()

    def _begin_part(self, timer: TimerId, seconds: float, *, is_last: bool) -> None:
        """Wait for a part of `seconds`; `is_last` says that it ends the timer, late or not."""
        part = min(seconds, PART_SECONDS)
        due = self._loop.time() + part
        self._running[timer] = self._loop.call_at(
            due, self._end_part, timer, due, seconds - part, is_last
        )

    def _end_part(self, timer: TimerId, due: float, left_seconds: float, is_last: bool) -> None:
        if left_seconds > 0:
            self._begin_part(timer, left_seconds, is_last=False)
        elif not is_last and self._loop.time() - due > LATE_SECONDS:
            self._begin_part(timer, PART_SECONDS, is_last=True)
        else:
            del self._running[timer]
            self._on_fired(timer)


class Calls(Generic[T]):
    """Calls under way whose outcomes are taken one by one as they end.

    An async context manager: at its end the calls that still run are cancelled. Errors of the body
    pass by unchanged. A call must turn the failures that it expects into outcomes.
    """

    def __init__(self) -> None:
        self._tasks = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._outcomes: asyncio.Queue[T] = asyncio.Queue()

    def start(self, call: Coroutine[None, None, T], name: str) -> None:
        """Begin a call."""
        task = self._tasks.create_task(self._run(call), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def put(self, outcome: T) -> None:
        """Add an outcome that needs no call."""
        self._outcomes.put_nowait(outcome)

    async def next(self) -> T:
        """The outcome of the call that ended first among those not taken yet."""
        return await self._outcomes.get()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._running:
            task.cancel()
        # The body's own error passes by the group, which would wrap it.
        await self._tasks.__aexit__(None, None, None)

    async def _run(self, call: Coroutine[None, None, T]) -> None:
        self._outcomes.put_nowait(await call)


async def carry_out_metadata(
    ledgers: LedgerManager, ledger_id: int, effect: ReadMetadata | WriteMetadata
) -> MetadataEvent:
    """Do one metadata operation; its outcome, whatever it is, as an event."""
    try:
        if isinstance(effect, ReadMetadata):
            found = await ledgers.read(ledger_id)
            return MetadataRead(found.value, found.version)
        written = await ledgers.write(effect.metadata, effect.version)
    except BadVersionError:
        return MetadataConflict()
    except BookieError as error:
        return MetadataFailed(error)
    return MetadataWritten(written.version)


def fresh(error: BookieError) -> BookieError:
    """The same error as a new object: one that is raised twice would collect both tracebacks."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


# -- evidence --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerifiedRead:
    """The answer to a read after its digests were checked.

    Where a digest fails, `batch` and `entries` end before that entry, `next_entry_id` is that
    entry, and `stopped_by` is `Status.BAD_CHECKSUM`.
    """

    status: Status
    batch: EntryBatch | None = None
    entries: Sequence[Entry] = ()
    next_entry_id: int = NO_ENTRY
    stopped_by: Status = Status.OK
    message: str = ""


@dataclass(frozen=True, slots=True)
class VerifiedLac:
    """What a bookie proved about the end of a ledger."""

    status: Status
    last_add_confirmed: int = NO_ENTRY
    last_entry_id: int = NO_ENTRY
    last_length: int = 0
    message: str = ""


def verify_read(reply: ReadReply, digester: Digester) -> VerifiedRead:
    """Check every packet of an answer."""
    batch = reply.batch
    if reply.status is not Status.OK or batch is None:
        return VerifiedRead(
            reply.status,
            next_entry_id=reply.next_entry_id,
            stopped_by=reply.stopped_by,
            message=reply.message,
        )
    try:
        entries = verify_batch(batch, digester)
    except ChecksumError:
        return _verified_prefix(batch, digester)
    return VerifiedRead(
        Status.OK, batch, entries, reply.next_entry_id, reply.stopped_by, reply.message
    )


def _verified_prefix(batch: EntryBatch, digester: Digester) -> VerifiedRead:
    payloads: list[bytes] = []
    ids: list[int] = batch.entry_ids().tolist()
    for entry_id, packet in zip(ids, batch.packets(), strict=True):
        try:
            payload = unpack_packet(batch.ledger_id, entry_id, packet, digester)
        except ChecksumError as error:
            prefix = batch.clip(batch.first_entry_id, entry_id - 1) if payloads else None
            entries = Entries(ids[: len(payloads)], payloads)
            return VerifiedRead(
                Status.OK, prefix, entries, entry_id, Status.BAD_CHECKSUM, str(error)
            )
        payloads.append(payload)
    raise AssertionError("a batch failed its digests, but none of its packets did")


def verify_lac(ledger_id: int, reply: LacReply, digester: Digester) -> VerifiedLac:
    """Believe only what packets prove; one wrong packet spoils the whole answer."""
    if reply.status is not Status.OK and not reply.status.is_definite_negative:
        return VerifiedLac(reply.status, message=reply.message)
    lac = last = NO_ENTRY
    length = 0
    try:
        if reply.last_entry:
            header = parse_header(reply.last_entry)
            unpack_packet(ledger_id, header.entry_id, reply.last_entry, digester)
            lac, last, length = header.last_add_confirmed, header.entry_id, header.length
        if reply.lac_packet:
            lac = max(lac, unpack_lac(ledger_id, reply.lac_packet, digester))
    except (ChecksumError, FormatError) as error:
        return VerifiedLac(Status.BAD_CHECKSUM, message=str(error))
    return VerifiedLac(reply.status, lac, last, length)
