"""The handle through which a client writes a ledger.

::

    append ─▶ AppendQueue ─▶ LedgerWriter (machine) ─▶ pack, encode once ─▶ a lane per slot
       ▲                            ▲ │ Confirmed                                │
       └── futures ◀── appends ◀────┼─┘                 answers ◀────────────────┘

The queue is flushed once per turn of the event loop. Appends of one turn share a batch, and a
single append does not wait for a timer. After the flush, all work is done per batch, not per entry.
"""

from __future__ import annotations

import asyncio
import random
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Self, assert_never

from bookie.errors import BadRequestError, BookieError, ClientClosedError
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.connection.arguments import Payload, checked_bytes, checked_payloads
from bookie.ledger.connection.calls import carry_out_metadata, fresh, settle
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.exchange import (
    CancelTimer,
    ChooseNewcomers,
    NewcomersChosen,
    ReadMetadata,
    StartTimer,
    TimerFired,
    TimerId,
    WriteMetadata,
)
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.place.ensembles import Ensembles
from bookie.ledger.quorum import mask_of, slots_of
from bookie.ledger.write.append_queue import (
    AppendQueue,
    ConfirmationWaiters,
    ForceWaiters,
    NewEntries,
    PendingAppends,
)
from bookie.ledger.write.in_flight import InFlightWindow
from bookie.ledger.write.pending import BATCH_ENTRIES_MAX, WriterLimits
from bookie.ledger.write.requests import Request, RequestEncoder
from bookie.ledger.write.writer import LedgerWriter
from bookie.ledger.write.writer_events import (
    AddAnswered,
    Append,
    Close,
    CloseFailed,
    Confirmed,
    Failed,
    Force,
    ForceAnswered,
    ForceDone,
    Idle,
    LacAnswered,
    Release,
    ReplaceBookies,
    Resend,
    SendBatch,
    SendForce,
    SendLac,
    WriterClosed,
    WriterEffect,
    WriterEvent,
    WriterState,
)
from bookie.ledger.write.writer_lanes import WriterLanes
from bookie.metadata.versioned import Versioned
from bookie.telemetry import event_log
from bookie.wire.deadlines import Deadlines

_log = event_log(__name__)


class LacSent:
    """A LAC that was sent without entries; a closing client waits until readers can learn it."""

    def __init__(self, missing: int) -> None:
        self.missing = missing
        """The number of further answers after which every reader can learn the LAC."""
        self.told = asyncio.Event()

    def answered(self) -> None:
        self.missing -= 1
        if self.missing <= 0:
            self.told.set()


class WriterHandle:
    """Appends to one ledger, as its only writer. `BookKeeper.create_ledger` creates writers.

    When an append returns, its entry is durable on an ack quorum. Readers can read the entry soon
    afterwards, because the writer sends the new LAC to the bookies at once. If the process is
    killed before the writer sends the LAC, a recovery makes the entry readable. Appends may be
    concurrent; entry ids follow the order of the calls. The end of an `async with` block closes the
    ledger. All calls must come from the event loop that created the writer; other calls raise
    BadRequestError. If a writer is dropped without `close`, its ledger stays open, and Python emits
    a ResourceWarning.
    """

    def __init__(
        self,
        created: Versioned[LedgerMetadata],
        pool: BookiePool,
        ledgers: LedgerManager,
        incarnations: Mapping[str, str],
        ensembles: Ensembles | None = None,
        *,
        deferred_sync: bool = False,
    ) -> None:
        """`incarnations` are the bookies' incarnations, read before the ledger was created.

        Without `ensembles` no bookie is ever replaced.
        """
        metadata, settings = created.value, pool.settings
        jitter = random.uniform(1, 1.2)  # noqa: S311  (ledgers of one client must not change at once)
        limits = WriterLimits(
            add_timeout_seconds=settings.add_timeout_seconds,
            in_flight_bytes_max=settings.in_flight_bytes_max,
            replace_after_seconds=settings.replace_after_seconds * jitter,
            changes_per_minute_max=settings.changes_per_minute_max if ensembles else 0,
            rate_patience_seconds=settings.rate_patience_seconds,
        )
        self._machine = LedgerWriter(metadata, created.version, limits, deferred_sync=deferred_sync)
        self._ledger_id = metadata.ledger_id
        self._token = metadata.c_token
        self._encoder = RequestEncoder(
            metadata, self._machine.quorum, pool.next_request_id, deferred_sync=deferred_sync
        )
        self._pool = pool
        self._ledgers = ledgers
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        on_timer: weakref.WeakMethod[Callable[[TimerId], None]]
        on_timer = weakref.WeakMethod(self._on_timer)
        self._timers: Deadlines[TimerId] = Deadlines(partial(_fire, on_timer))
        self._queue = AppendQueue(
            self._encoder.digester.size_bytes,
            min(settings.batch_entries_max, BATCH_ENTRIES_MAX),
            settings.batch_bytes_max,
        )
        self._taken = PendingAppends()
        """The group of appends that the next `SendBatch` packs."""
        self._unconfirmed: dict[int, PendingAppends] = {}
        self._requests: dict[int, dict[int, Request]] = {}
        """The encoded requests, by batch and slot, kept for a resend."""
        self._in_flight = InFlightWindow(
            settings.in_flight_entries_max, settings.in_flight_bytes_max
        )
        """Counts and limits the unconfirmed appends."""
        self._flush_scheduled = False
        self._skipped = 0
        """The slots that were dead after the last step."""
        self._refusal: BookieError | None = None
        """The error of every further append; None while the writer accepts appends."""
        self._abandoned = False
        self._lac_sent = LacSent(0)
        """The LAC that was last published without entries, if not all bookies have answered."""
        self._on_client_closed = partial(_abandon, weakref.ref(self))
        """A weak reference, because the pool must not keep a writer alive that its user dropped."""
        self._closers: list[asyncio.Future[LedgerMetadata]] = []
        self._forcers = ForceWaiters()
        self._flushers = ConfirmationWaiters()
        self._acknowledged_id = self.last_entry_id
        """The id of the last entry whose append has returned; with deferred sync, it may exceed the
        LAC."""
        self._lanes = WriterLanes(
            self,
            self._ledger_id,
            pool,
            metadata.last_fragment.bookies,
            incarnations,
            ensembles,
        )

    def __del__(self) -> None:
        lanes: WriterLanes | None = getattr(self, "_lanes", None)
        if lanes is None or not lanes.is_used or self._loop.is_closed():
            return
        # The garbage collector may call `__del__` in any thread.
        self._loop.call_soon_threadsafe(lanes.leave)
        self._loop.call_soon_threadsafe(self._pool.off_close, self._on_client_closed)
        message = f"the writer of ledger {self._ledger_id} was dropped without close; it stays open"
        warnings.warn(message, ResourceWarning, stacklevel=1)

    def __repr__(self) -> str:
        state = self._machine.state.value if self._refusal is None else f"ended: {self._refusal}"
        if self.is_closed:
            state = "closed"
        last, confirmed = self.last_entry_id, self.last_add_confirmed
        return f"<WriterHandle of ledger {self._ledger_id}, {state}, {last=}, {confirmed=}>"

    # -- queries and commands of a ledger's user
    # ----------------------------------------------------

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last read it."""
        return self._machine.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The id of the last entry up to which all entries are durable; -1 if there is none."""
        return self._machine.last_add_confirmed

    @property
    def last_entry_id(self) -> int:
        """The id of the last appended entry, durable or not; -1 before the first append."""
        return self._queue.next_entry_id - 1

    @property
    def length(self) -> int:
        """The number of payload bytes up to the last add confirmed."""
        return self._machine.length_confirmed

    @property
    def is_closed(self) -> bool:
        """True if this writer closed the ledger."""
        return self._machine.state is WriterState.CLOSED

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload that fits into an entry."""
        return self._queue.payload_bytes_max

    @property
    def failure(self) -> BookieError | None:
        """The error of the next append, also after `close`; None if the writer accepts appends."""
        return self._refusal

    @property
    def is_under_replicated(self) -> bool:
        """True if the writer skips a bookie of the ensemble, so that entries get fewer copies."""
        return self._machine.is_under_replicated

    async def append(self, payload: Payload) -> int:
        """Append one entry and return its id.

        `append` returns when an ack quorum has made the entry durable; with deferred sync, when an
        ack quorum has written the entry. If the caller is cancelled, the entry may still be
        written.

        Raises:
            BadRequestError: the payload does not fit into an entry, or the call comes from another
                thread or event loop than the writer's; nothing was appended.
            ClientClosedError: the writer or the client was closed. Nothing was appended if the
                close came before this call; otherwise the outcome is unknown.
            LedgerFencedError: another client took over the ledger. After this error and the errors
                below, the outcome is unknown; only an open with recovery decides it.
            NoSuchLedgerError: the ledger was deleted.
            NotEnoughBookiesError: no ack quorum answered within the add timeout. During an ensemble
                change, the append waits longer.
            TooManyRequestsError: a bookie limits the client's rate, and accepted nothing for
                ``client.rate_patience_seconds``.
            LedgerError, RequestError: a bookie refused the add; the writer ends.
        """
        # Check the thread once per turn; other appends of the turn only compare an integer.
        if get_ident() != self._thread or not self._flush_scheduled:
            self._require_here()
        if type(payload) is not bytes:
            payload = checked_bytes(payload, "a payload")
        size = len(payload)
        queue = self._queue
        if size > queue.payload_bytes_max:
            queue.check(size)
        # An admitted caller must use its turn, or the next caller in the queue would never wake.
        if self._in_flight.is_blocked:
            await self._in_flight.wait()
        if self._refusal is not None:
            raise fresh(self._refusal)
        future: asyncio.Future[int] = self._loop.create_future()
        queue.put(payload, future)
        self._in_flight.take(1, size)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        return await future

    async def append_many(self, payloads: Iterable[Payload]) -> range:
        """Append many entries in order and return their ids, which are consecutive.

        `append_many` returns when `append` would have returned for each entry. Cancellation and
        errors are as in `append`; after an error, a prefix of the entries may be durable.
        """
        self._require_here()
        entries = checked_payloads(payloads)
        if self._refusal is not None:
            raise fresh(self._refusal)
        if not entries:
            return range(0)
        if self._in_flight.is_blocked:
            # An admitted caller must append, so refuse entries that do not fit before admission.
            self._queue.check(max(map(len, entries)))
            await self._in_flight.wait()
        return await self.submit(NewEntries.of(entries))

    def submit(self, new: NewEntries) -> asyncio.Future[range]:
        """Append entries without waiting for room; the future ends like a call of `append_many`.

        Use `submit` if the caller itself limits its unconfirmed entries, and needs the ids at once.
        The new ids start at the value of ``last_entry_id + 1`` before the call. The future raises
        the same errors as `append`.

        Raises:
            BadRequestError, BookieError: the errors that `append` raises before it queues an entry;
                nothing was appended.
        """
        self._require_here()
        if self._refusal is not None:
            raise fresh(self._refusal)
        if new.total_bytes > self._queue.payload_bytes_max:
            self._queue.check(new.greatest_bytes)
        future: asyncio.Future[range] = self._loop.create_future()
        self._queue.put_many(new, future)
        self._in_flight.take(len(new.payloads), new.total_bytes)
        self._schedule_flush()
        return future

    async def flush(self) -> None:
        """Wait until the bookies have acknowledged all entries that were appended before this call.

        After `flush`, these entries are as durable as after the return of their `append`.

        Raises:
            BookieError: as in `append`; the writer has ended.
        """
        self._require_here()
        if self.last_entry_id > self._acknowledged_id:
            if self._refusal is not None:
                raise fresh(self._refusal)
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._flushers.add(self.last_entry_id, waiter)
            await waiter

    async def force(self) -> None:
        """Make durable all deferred-sync appends that have returned.

        Raises:
            NotEnoughBookiesError: no ack quorum answered; appends that are not durable may be lost.
            ClientClosedError: the writer or the client was closed.
            BookieError: as in `append`; the writer has ended.
        """
        self._require_here()
        if self._abandoned:
            raise ClientClosedError("the client was closed")
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._forcers.add(waiter)
        self._step(Force())
        await waiter

    async def close(self) -> LedgerMetadata:
        """Confirm pending entries, then close the ledger; return its final metadata.

        After the call of `close`, the writer accepts no append. A second `close` is allowed. A
        failed writer closes the ledger at the last confirmed entry, unless another client took the
        ledger. With deferred sync, a failed writer does not close the ledger if this would lose an
        append that has returned. If the caller is cancelled, the writer still closes the ledger.

        Raises:
            LedgerFencedError: another client is recovering the ledger.
            LedgerClosedError: another client closed the ledger at a different end.
            NoSuchLedgerError: the ledger was deleted.
            ClientClosedError: the client was closed.
            MetadataError, UnavailableError: it is unknown if the ledger is closed; `close` may be
                repeated.
        """
        self._require_here()
        if self._abandoned:
            raise ClientClosedError("the client was closed")
        if not self.is_closed:
            self._pool.require_open()
            self._pool.on_close(self._on_client_closed)
        if self._refusal is None:
            self._refusal = ClientClosedError(f"the writer of ledger {self._ledger_id} is closed")
        self._in_flight.let_all_in()
        waiter: asyncio.Future[LedgerMetadata] = self._loop.create_future()
        self._closers.append(waiter)
        self._schedule_flush()
        return await waiter

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- for the client that owns the handle -------------------------------------------------------

    def start(self, lost: Collection[str] = ()) -> None:
        """Start to use the lanes of all bookies except `lost`, which have other incarnations."""
        self._pool.on_close(self._on_client_closed)
        self._lanes.join(lost)

    def take(self, event: WriterEvent) -> None:
        self._step(event)

    def abandon(self) -> None:
        """End the writer because its client closes; pending appends have an unknown outcome."""
        if self._abandoned:
            return
        error = ClientClosedError("the client was closed while an operation was under way")
        self._fail(error)
        self._leave()
        if self._lac_sent.missing > 0:
            self._pool.linger(self._lac_sent.told)
        self._abandoned = True
        self._close_failed(error)
        self._forcers.fail(error)

    def _require_here(self) -> None:
        """Raise an error in any thread or event loop other than the writer's.

        Raises:
            BadRequestError: another thread or event loop made this call; nothing was done.
        """
        if get_ident() != self._thread or not self._loop.is_running():
            raise BadRequestError(_elsewhere(self._ledger_id))

    # -- flushing ----------------------------------------------------------------------------------

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Pass queued appends to the state machine as batches; then publish the LAC, or close.

        The LAC is published without a batch, and the ledger is closed, only if the queue is empty.
        """
        self._flush_scheduled = False
        queue, machine = self._queue, self._machine
        overhead = queue.overhead_bytes
        while queue and machine.may_append(full=queue.has_full):
            group = self._taken = queue.take()
            count = len(group.payloads)
            self._step(Append(count, group.packed_bytes - count * overhead))
        if queue:
            return
        if machine.last_add_confirmed > machine.lac_carried:
            # Callers that the confirmation woke have appended by now; their batch would carry the
            # LAC.
            self._step(Idle())
        if self._closers and machine.state in (WriterState.OPEN, WriterState.STUCK):
            self._step(Close())
        elif self._closers and machine.state is WriterState.CLOSED:
            self._closed(machine.metadata)

    # -- carrying out effects ----------------------------------------------------------------------

    def _step(self, event: WriterEvent) -> None:
        if self._abandoned:
            return
        for effect in self._machine.step(event):
            self._carry_out(effect)
        if self._machine.slots.dead != self._skipped:
            self._note_skipped()

    def _note_skipped(self) -> None:
        """Log each bookie that the writer now skips, and each bookie that the writer uses again."""
        before, self._skipped = self._skipped, self._machine.slots.dead
        for slot in slots_of(before ^ self._skipped):
            bookie_id = self._machine.metadata.last_fragment.bookies[slot]
            is_skipped = self._skipped >> slot & 1
            event = "bookie_skipped" if is_skipped else "bookie_back"
            why = {"reason": self._machine.slots.cause(slot, bookie_id)} if is_skipped else {}
            _log.warning(event, ledger_id=self._ledger_id, bookie_id=bookie_id, **why)

    def _carry_out(self, effect: WriterEffect) -> None:  # noqa: C901, PLR0912  (a table)
        match effect:
            case Confirmed(batch):
                self._confirm(self._unconfirmed.pop(batch))
            case Release(batch):
                del self._requests[batch]
                self._schedule_flush()
            case SendBatch():
                group = self._unconfirmed[effect.batch] = self._taken
                requests = self._encoder.batch(effect, group.payloads, group.shared)
                self._requests[effect.batch] = requests
                group.payloads = []
                for slot in slots_of(effect.slots):
                    self._send(effect.batch, slot)
            case Resend(batch, slot):
                self._send(batch, slot)
            case StartTimer(timer, seconds):
                self._timers.start(timer, seconds)
            case CancelTimer(timer):
                self._timers.stop(timer)
            case SendLac(lac, slots):
                self._send_lac(lac, slots)
            case SendForce(force, slots):
                self._forcers.begun()
                for slot in slots_of(slots):
                    self._spawn_force(force, slot)
            case ForceDone(error):
                self._forced(error)
            case Failed(error):
                lanes, error = self._lanes.describe(), self._lanes.explained(error)
                _log.warning(
                    "writer_failed", ledger_id=self._ledger_id, reason=str(error), lanes=lanes
                )
                self._fail(error)
            case WriterClosed(metadata):
                self._closed(metadata)
            case CloseFailed(error):
                self._close_failed(error)
            case ChooseNewcomers():
                found = self._lanes.choose(effect, self.metadata.write_quorum_size)
                # Defer this event, because the effects after `ChooseNewcomers` come first.
                self._loop.call_soon(self._step, NewcomersChosen(found))
            case ReplaceBookies(bookies):
                self._skipped &= ~mask_of(bookies)
                first = self.metadata.last_fragment.first_entry_id
                self._lanes.replace(bookies, self._machine.epochs, first)
            case ReadMetadata() | WriteMetadata():
                self._pool.spawn(
                    self._on_metadata(effect), name=f"metadata of ledger {self._ledger_id}"
                )
            case _:
                assert_never(effect)

    def _send(self, batch: int, slot: int) -> None:
        on_answer = partial(self._on_answer, batch, slot, self._machine.epochs[slot])
        self._lanes.send(slot, self._requests[batch][slot], on_answer)

    def _send_lac(self, lac: int, slots: int) -> None:
        request = self._encoder.lac(lac)
        metadata = self._machine.metadata
        needed = slots.bit_count() - metadata.write_quorum_size + metadata.ack_quorum_size
        self._lac_sent = sent = LacSent(max(1, needed))
        for slot in slots_of(slots):
            on_answer = partial(self._on_lac_answer, sent, slot, self._machine.epochs[slot])
            self._lanes.send(slot, request, on_answer)

    def _tell_lac(self) -> None:
        """Send the LAC if no request has carried it, because a failed writer sends no more adds."""
        machine = self._machine
        if machine.last_add_confirmed > machine.lac_carried and not self.is_closed:
            self._send_lac(machine.last_add_confirmed, machine.slots.up)

    def _spawn_force(self, force: int, slot: int) -> None:
        bookie_id = self._machine.metadata.last_fragment.bookies[slot]
        name = f"force ledger {self._ledger_id} on {bookie_id}"
        life = self._lanes.life(slot)
        self._pool.spawn(self._force_slot(force, slot, bookie_id, life), name=name)

    # -- external events
    # ----------------------------------------------------------------------------

    def _on_answer(
        self, batch: int, slot: int, epoch: int, status: Status, message: str, retry_ms: int
    ) -> None:
        self._step(AddAnswered(batch, slot, epoch, status, message, retry_ms / 1000))

    def _on_lac_answer(
        self, sent: LacSent, slot: int, epoch: int, status: Status, message: str, retry_ms: int
    ) -> None:
        sent.answered()
        self._step(LacAnswered(slot, epoch, status, message, retry_ms / 1000))

    def _on_timer(self, timer: TimerId) -> None:
        self._step(TimerFired(timer))

    async def _on_metadata(self, effect: ReadMetadata | WriteMetadata) -> None:
        self._step(await carry_out_metadata(self._ledgers, self._ledger_id, self._token, effect))

    async def _force_slot(self, force: int, slot: int, bookie_id: str, life: str) -> None:
        timeout = self._pool.settings.add_timeout_seconds
        try:
            channel = self._pool.connection(bookie_id).channel()
            reply = await channel.force(self._ledger_id, timeout=timeout, life=life)
        except BookieError as error:
            self._step(ForceAnswered(force, slot, error.status, str(error)))
        else:
            self._step(ForceAnswered(force, slot, reply.status, reply.message))

    # -- outcomes ----------------------------------------------------------------------------------

    def _confirm(self, group: PendingAppends) -> None:
        group.succeed()
        entries = group.entries
        size = group.packed_bytes - entries * self._queue.overhead_bytes
        self._in_flight.give_back(entries, size)
        self._schedule_flush()
        self._acknowledged_id += entries
        self._flushers.confirmed(self._acknowledged_id)

    def _fail(self, error: BookieError) -> None:
        """Refuse new appends with `error`, and fail pending appends with an unknown outcome."""
        self._refusal = error
        groups = list(self._unconfirmed.values())
        while self._queue:
            groups.append(self._queue.take())
        self._unconfirmed.clear()
        for group in groups:
            group.fail(error)
        self._flushers.fail(error)
        self._in_flight.let_all_in()
        self._tell_lac()
        # The user may drop a fenced writer without a close, so drop all references to this writer.
        # A fenced writer can still be closed.
        self._lanes.leave()
        if self._closers:
            self._schedule_flush()
        else:
            self._pool.off_close(self._on_client_closed)

    def _forced(self, error: BookieError | None) -> None:
        deferred = self._machine.deferred
        is_synced = error is None and (deferred is None or not deferred.unsynced)
        while self._forcers.done(error):
            if not is_synced:
                self._loop.call_soon(self._step, Force())
                break
        self._schedule_flush()

    def _closed(self, metadata: LedgerMetadata) -> None:
        self._leave()
        waiters, self._closers = self._closers, []
        settle(waiters, metadata)

    def _close_failed(self, error: BookieError) -> None:
        waiters, self._closers = self._closers, []
        settle(waiters, self.metadata, error)
        if self._machine.error is not None:
            self._pool.off_close(self._on_client_closed)

    def _leave(self) -> None:
        self._timers.abandon()
        self._pool.off_close(self._on_client_closed)
        self._lanes.leave()


def _elsewhere(ledger_id: int) -> str:
    return (
        f"the writer of ledger {ledger_id} belongs to another thread or event loop; "
        f"call it there, as asyncio.run_coroutine_threadsafe does"
    )


def _fire(on_timer: weakref.WeakMethod[Callable[[TimerId], None]], timer: TimerId) -> None:
    """Call the timer's handler, unless the user dropped the writer."""
    if (call := on_timer()) is not None:
        call(timer)


def _abandon(writer: weakref.ref[WriterHandle]) -> None:
    """End a writer because its client is closed, unless the user dropped the writer."""
    handle = writer()
    if handle is not None:
        handle.abandon()
