"""The writer of one partition: it appends to the last ledger, and adds new ledgers.

::

    append ─▶ InFlightWindow ─▶ WriterHandle.submit ─▶ Unconfirmed ─▶ position
                    ▲ hold, go on                          ▲ appended again
                    └────────── one task: roll, mend, close ┘

Only this one task changes the head, so changes never overlap:

======= ==========================================================================================
roll    the ledger is large or old enough: add a new ledger to the head; hold new appends until the
        appends to the old ledger are confirmed; append to the new ledger from now on; close the old
        ledger, then its range
mend    the ledger's writer has ended: hold new appends; add a new ledger to the head; close the
        ledger, then its range, which confirms the ledger's entries; append the other records to the
        new ledger, in the same order; accept new appends
close   hold new appends until all appends are confirmed; close the ledger, then its range; remove
        the owner from the head
======= ==========================================================================================

At most one ledger has unconfirmed appends. So after a crash, no record is missing before an
acknowledged record. Records have the order of their appends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TypeVar

from bookie.errors import (
    BadRequestError,
    BookieError,
    ClientClosedError,
    ClockError,
    FormatError,
    LedgerClosedError,
    LedgerFencedError,
    LogClosedError,
    LogFullError,
    LogTakenOverError,
    MetadataError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    NotPermittedError,
    UnavailableError,
)
from bookie.ids import NO_ENTRY
from bookie.ledger.connection.arguments import Payload
from bookie.ledger.connection.calls import fresh, settle
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.write.handle import WriterHandle
from bookie.ledger.write.in_flight import InFlightWindow, Turn
from bookie.log.attempts import patiently
from bookie.log.background import ignore_error
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogPartition
from bookie.log.head.chain import LedgerEnd, given_up, live_bytes
from bookie.log.head.head_keeper import adding, closing
from bookie.log.head.roll import RollLimits
from bookie.log.log_client import LogClient
from bookie.log.record.log_record import Producer
from bookie.log.record.positions import LogPositions
from bookie.log.record.record_encoder import NewRecord, RecordEncoder
from bookie.log.tidy.truncation import apply_retention
from bookie.log.write.idempotence import IdempotentAppends
from bookie.log.write.ledger_end import end_of
from bookie.log.write.takeover import Ownership, WriterOptions, discard, remove_empty
from bookie.log.write.unconfirmed import Segment, Unconfirmed
from bookie.telemetry import event_log

T = TypeVar("T")

_log = event_log(__name__)

FRUITLESS_PAUSE_SECONDS = 1.0
"""The pause before a new ledger if bookies answer, but the last ledger confirmed no entry."""

HOUSEKEEPING_SECONDS = 60.0
"""Seconds between two applications of the retention. Each roll also applies the retention."""

ROLL_RETRY_SECONDS = 5.0
"""The pause after a roll that failed, for example because no ledger could be created."""


class PartitionWriter:
    """Appends to one partition as its owner, until another process takes the partition over."""

    def __init__(
        self,
        client: LogClient,
        partition: LogPartition,
        owned: Ownership,
        policy: LogPolicy,
        options: WriterOptions,
    ) -> None:
        self.partition = partition
        self._client = client
        self._pool = client.ledgers.pool
        self._keeper = owned.keeper
        self._policy = policy
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._segment = self._begin(owned.writer, owned.base_offset)
        self._next: WriterHandle | None = None
        """The writer of a ledger that the head already names and that has no entry yet."""
        self._encoder = RecordEncoder(
            client.clock,
            owned.windows,
            owned.keeper.head.end_ms,
            owned.writer.payload_bytes_max,
            policy.ahead_seconds or 0,
        )
        self._chain_bytes = live_bytes(owned.keeper.head)
        self._roll_limits = RollLimits.of(policy)
        settings = self._pool.settings
        self._window = InFlightWindow(settings.in_flight_entries_max, settings.in_flight_bytes_max)
        self._unconfirmed: dict[Unconfirmed, None] = {}
        """The unconfirmed appends, in the order of their calls."""
        self._idempotent = IdempotentAppends(
            self, self._encoder.windows, self._pool, partition.number
        )
        self._wake = asyncio.Event()
        self._mended: asyncio.Future[None] | None = None
        """A future, made when the writer of `_segment` has ended, and resolved by a new ledger."""
        self._created: WriterHandle | None = None
        """The writer of a new ledger, until the head certainly names this ledger."""
        self._retired: Segment | None = None
        """The ledger before the present ledger; None when the range of that ledger is closed."""
        self._rollers: list[asyncio.Future[None]] = []
        self._retiring: list[asyncio.Future[None]] = []
        """The callers of `roll` that wait for the present roll."""
        self._silent_since: float | None = None
        """The time since which entries wait and no entry was confirmed; None if no entry waits."""
        self._retry_at: float | None = None
        """The time at which a failed step will be tried again."""
        self._next_housekeeping = self._loop.time() + HOUSEKEEPING_SECONDS
        self._closing: asyncio.Future[None] | None = None
        self._error: BookieError | None = None
        """The reason why appends are refused; None while appends are accepted."""
        self._pool.on_close(self._on_client_closed)
        self._task = self._pool.spawn(self._run(), name=f"log {partition}")

    def __repr__(self) -> str:
        state = "open" if self._error is None else f"ended: {self._error}"
        return f"<PartitionWriter of {self.partition}, epoch {self.epoch}, {state}>"

    # -- calls of the owner ------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self._keeper.head.epoch

    @property
    def next_offset(self) -> int:
        """The offset that the next entry gets if the present ledger does not fail."""
        return self._segment.base_offset + self._segment.writer.last_entry_id + 1

    @property
    def ledger_id(self) -> int:
        return self._segment.writer.ledger_id

    @property
    def is_owner(self) -> bool:
        """True until the writer ends or begins to close, or its event loop is closed."""
        return self._error is None and self._closing is None and not self._loop.is_closed()

    @property
    def error(self) -> BookieError | None:
        """The reason why appends are refused; None while appends are accepted."""
        return self._error

    async def append(
        self,
        records: Sequence[Payload | NewRecord],
        producer: Producer | None = None,
        turn: Turn | None = None,
    ) -> LogPositions:
        """Append records in order, as `LogWriter.append_many` does.

        `turn` is the reserved place of this call in the order of appends, if there is one.
        """
        if not records:
            self._require_here()
            self._require_open()
            return LogPositions(())
        if producer is not None:
            return await self._idempotent.append(records, producer)
        await self.admit(turn)
        return await self.confirmed(self.submit(records, None))

    async def roll(self) -> None:
        """Continue in a new ledger; return when the old ledger is closed.

        If the present ledger is empty, nothing is done.

        Raises:
            NotEnoughBookiesError, MetadataError: no ledger could be added; the writer continues.
            LogTakenOverError, LogClosedError: the writer has ended.
        """
        self._require_here()
        self._require_open()
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._rollers.append(waiter)
        self._wake.set()
        await waiter

    async def close(self) -> None:
        """Wait for pending appends, close the ledger, and remove the owner from the head.

        If the writer has already ended, nothing is done.

        Raises:
            LogTakenOverError: another process owns the partition, and closes the ledger.
            UnavailableError, MetadataError: the ledger may still be open; the next owner closes
                open ledgers.
        """
        self._require_here()
        if self._closing is None:
            if self._error is not None:
                return
            self._closing = self._loop.create_future()
            self._wake.set()
        await asyncio.shield(self._closing)

    def abandon(self) -> None:
        """End the writer at once; leave its ledgers open, so that the next owner closes them."""
        self._end(LogClosedError(f"the writer of {self.partition} was closed"))
        self._task.cancel()

    # -- appending ---------------------------------------------------------------------------------

    def turn(self) -> AbstractContextManager[Turn]:
        """Reserve a place in the order of appends, for an `append` inside the `with` block."""
        self._require_here()
        return self._window.turn()

    def _require_here(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise BadRequestError(f"{self.partition} belongs to another event loop; call it there")

    async def admit(self, turn: Turn | None = None) -> None:
        """Wait until the in-flight window has room. Callers are admitted in the order of calls.

        An admitted caller must call `submit` or `turn_away` at once.
        """
        self._require_here()
        if turn is not None or self._window.is_blocked:
            await self._window.wait(turn)
        try:
            self._require_room()
        except BookieError:
            self.turn_away()
            raise

    def turn_away(self) -> None:
        """Give an admission back without an append, and admit the next caller."""
        self._window.take(0, 0)

    def _require_open(self) -> None:
        if self._error is not None:
            raise fresh(self._error)
        if self._closing is not None:
            raise LogClosedError(f"the writer of {self.partition} was closed")

    def _require_room(self) -> None:
        """Refuse records beyond the quota; a full log may roll, so that it can be truncated."""
        self._require_open()
        quota = self._policy.quota_bytes
        if quota and self._chain_bytes + self._segment.size_bytes >= quota:
            self._next_housekeeping = 0.0  # another process may have truncated the log
            self._wake.set()
            raise LogFullError(
                f"{self.partition} has reached its quota of {quota} bytes; truncate it, or raise "
                "quota_bytes"
            )

    def submit(
        self, records: Sequence[Payload | NewRecord], producer: Producer | None
    ) -> Unconfirmed:
        """Append records after `admit`. `producer` gives the number of the first record.

        Raises:
            BadRequestError, ClockError: a record cannot be encoded; no record was appended.
        """
        try:
            entries = self._encoder.encode_many(records, producer)
        except BookieError:
            self.turn_away()
            if self._encoder.latest.is_in_doubt:
                self._wake.set()
            raise
        appended = Unconfirmed(entries, self._segment, producer)
        self._send(appended)
        self._window.take(appended.count, appended.size_bytes)
        segment = self._segment
        segment.size_bytes += appended.size_bytes
        if segment.size_bytes >= self._roll_limits.size_bytes:
            self._wake.set()
        self._unconfirmed[appended] = None
        return appended

    def _send(self, appended: Unconfirmed) -> None:
        """Send `appended.entries`. If the ledger's writer has ended, `appended.future` fails."""
        segment = appended.segment = self._segment
        try:
            if self._encoder.is_snapshot_due:
                segment.writer.submit(self._encoder.snapshot()).add_done_callback(ignore_error)
            appended.first_entry_id = segment.writer.last_entry_id + 1
            appended.future = segment.writer.submit(appended.entries)
        except BookieError as error:
            # `_mend` appends the entries to a new ledger. Repetitions of these records wait.
            appended.first_entry_id = segment.writer.last_entry_id + 1
            appended.future = self._loop.create_future()
            appended.future.set_exception(error)
            appended.future.add_done_callback(ignore_error)
        if (first := appended.next_producer) is not None:
            run = appended.next_run
            self._encoder.windows.add(first, run.first, run.entries)

    async def confirmed(self, appended: Unconfirmed) -> LogPositions:
        """Wait until all records of `appended` are confirmed; return their positions."""
        try:
            while True:
                future = appended.future
                try:
                    await future
                except BookieError:
                    if self._error is not None:
                        raise fresh(self._error) from None
                    if appended.future is future:
                        await self._mend_soon()
                else:
                    return LogPositions([*appended.runs, appended.next_run])
        finally:
            self._unconfirmed.pop(appended, None)
            self._window.give_back(appended.count, appended.size_bytes)

    async def _mend_soon(self) -> None:
        """Wait until a new ledger replaces the failed ledger, or this writer has ended."""
        if self._mended is None:
            self._mended = self._loop.create_future()
            self._wake.set()
        await asyncio.shield(self._mended)

    # -- the task that changes the chain -----------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                await self._until_due()
                self._require_progress()
                if self._encoder.latest.is_in_doubt:
                    await self._compare_clock()
                if self._mended is not None:
                    await self._mend()
                elif self._closing is not None:
                    await self._finish()
                    return
                elif self._retry_at is None and self._retired is not None:
                    await self._retire()
                elif self._is_roll_due():
                    await self._roll()
                elif self._loop.time() >= self._next_housekeeping:
                    await self._keep_house()
        except BookieError as error:
            self._end(error)
        except BaseException:
            self._end(ClientClosedError("the client was closed while a log was open"))
            raise

    async def _until_due(self) -> None:
        due = self._next_housekeeping
        if self._silent_since is not None:
            due = min(due, self._silent_since + self._options.patience_seconds)
        if self._retry_at is not None:
            due = min(due, self._retry_at)
        elif not self._segment.is_empty:
            due = min(due, self._segment.started + self._roll_limits.age_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._wake.wait()
        if self._retry_at is not None and self._loop.time() >= self._retry_at:
            self._retry_at = None
        self._wake.clear()

    def _is_roll_due(self) -> bool:
        segment = self._segment
        if self._rollers and self._retired is None:
            return True
        if self._retry_at is not None or segment.is_empty:
            return False
        age_seconds = self._loop.time() - segment.started
        return self._roll_limits.is_due(segment.size_bytes, age_seconds)

    async def _roll(self) -> None:
        self._retiring, self._rollers = self._rollers, []
        old = self._segment
        if old.is_empty:
            self._rolled()
            return
        try:
            await self._add_next()
        except BookieError as error:
            self._try_later(error)
            self._rolled(error)
            return
        self._window.hold()
        try:
            await self._all_confirmed()
        except BookieError:
            await self._mend()
            self._rolled()
            return
        self._retired = old
        self._switch(old.base_offset + old.writer.last_entry_id + 1)
        self._window.go_on()
        await self._retire()

    def _rolled(self, error: BookieError | None = None) -> None:
        waiters, self._retiring = self._retiring, []
        settle(waiters, None, error)

    def _try_later(self, error: BookieError) -> None:
        """Log `error`, and plan another attempt of the step that failed.

        Raises:
            BookieError: `error` itself, if a later attempt would fail, too.
        """
        if not isinstance(error, UnavailableError | MetadataError):
            raise error
        _log.warning("log_not_rolled", log=str(self.partition), reason=str(error))
        self._retry_at = self._loop.time() + ROLL_RETRY_SECONDS

    async def _retire(self) -> None:
        """Close the previous ledger and its range, so that another roll can begin."""
        assert self._retired is not None, "the caller looked"
        try:
            await self._close_range(self._retired)
        except BookieError as error:
            self._try_later(error)
        else:
            self._retired = None
            self._rolled()
            self._next_housekeeping = 0.0
            self._wake.set()

    async def _keep_house(self) -> None:
        """Apply the log's retention, and read the present size of the partition; log failures."""
        self._next_housekeeping = self._loop.time() + HOUSEKEEPING_SECONDS
        try:
            await apply_retention(self._client, self.partition)
            self._chain_bytes = live_bytes(await self._keeper.refresh())
        except (UnavailableError, MetadataError, FormatError) as error:
            _log.warning("log_retention_failed", log=str(self.partition), reason=str(error))

    async def _compare_clock(self) -> None:
        try:
            await self._client.clocks.require_right(again=True)
        except ClockError as error:
            self._encoder.latest.is_in_doubt = False  # the next append checks the clock again
            _log.warning("log_clock_wrong", log=str(self.partition), reason=str(error))
        else:
            self._encoder.latest.compared()

    async def _all_confirmed(self) -> None:
        """Wait until the segment has no unconfirmed entries.

        The caller must admit no new appends until this method returns.
        """
        writer = self._segment.writer
        while writer.last_add_confirmed < writer.last_entry_id:
            await writer.flush()

    async def _add_next(self) -> None:
        """Create a ledger and add it to the head. After a failure, call `_add_next` again."""
        if self._created is None:
            self._created = await self._create()
        created = self._created
        try:
            # A sweep may delete a ledger that no head has named for a day. It rewrites the head in
            # the same step, so after such a change `check` reads the ledger.
            await self._keeper.change(
                adding(created.ledger_id),
                check=lambda: self._client.ledgers.ledgers.read(created.ledger_id),
            )
        except NoSuchLedgerError:
            created.abandon()
            self._created = None
            await self._add_next()
            return
        except LogTakenOverError:
            await discard(self._client, created, self._keeper)
            raise
        self._created, self._next = None, created

    async def _create(self) -> WriterHandle:
        # The deletion of a log closes only ledgers that the head already names. So a writer must
        # not add a new ledger to a deleted log.
        await self._client.logs.require(self.partition.name, self._keeper.log_id)
        shape = self._client.shape(self._policy, self._options.password)
        tags = self._client.tags(self.partition, self._keeper.log_id)
        return await self._client.create_ledger(shape, tags)

    def _switch(self, base_offset: int) -> None:
        assert self._next is not None, "it was added before"
        self._segment = self._begin(self._next, base_offset)
        self._next = None
        self._encoder.begin_ledger()

    async def _close_range(self, old: Segment) -> LedgerEnd:
        end = await self._close_ledger(old)
        head = await self._keeper.change(closing([end]))
        await remove_empty(self._client, [end])
        self._chain_bytes = live_bytes(head)
        return end

    async def _mend(self) -> None:
        """Continue in a new ledger after the writer of the present ledger has ended.

        Raises:
            NotPermittedError: the client's roles permit no appends, so a new ledger is useless.
        """
        if isinstance(self._segment.writer.failure, NotPermittedError):
            raise fresh(self._segment.writer.failure)
        self._window.hold()
        if (retired := self._retired) is not None:
            await self._patiently(lambda: self._close_range(retired))
            self._retired = None
            self._rolled()
        broken = self._segment
        await self._until_answers(broken)
        if self._next is None:
            # Only one range is open, so a second range can be added before the first is closed.
            await self._patiently(self._add_next)
        end = await self._patiently(lambda: self._close_range(broken))
        self._switch(broken.base_offset + end.last_entry_id + 1)
        _log.warning(
            "log_mended",
            log=str(self.partition),
            ledger_id=broken.writer.ledger_id,
            last_entry_id=end.last_entry_id,
            next_ledger_id=self.ledger_id,
            reason=str(broken.writer.failure),
        )
        self._append_again(broken, end.last_entry_id)
        mended, self._mended = self._mended, None
        if mended is not None:
            mended.set_result(None)
        self._window.go_on()
        self._wake.set()

    def _append_again(self, broken: Segment, last_entry_id: int) -> None:
        """Append to the new ledger the unconfirmed records that the closed ledger does not have."""
        waiting = [one for one in self._unconfirmed if one.segment is broken]
        for one in waiting:
            one.keep(last_entry_id)
            if one.entries.payloads and one.next_producer is not None:
                self._encoder.windows.forget(one.next_producer)
        for one in waiting:
            if one.entries.payloads:
                self._send(one)
                one.future.add_done_callback(ignore_error)  # the caller may have been cancelled
            else:
                one.future = self._loop.create_future()
                one.future.set_result(range(0))

    async def _close_ledger(self, segment: Segment) -> LedgerEnd:
        """Close a ledger and return its end. If another process fenced the ledger, recover it.

        Raises:
            LogTakenOverError: another owner has the partition, and may have deleted the ledger.
            LogClosedError: the ledger was deleted.
        """
        try:
            metadata = await self._close_once(segment)
            return await end_of(self._client.ledgers, metadata, self._options.password)
        except NoSuchLedgerError as error:
            await self._keeper.refresh()
            raise LogClosedError(
                f"ledger {segment.writer.ledger_id} of {self.partition} was deleted; "
                "open the log again"
            ) from error

    async def _close_once(self, segment: Segment) -> LedgerMetadata:
        ledger_id = segment.writer.ledger_id
        try:
            return await segment.writer.close()
        except (LedgerFencedError, LedgerClosedError):
            # A new owner writes the head before it fences a ledger. `refresh` finds such an owner.
            await self._keeper.refresh()
            return await self._client.ledgers.recover(ledger_id, self._options.password)

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`; repeat it while the store or the bookies do not answer.

        After `patience_seconds`, the last error is raised.

        Raises:
            LogTakenOverError: another process owns the partition.
        """
        since = self._loop.time() if self._silent_since is None else self._silent_since
        # Errors of an ended writer are never `retryable`, so `retried` lists classes of errors
        # instead.
        return await patiently(
            attempt,
            deadline=since + self._options.patience_seconds,
            retried=(UnavailableError, MetadataError),
            on_failure=lambda _: self._keeper.refresh(),
        )

    # -- ledgers that confirm nothing --------------------------------------------------------------

    def _require_progress(self) -> None:
        """Check that unconfirmed entries do not wait for longer than `patience_seconds`.

        Raises:
            NotEnoughBookiesError: no entry was confirmed for `patience_seconds`.
        """
        if not self._unconfirmed or self._segment.writer.last_add_confirmed != NO_ENTRY:
            self._silent_since = None
        elif self._silent_since is not None:
            patience = self._options.patience_seconds
            if self._loop.time() >= self._silent_since + patience:
                raise NotEnoughBookiesError(
                    f"bookies took no entry of {self.partition} for {patience:g} s; whether one is "
                    f"durable is unknown: {self._segment.writer.failure or 'silence'}"
                )

    async def _until_answers(self, broken: Segment) -> None:
        """If `broken` confirmed no entry, wait until enough bookies for a new ledger answer.

        Raises:
            NotEnoughBookiesError: too few bookies answered for `patience_seconds`.
        """
        is_first = self._silent_since is None
        if is_first:
            self._silent_since = self._loop.time()
        if broken.writer.last_add_confirmed == NO_ENTRY:
            shape = self._client.shape(self._policy)
            await self._patiently(lambda: self._client.require_answers(shape))
            if not is_first:
                await asyncio.sleep(FRUITLESS_PAUSE_SECONDS)

    async def _finish(self) -> None:
        self._window.hold()
        while True:
            self._require_progress()
            try:
                await self._all_confirmed()
                break
            except BookieError:
                await self._mend()
                self._window.hold()
        if (retired := self._retired) is not None:
            await self._patiently(lambda: self._close_range(retired))
            self._retired = None
        segment = self._segment
        await self._patiently(lambda: self._close_range(segment))
        await self._keeper.change(given_up)
        closing, self._closing = self._closing, None
        self._end(LogClosedError(f"the writer of {self.partition} was closed"))
        if closing is not None:
            closing.set_result(None)

    # -- the end -----------------------------------------------------------------------------------

    def _on_client_closed(self) -> None:
        self._end(ClientClosedError("the client was closed while a log was open"))

    def _end(self, error: BookieError) -> None:
        """End the writer: all appends raise `error`. The outcome of waiting appends is unknown."""
        if self._error is not None:
            return
        self._error = fresh(error)
        self._error.retryable = False  # the writer has ended
        if not isinstance(error, LogClosedError | ClientClosedError):
            _log.warning("log_writer_failed", log=str(self.partition), reason=str(error))
        self._pool.off_close(self._on_client_closed)
        retired = None if self._retired is None else self._retired.writer
        for writer in (self._segment.writer, self._next, self._created, retired):
            if writer is not None:
                writer.abandon()
        self._window.let_all_in()
        if self._mended is not None:
            self._mended.set_result(None)
            self._mended = None
        settle([*self._rollers, *self._retiring], None, self._error)
        if self._closing is not None:
            self._closing.set_exception(fresh(error))
            self._closing.add_done_callback(ignore_error)

    def _begin(self, writer: WriterHandle, base_offset: int) -> Segment:
        return Segment(writer, self.partition.number, base_offset, self._loop.time())
