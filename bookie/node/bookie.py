"""Answers the adds, reads, fences and LAC requests that one bookie gets.

All code here runs in one event loop. The bookie accepts or refuses each add in one synchronous
section. If the ledger's state must be loaded first, or stored bytes must be compared, the bookie
starts a task for the add. If a caller is cancelled, the caller's add is still completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from bookie.config import NodeSettings
from bookie.entry.batch import check_headers
from bookie.entry.checksum import crc32c
from bookie.entry.entry import lac_packet_ids
from bookie.env import DiskUsage, Outcome
from bookie.env.budget import ByteBudget
from bookie.errors import (
    BadRequestError,
    BookieError,
    CorruptionError,
    ShuttingDownError,
    StorageFailedError,
    error_for_status,
)
from bookie.ids import MAX_ID, NO_ENTRY, Status
from bookie.node.engine.admission import UNAUTHORIZED
from bookie.node.engine.engine import Engine
from bookie.node.engine.format.arrays import IdRanges
from bookie.node.engine.ledger_state import LocalLedger
from bookie.node.lac_watch import FirstUpdates, LacCallback, LacWatches, lac_state
from bookie.node.reads import EntryReads, problem_of
from bookie.telemetry import Metrics, event_log
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

_log = event_log(__name__)

COMMAND = "command"
"""The name of the reason for read-only mode that an operator's command or setting adds."""

LAC_PACKET_BYTES_MAX = 64
KEY_BYTES_MAX = 64

_UNNAMED_IN_LIMBO = Reply(
    Status.UNKNOWN_LEDGER_STATE,
    "the ledger is in limbo here, and the client named no incarnation of this bookie",
)

_SHUTTING_DOWN = Reply(Status.SHUTTING_DOWN, "the bookie is stopping")


class Bookie:
    """Serves a bookie's requests with a storage engine; `open_bookie` makes a `Bookie`."""

    def __init__(
        self,
        engine: Engine,
        settings: NodeSettings,
        metrics: Metrics,
        *,
        bookie_id: str,
        instance_id: str,
        incarnation: str,
        version: str,
        usage: Callable[[], DiskUsage],
        spawn: Callable[[Coroutine[object, object, None]], object],
    ) -> None:
        self.bookie_id = bookie_id
        self.instance_id = instance_id
        self.incarnation = incarnation
        """A random id of the bookie; a start renews the id if acknowledged entries may be lost."""
        self._version = version
        self._engine = engine
        self._clock = engine.clock
        self.settings = settings
        """The settings, replaceable at any time; only changes of dynamic settings take effect."""
        self._metrics = metrics
        self._usage = usage
        self._spawn = spawn
        self._reads = EntryReads(engine, settings)
        budget = ByteBudget(settings.in_flight_add_bytes_max)
        metrics.in_flight_add_bytes.set_function(lambda: budget.used)
        self._adds_in_flight = budget
        self.watches = LacWatches(metrics.lac_watches.set)
        """The watchers of each ledger; `add_watch` adds a watcher."""
        self._first_updates = FirstUpdates(self._first_update, spawn)
        self._closing = False
        self.set_read_only(COMMAND, read_only=settings.read_only)

    # --- state ---------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        """True if new entries are refused; recovery adds and fences are still accepted."""
        return bool(self._engine.read_only_reasons)

    def read_only_reasons(self) -> list[str]:
        return sorted(self._engine.read_only_reasons)

    def set_read_only(self, reason: str, *, read_only: bool) -> None:
        """Add `reason` to the reasons for refusing new entries; without `read_only`, remove it."""
        reasons = self._engine.read_only_reasons
        if (reason in reasons) == read_only:
            return
        if read_only:
            reasons.add(reason)
        else:
            reasons.discard(reason)
        _log.info("read_only_changed", read_only=bool(reasons), reasons=sorted(reasons))

    def stop_accepting(self) -> None:
        """Answer new requests with SHUTTING_DOWN; complete requests that were accepted earlier."""
        self._closing = True

    async def info(self) -> Info:
        """Return the bookie's ids, version, free space, ledger count, read-only state and time."""
        usage = self._usage()
        return Info(
            bookie_id=self.bookie_id,
            instance_id=self.instance_id,
            version=self._version,
            read_only=self.read_only,
            total_bytes=usage.total_bytes,
            free_bytes=usage.free_bytes,
            ledgers=await self._engine.ledger_count(),
            incarnation=self.incarnation,
            now_ms=self._clock.now_ms(),
        )

    # --- adds ----------------------------------------------------------------------------

    def try_admit_add(self, size: int, recovery: bool = False) -> bool:
        """Take `size` bytes of the budget for adds in flight; return False if the add must wait.

        When the add ends, `add` gives the bytes back. A recovery add may exceed the budget by a
        quarter, and may overtake waiting adds.
        """
        budget = self._adds_in_flight
        beyond = budget.bytes_max // 4 if recovery else 0
        return not self._engine.holds_adds_back and budget.try_take(size, beyond)

    async def admit_add(self, size: int) -> None:
        await self._adds_in_flight.take(size)
        try:
            await self._engine.room_for_adds()
        except BaseException:
            self._adds_in_flight.give_back(size)
            raise

    def add(self, command: AddCommand, admitted: int = 0) -> Outcome[Reply]:
        """Accept or refuse an add now, or as soon as the state of the ledger is loaded.

        The returned outcome gets the reply once the add is durable or refused; with
        `deferred_sync`, once the add is written. After the reply, the bookie gives the `admitted`
        bytes back to the budget, even if the caller was cancelled.
        """
        try:
            outcome = self._add(command)
        except BaseException:
            self._adds_in_flight.give_back(admitted)
            raise
        if admitted:
            outcome.then(lambda _: self._adds_in_flight.give_back(admitted))
        return outcome

    def add_unnamed(self, command: AddCommand, admitted: int = 0) -> Outcome[Reply]:
        """Accept or refuse an add of a client that named no incarnation of this bookie; see `add`.

        New entries of a ledger in limbo are refused. The writer of a ledger in limbo may rely on
        entries, or on a fence, that this bookie lost.
        """
        if command.recovery or command.batch is None:
            return self.add(command, admitted)
        state = self._engine.known(command.ledger_id)
        if state is not None and not state.limbo:
            return self.add(command, admitted)
        outcome: Outcome[Reply] = Outcome()
        self._spawn(self._add_unless_in_limbo(command, admitted, outcome))
        return outcome

    async def _add_unless_in_limbo(
        self, command: AddCommand, admitted: int, outcome: Outcome[Reply]
    ) -> None:
        refusal: Reply | None = None
        try:
            if not 0 <= command.ledger_id <= MAX_ID:
                refusal = Reply(Status.BAD_REQUEST, "the ledger id is out of range")
            elif (await self._engine.load(command.ledger_id)).limbo:
                refusal = _UNNAMED_IN_LIMBO
        except BookieError as error:
            refusal = Reply(error.status, str(error))
        except asyncio.CancelledError:
            self._adds_in_flight.give_back(admitted)
            outcome.settle(_SHUTTING_DOWN)
            raise
        if refusal is None:
            self.add(command, admitted).then(outcome.settle)
        else:
            self._adds_in_flight.give_back(admitted)
            outcome.settle(refusal)

    def _add(self, command: AddCommand) -> Outcome[Reply]:
        max_lac, problem = _check_add(command)
        if problem is not None:
            return Outcome.of(problem)
        if self._closing:
            return Outcome.of(_SHUTTING_DOWN)
        state = self._engine.known(command.ledger_id)
        if state is None or self._must_compare(state, command):
            outcome: Outcome[Reply] = Outcome()
            self._spawn(self._add_after_load(command, max_lac, outcome))
            return outcome
        return self._add_to(state, command, max_lac)

    def _must_compare(self, state: LocalLedger, command: AddCommand) -> bool:
        batch = command.batch
        return batch is not None and not command.recovery and state.may_hold(batch)

    def _add_to(self, state: LocalLedger, command: AddCommand, max_lac: int) -> Outcome[Reply]:
        """Refuse the request, or put it into the memtable and the journal queue; never await."""
        engine = self._engine
        batch = command.batch
        refusal = engine.refusal(state, command.master_key, recovery=command.recovery)
        if refusal is not None and not (batch is None and refusal.status is Status.READ_ONLY):
            return Outcome.of(refusal)
        lac_before = state.max_lac
        if batch is None:
            engine.publish_lac(state, command.lac_packet, command.master_key)
            self._notify(state, lac_before)
            return Outcome.of(Reply(Status.OK))
        waiter = engine.add(state, command, max_lac)
        metrics = self._metrics
        metrics.entries_added_total.inc(len(batch.sizes))
        metrics.bytes_added_total.inc(len(batch.payload))
        if state.max_lac > lac_before:
            self.watches.notify(state)
        return waiter

    async def _add_after_load(
        self, command: AddCommand, max_lac: int, outcome: Outcome[Reply]
    ) -> None:
        try:
            state = await self._engine.load(command.ledger_id)
            state.users += 1
            try:
                if self._must_compare(state, command):
                    reply = await self._add_over(state, command, max_lac)
                else:
                    reply = await self._add_to(state, command, max_lac)
            finally:
                state.users -= 1
        except BookieError as error:
            reply = Reply(error.status, str(error))
        except asyncio.CancelledError:
            outcome.settle(_SHUTTING_DOWN)
            raise
        outcome.settle(reply)

    async def _add_over(self, state: LocalLedger, command: AddCommand, max_lac: int) -> Reply:
        refusal = self._engine.refusal(state, command.master_key, recovery=False)
        if refusal is not None:
            return refusal
        lac_before = state.max_lac
        try:
            reply = await self._engine.add_over_stored(state, command, max_lac)
        except CorruptionError as error:
            return Reply(Status.IO_ERROR, str(error))
        self._notify(state, lac_before)
        return reply

    async def force(self, ledger_id: int) -> Reply:
        """Reply OK once all requests accepted so far, for all ledgers, are durable."""
        if not 0 <= ledger_id <= MAX_ID:
            return Reply(Status.BAD_REQUEST, f"ledger id {ledger_id} is out of range")
        if self._closing:
            return _SHUTTING_DOWN
        return await self._engine.force()

    # --- fences and LAC --------------------------------------------------------------------

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        state, refusal = await self._fenced(ledger_id, key)
        if refusal is not None:
            return LacReply(refusal.status, refusal.message, fenced=state is not None)
        assert state is not None
        return await self._lac(state)

    async def read_lac(self, ledger_id: int, key: bytes) -> LacReply:
        state, refusal = await self._authorized(ledger_id, key)
        if refusal is not None:
            return LacReply(refusal.status, refusal.message)
        assert state is not None
        return await self._lac(state)

    async def write_lac(self, ledger_id: int, key: bytes, packet: bytes) -> Reply:
        """Store an explicit LAC in memory now, and in the next journal block, without a sync."""
        return await self.add(AddCommand(None, ledger_id, key, 0, lac_packet=packet))

    def watch(self, callback: LacCallback) -> LacWatcher:
        return LacWatcher(self, callback)

    def add_watch(self, ledger_id: int, callback: LacCallback) -> None:
        """Call `callback` with the ledger's state now and at each change, until `end_watch`.

        Raises:
            BadRequestError: the id is out of range, or too many ledgers are watched.
            ShuttingDownError: the bookie is stopping.
        """
        if not 0 <= ledger_id <= MAX_ID:
            raise BadRequestError(f"ledger id {ledger_id} is out of range")
        if self._closing:
            raise ShuttingDownError("the bookie is stopping")
        if len(self.watches) >= self.settings.lac_watches_max:
            raise BadRequestError("this bookie watches as many ledgers as it may")
        # Register the callback before reading the state: no update is missed, but one may come
        # twice.
        self.watches.add(ledger_id, callback)
        self._first_updates.add(ledger_id, callback)

    def end_watch(self, ledger_id: int, callback: LacCallback) -> None:
        """Stop calling `callback` for changes of a ledger."""
        self.watches.remove(ledger_id, callback)
        self._first_updates.remove(ledger_id, callback)

    async def _first_update(self, ledger_id: int, callback: LacCallback) -> None:
        if self._closing or not self.watches.has(ledger_id, callback):
            return
        try:
            update = lac_state(await self._engine.load(ledger_id))
        except CorruptionError:
            update = LacState(ledger_id, NO_ENTRY, fenced=False, status=Status.IO_ERROR)
        if self.watches.has(ledger_id, callback):
            callback(update)

    async def _lac(self, state: LocalLedger) -> LacReply:
        try:
            return await self._reads.read_lac(state)
        except (CorruptionError, StorageFailedError) as error:
            return LacReply(Status.IO_ERROR, str(error), fenced=state.fenced)

    async def _authorized(
        self, ledger_id: int, key: bytes, *, key_needed: bool = False
    ) -> tuple[LocalLedger | None, Reply | None]:
        """Return the ledger's state or a refusal; an empty key is checked only if `key_needed`."""
        if not 0 <= ledger_id <= MAX_ID or len(key) > KEY_BYTES_MAX:
            return None, Reply(Status.BAD_REQUEST, f"ledger id {ledger_id} or key out of range")
        if self._closing:
            return None, _SHUTTING_DOWN
        state = self._engine.known(ledger_id)
        if state is None:
            try:
                state = await self._engine.load(ledger_id)
            except CorruptionError as error:
                return None, Reply(Status.IO_ERROR, str(error))
        if (key or key_needed) and not state.accepts_key(key):
            return None, UNAUTHORIZED
        return state, None

    async def _fenced(self, ledger_id: int, key: bytes) -> tuple[LocalLedger | None, Reply | None]:
        """Fence the ledger durably; return its state, and a refusal if the fence is not durable."""
        state, refusal = await self._authorized(ledger_id, key, key_needed=True)
        if state is None or refusal is not None:
            return None, refusal
        if state.deleted:
            # Adds to a deleted ledger are already refused; make the deletion durable, too.
            outcome = await self._engine.force()
            return state, None if outcome.status is Status.OK else outcome
        was_fenced = state.fenced
        fencing = self._engine.fence(state, key)
        if not was_fenced:
            # Notify the watchers now, because the caller may be cancelled before the fence is
            # durable. For watchers, the update is only a hint, so the fence need not be durable
            # yet.
            self.watches.notify(state)
        outcome = await fencing
        return state, None if outcome.status is Status.OK else outcome

    def _notify(self, state: LocalLedger, lac_before: int) -> None:
        if state.max_lac > lac_before:
            self.watches.notify(state)

    # --- reads -----------------------------------------------------------------------------

    def try_read(self, command: ReadCommand) -> ReadReply | None:
        state = self._engine.known(command.ledger_id)
        if state is None or self._closing or command.fence:
            return None
        if command.master_key and not state.accepts_key(command.master_key):
            return None
        began = self._clock.monotonic()
        reply = self._reads.try_read(state, command)
        if reply is not None:
            self._metrics.read_seconds.observe(self._clock.monotonic() - began)
            self._count_read(reply)
        return reply

    async def read(self, command: ReadCommand) -> ReadReply:
        """Fence the ledger if requested, then read; the RPC layer limits the bytes of replies."""
        began = self._clock.monotonic()
        try:
            reply = await self._read(command)
        finally:
            self._metrics.read_seconds.observe(self._clock.monotonic() - began)
        self._count_read(reply)
        return reply

    def _count_read(self, reply: ReadReply) -> None:
        if reply.batch is not None:
            self._metrics.entries_read_total.inc(reply.batch.count)
            self._metrics.bytes_read_total.inc(reply.batch.payload_bytes)

    async def _read(self, command: ReadCommand) -> ReadReply:
        problem = problem_of(command)
        if problem:
            return ReadReply(Status.BAD_REQUEST, problem, stopped_by=Status.BAD_REQUEST)
        if command.fence:
            state, refusal = await self._fenced(command.ledger_id, command.master_key)
        else:
            state, refusal = await self._authorized(command.ledger_id, command.master_key)
        if refusal is not None:
            return ReadReply(refusal.status, refusal.message, stopped_by=refusal.status)
        assert state is not None
        try:
            return await self._reads.read(state, command)
        except (CorruptionError, StorageFailedError) as error:
            return ReadReply(Status.IO_ERROR, str(error), stopped_by=Status.IO_ERROR)

    async def list_entries(
        self, ledger_id: int, first: int, last: int, key: bytes = b""
    ) -> AsyncIterator[IdRanges]:
        """Yield ranges of the stored ids, like `EntryReads.entries`; an empty key is not checked.

        Raises:
            UnauthorizedError: this bookie stores another ledger with this id.
            ShuttingDownError: the bookie is stopping.
            BadRequestError, NoSuchLedgerError, CorruptionError: as in `EntryReads.entries`.
        """
        state, refusal = await self._authorized(ledger_id, key)
        if refusal is not None:
            raise error_for_status(refusal.status, refusal.message)
        assert state is not None
        async for ranges in self._reads.entries(state, first, last):
            yield ranges

    async def list_ledgers(self, after: int) -> AsyncIterator[list[LedgerRow]]:
        """Yield rows of the ledgers stored here with ids above `after`; see `EntryReads.ledgers`.

        Raises:
            BadRequestError: `after` is out of range.
        """
        if not NO_ENTRY <= after <= MAX_ID:
            raise BadRequestError(f"ledger id {after} is out of range")
        async for rows in self._reads.ledgers(after):
            yield rows


class LacWatcher:
    """The subscriptions of one watcher; `close` ends all subscriptions."""

    def __init__(self, bookie: Bookie, callback: Callable[[LacState], None]) -> None:
        self._bookie = bookie
        self._callback = callback
        self._ledger_ids: set[int] = set()

    def subscribe(self, ledger_id: int) -> None:
        """Watch a ledger; the callback first gets the present state; raises like `add_watch`."""
        if ledger_id not in self._ledger_ids:
            self._bookie.add_watch(ledger_id, self._callback)
            self._ledger_ids.add(ledger_id)

    def unsubscribe(self, ledger_id: int) -> None:
        if ledger_id in self._ledger_ids:
            self._ledger_ids.remove(ledger_id)
            self._bookie.end_watch(ledger_id, self._callback)

    def close(self) -> None:
        for ledger_id in sorted(self._ledger_ids):
            self._bookie.end_watch(ledger_id, self._callback)
        self._ledger_ids.clear()


def _check_add(command: AddCommand) -> tuple[int, Reply | None]:
    """Return the highest LAC in the request, and a refusal if the request is invalid."""
    max_lac = NO_ENTRY
    if not 0 <= command.ledger_id <= MAX_ID or len(command.master_key) > KEY_BYTES_MAX:
        return max_lac, Reply(Status.BAD_REQUEST, "the ledger id or the key is out of range")
    batch = command.batch
    try:
        if command.lac_packet:
            max_lac = _check_lac_packet(command)
        elif batch is None:
            return max_lac, Reply(Status.BAD_REQUEST, "the request has neither entries nor a LAC")
        if batch is not None:
            if batch.ledger_id != command.ledger_id:
                raise BadRequestError(
                    f"entries of ledger {batch.ledger_id} came for ledger {command.ledger_id}"
                )
            if crc32c(batch.payload) != command.payload_crc32c:
                return max_lac, Reply(
                    Status.BAD_CHECKSUM, "the payload does not match its checksum"
                )
            max_lac = max(max_lac, check_headers(batch))
    except BookieError as error:
        return max_lac, Reply(Status.BAD_REQUEST, str(error))
    return max_lac, None


def _check_lac_packet(command: AddCommand) -> int:
    if len(command.lac_packet) > LAC_PACKET_BYTES_MAX:
        raise BadRequestError(f"a LAC packet has at most {LAC_PACKET_BYTES_MAX} bytes")
    ledger_id, lac = lac_packet_ids(command.lac_packet)
    if ledger_id != command.ledger_id or not NO_ENTRY <= lac <= MAX_ID:
        raise BadRequestError(f"the LAC packet is about entry {lac} of ledger {ledger_id}")
    return lac


@asynccontextmanager
async def open_bookie(
    engine: Engine,
    settings: NodeSettings,
    metrics: Metrics,
    *,
    bookie_id: str,
    instance_id: str,
    version: str,
    usage: Callable[[], DiskUsage],
    incarnation: str = "",
) -> AsyncIterator[Bookie]:
    """Open a bookie on `engine`; the end of the ``with`` block waits for the bookie's tasks."""
    async with asyncio.TaskGroup() as tasks:
        bookie = Bookie(
            engine,
            settings,
            metrics,
            bookie_id=bookie_id,
            instance_id=instance_id,
            incarnation=incarnation,
            version=version,
            usage=usage,
            spawn=tasks.create_task,
        )
        try:
            yield bookie
        finally:
            bookie.stop_accepting()
