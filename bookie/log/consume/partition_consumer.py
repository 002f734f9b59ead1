"""The consumption of one partition by one consumer: the lock, the cursor, reads and commits.

The consumer holds a lock, so other consumers wait until the lock is released. When the consumer has
the lock, it takes the cursor in a new epoch. The epoch ensures that at most one consumer can
commit; the lock alone does not ensure this:

============================ =====================================================================
event                        reaction
============================ =====================================================================
the session may have ended   the consumer gives out no record until the session is certainly alive,
                             not even the rest of a batch (`RecordFlow` checks `may_give`)
the session was lost, and    the consumer claims the lock again. If the cursor is still in this
no other consumer waits      consumer's epoch, the consumer continues; otherwise the cursor is lost
the session was lost, and    the lock and the cursor are lost. A commit that was sent before takes
another consumer waits       effect only if it arrives before the other consumer takes the cursor
the cursor is reset          the cursor is lost; the deleted claim or the next commit shows the loss
a read fails temporarily     the reader is opened again, at the next offset to give out
============================ =====================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from bookie.coordination.claim import Claim, ClaimMode
from bookie.coordination.lock import Lock, LockState
from bookie.coordination.participant import Participant
from bookie.coordination.wait_queue import WaitQueue
from bookie.errors import (
    BadRequestError,
    BookieError,
    ClientClosedError,
    CursorLostError,
    LogClosedError,
    MetadataClosedError,
    NoSuchLogError,
)
from bookie.log.catalog.logs import LogPartition
from bookie.log.consume.commit import HeldCursor, take_cursor
from bookie.log.consume.cursors import CursorRecord
from bookie.log.log_client import LogClient
from bookie.log.read.reading import LogReading
from bookie.log.record.log_record import LogPosition, LogRecord
from bookie.telemetry import event_log

_log = event_log(__name__)

CERTAIN_SECONDS = 0.001
"""The time for which `may_give` reuses True: a check takes as long as giving out a record."""


@dataclass(frozen=True, slots=True)
class ConsumedBatch:
    """Consecutive records of one partition. A later batch never has a smaller token."""

    partition: LogPartition
    token: int
    """The epoch of the cursor: a fencing token for results that are computed from the records."""
    records: Sequence[LogRecord]


class PartitionConsumer:
    """The consumption of one partition by one consumer, from `hold` to `close`.

    `take` never waits: `take` returns a batch, or None if no batch is ready. After None, `on_news`
    is called when another call of `take` may return a batch.
    """

    def __init__(
        self,
        client: LogClient,
        participant: Participant,
        record: CursorRecord,
        reading: LogReading,
        on_news: Callable[[], object],
    ) -> None:
        self.partition = record.partition
        self.position = 0
        """The offset after the last record that was given to the application."""
        self.finished = 0
        """The offset after the last record that the application has finished."""
        self.error: BookieError | None = None
        """The error that ended this consumer; None if the consumer has not failed."""
        self._is_stopped = self._is_closed = False
        self._client = client
        self._participant = participant
        self._record = record
        self._reading = reading
        self._on_news = on_news
        claim = Claim("", ClaimMode.EXCLUSIVE, client.identity)
        queue = WaitQueue(participant, record.partition.holder_key(record.name))
        self._lock = Lock(participant, queue, claim, self._on_lock)
        self._cursor: HeldCursor | None = None
        self._checked = 0
        """The token of the latest claim on the lock for which the cursor was taken or checked."""
        self._batch: Sequence[LogRecord] | None = None
        self._now = asyncio.get_running_loop().time
        self._certain_until = 0.0
        """`may_give` is True until this time of the event loop; 0 after a change of the lock."""
        self._room = asyncio.Event()
        """Set while no batch waits for a call of `take`."""
        self._pump: asyncio.Task[None] | None = None

    @property
    def cursor(self) -> HeldCursor:
        """The cursor; use it only after `hold`."""
        assert self._cursor is not None, "the cursor is taken by `hold`"
        return self._cursor

    @property
    def is_over(self) -> bool:
        """True if no more records are given out: the consumer was stopped, or has failed."""
        return self._is_stopped or self.error is not None

    @property
    def may_give(self) -> bool:
        """True if this consumer certainly has the cursor.

        After a False result, `on_news` is called when the result becomes True. If the lock was
        claimed again, the result is False until `_check` has read the cursor.
        """
        now = self._now()
        if now < self._certain_until:
            return True
        if not (self._lock.is_held and self._lock.token == self._checked):
            return False
        self._certain_until = now + CERTAIN_SECONDS
        return True

    async def hold(self, start: Callable[[], Awaitable[int]] | None) -> None:
        """Wait until no other consumer holds the cursor, take the cursor, and begin to read.

        If the cursor does not exist, it is created at the offset that `start` returns. If `start`
        is None, the cursor must already exist. If the call raises or is cancelled, this consumer
        holds neither the lock nor the cursor.

        Raises:
            BookieError: the errors of `take_cursor`.
            MetadataClosedError: the metadata store was closed.
        """
        try:
            await self._lock.wait_to_hold()
        except BaseException:
            self._lock.give_up_soon()
            raise
        try:
            self._checked = self._lock.token
            self._cursor = await take_cursor(self._client, self._record, start)
            self.position = self.finished = self._cursor.committed
            self._room.set()
            self._pump = self._participant.spawn(self._read(self._cursor.committed))
        except BaseException:
            await self.close()
            raise
        _log.info(
            "cursor_taken",
            partition=str(self.partition),
            cursor=self._record.name,
            epoch=self._cursor.token,
            offset=self._cursor.committed,
        )
        self._on_lock(self._lock.state)

    def take(self) -> ConsumedBatch | None:
        """Return the next batch if it is ready and `may_give` is true; else None.

        Raises:
            CursorLostError: the cursor belongs to another consumer, or was reset or deleted.
            LogClosedError: the consumer was stopped.
            BookieError: a read failed with an error that another attempt cannot mend.
        """
        if self.error is not None:
            raise self.error
        if self._is_stopped:
            raise LogClosedError(f"the consumer of {self.partition} was closed")
        if self._batch is None or not self.may_give:
            return None
        batch, self._batch = self._batch, None
        self._room.set()
        return ConsumedBatch(self.partition, self.cursor.token, batch)

    async def commit_up_to(self, up_to: LogRecord | LogPosition | int | None) -> None:
        """Commit all records that were given out, or all records up to and including `up_to`.

        If `up_to` is an offset, the records before this offset are committed.

        Raises:
            BadRequestError: `up_to` was not given out yet, or is in another partition.
            BookieError: the errors of `HeldCursor.commit`.
        """
        if up_to is None:
            offset = self.position
        elif isinstance(up_to, int):
            offset = up_to
            if offset < 0:
                raise BadRequestError(f"{offset} is not an offset in a log")
        elif up_to.partition != self.partition.number:
            raise BadRequestError(f"{self.partition} has no record of partition {up_to.partition}")
        else:
            offset = up_to.offset + 1
        if offset > self.position:
            raise BadRequestError(
                f"{self.partition} was consumed up to offset {self.position}, not {offset}"
            )
        await self.commit(offset)

    async def commit_finished(self) -> None:
        """Commit the records that the application has finished; log an error instead of raising."""
        try:
            await self.commit(self.finished)
        except BookieError as error:
            _log.warning("not_committed", partition=str(self.partition), reason=str(error))

    async def commit(self, offset: int) -> None:
        """Commit `offset`, the next offset to consume. Raises the errors of `HeldCursor.commit`."""
        try:
            await self.cursor.commit(offset)
        except (CursorLostError, NoSuchLogError) as error:
            self._fail(error)
            raise

    def stop(self) -> None:
        """Give out no more records. Records that were given out before can still be committed."""
        self._is_stopped = True
        self._end_reading()

    async def close(self) -> None:
        """Stop without a commit, and release the lock for the next consumer."""
        self.stop()
        self._is_closed = True
        with suppress(MetadataClosedError):  # the participant was closed, and released the lock
            await self._lock.release()

    # ---- reading

    async def _read(self, offset: int) -> None:
        attempt = 0
        while True:
            try:
                async with aclosing(self._reading.batches(self.partition, offset)) as batches:
                    async for batch in batches:
                        await self._room.wait()
                        self._room.clear()
                        self._batch = batch
                        offset = batch[-1].offset + 1
                        attempt = 0
                        self._on_news()
            except BookieError as error:
                if not error.retryable:
                    self._fail(error)
                    return
                _log.warning(
                    "partition_not_readable", partition=str(self.partition), reason=str(error)
                )
            await self._participant.pause(attempt)
            attempt += 1

    def _end_reading(self) -> None:
        self._batch = None
        if self._pump is not None:
            self._pump.cancel()

    def _fail(self, error: BookieError) -> None:
        """Stop consuming permanently because of `error`, and release the lock at once."""
        if self.error is not None or self._is_closed:
            return
        self.error = error
        self._end_reading()
        _log.warning(
            "cursor_given_up",
            partition=str(self.partition),
            cursor=self._record.name,
            reason=str(error),
        )
        self._participant.spawn_if_open(self._lock.release())
        self._on_news()

    # ---- the lock

    def _on_lock(self, state: LockState) -> None:
        self._certain_until = 0.0
        if self._cursor is None or self._is_closed or self.error is not None:
            return
        match state:
            case LockState.HELD if self._lock.token == self._checked:
                self._on_news()
            case LockState.HELD:
                self._participant.spawn_if_open(self._check(self._lock.token))
            case LockState.UNCERTAIN:
                pass
            case LockState.RELEASED:
                self._fail(ClientClosedError("the client was closed"))
            case LockState.LOST:
                self._fail(CursorLostError(f"another consumer holds {self._record}"))

    async def _check(self, token: int) -> None:
        """Check that no other process took the cursor before the lock was claimed again.

        `token` is the token of the new claim. While the store does not answer, try again.
        """
        attempt = 0
        while self.error is None and not self._is_closed:
            try:
                await self.cursor.check()
            except (CursorLostError, NoSuchLogError, MetadataClosedError) as error:
                self._fail(error)
            except BookieError:
                await self._participant.pause(attempt)
                attempt += 1
            else:
                # This check may have been repeated until after the check of a later claim.
                self._checked = max(self._checked, token)
                self._on_news()
                return
