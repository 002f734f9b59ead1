"""A client's side of a long-lived stream: a send queue, and callbacks for received messages.

A stream has at most one *attempt* at a time. An attempt is one call with its own task::

    BROKEN ──reopen()──▶ OPEN ──the call ends, for whatever reason──▶ BROKEN (on_broken)
       └──────────────────┴──close()──▶ CLOSED

A stream sends each message once, and never reconnects by itself: its owner calls `reopen`. When a
stream breaks, the outcome of its unanswered messages is unknown, and queued messages are dropped.
So the owner keeps each message until it is answered, and decides which messages to send again, and
when.

Callbacks run in the event loop, one at a time, and must not block. After `on_broken`, no more
messages of the broken attempt are delivered.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count, islice
from math import ceil
from typing import Any, ClassVar, Final, Protocol

from bookie.errors import (
    BadRequestError,
    BookieError,
    BookieUnreachableError,
    ClientClosedError,
    OperationTimeoutError,
    TlsError,
    WrongBookieError,
    WrongIncarnationError,
)
from bookie.ids import (
    BOOKIE_ID_METADATA_KEY,
    INCARNATION_METADATA_KEY,
    JOINED_MESSAGES_METADATA,
    LIFE_METADATA_KEY,
    Status,
)
from bookie.wire import unary_codec
from bookie.wire.call_metadata import named
from bookie.wire.client.tls_problems import TlsHistory
from bookie.wire.coalesce import fitting, join_messages, split_message
from bookie.wire.codec import encode_streamed_read, parse_add_response, scan_read_response
from bookie.wire.commands import LacState, ReadCommand
from bookie.wire.deadlines import Deadlines, is_being_cancelled
from bookie.wire.messages import Fields

QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A stream is full if more bytes than this are queued, because the carrier has not taken them
yet."""

TIMEOUT_MILLISECONDS_MAX: Final = 2**32 - 1
"""The longest timeout that a request can carry, 49 days; longer timeouts are reduced to it."""

OnBroken = Callable[[BookieError], None]
OnOpen = Callable[[], None]


def closed_error(address: str, *, has_moved: bool) -> BookieError:
    """Return the error of a call whose connection this client has closed."""
    if has_moved:
        return BookieUnreachableError(f"the bookie at {address} has another address now")
    return ClientClosedError(f"the connection to bookie {address} was closed")


class OnAnswer(Protocol):
    """Receives a bookie's answer to one add."""

    def __call__(
        self, request_id: int, status: Status, message: str, retry_after_ms: int, /
    ) -> None:
        """Receive one answer; answers come in the order in which the requests were sent.

        With TOO_MANY_REQUESTS, `retry_after_ms` is the pause before the client should retry; 0
        means that the bookie names no pause.
        """


def error_of(address: str, error: Any, tls: TlsHistory) -> BookieError:
    """Return the `BookieError` for the code and details of a failed call's error.

    Args:
        address: the address of the bookie.
        error: one of the carrier's `failures`.
        tls: explains failures of TLS.
    """
    code = error.code().name
    if code == "DEADLINE_EXCEEDED":
        return OperationTimeoutError(f"bookie {address} did not answer in time")
    if code == "RESOURCE_EXHAUSTED":
        return BadRequestError(f"a message to or from bookie {address} is too large")
    if reason := tls.problem(error.details() or ""):
        return TlsError(f"bookie {address}: {reason}")
    return BookieUnreachableError(f"bookie {address} cannot be reached: {error.details()}")


@dataclass(frozen=True, slots=True)
class StreamCall:
    """The settings of a stream's calls.

    Each attempt opens a new call, and runs in tasks of the task group `tasks`.
    """

    address: str
    open: Callable[[], Any]
    tasks: asyncio.TaskGroup
    connect_timeout_seconds: float | None
    """The seconds within which the bookie must accept the stream. None if the carrier itself
    enforces this limit, and counts failed attempts."""
    tls: TlsHistory
    failures: tuple[type[Exception], ...]
    """The errors of failed calls, which have the methods `code` and `details`."""
    broken: tuple[type[Exception], ...]
    """The errors of a write to a call that has ended."""


class _Attempt:
    """One call of a stream, and its queue of unsent messages."""

    __slots__ = ("arrived", "joins", "queue", "queued_bytes", "task")

    def __init__(self) -> None:
        self.queue: deque[bytes] = deque()
        self.queued_bytes = 0
        self.joins = False
        """True if messages that wait at the same time may be joined into one."""
        self.arrived = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Stream(ABC):
    """A bidirectional call for adds, reads or LAC updates, which its owner may open again.

    A new stream is broken until `reopen` is called for the first time.
    """

    _patient: ClassVar = False
    """True if nothing is sent before the bookie has accepted the stream."""

    def __init__(
        self, call: StreamCall, on_broken: OnBroken, on_open: OnOpen | None = None
    ) -> None:
        self.address = call.address
        self._call = call
        self._tasks = call.tasks
        self._on_broken = on_broken
        self._on_open = on_open
        self._attempt: _Attempt | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """True if the stream accepts messages; the bookie may still be unreachable."""
        return self._attempt is not None

    @property
    def is_full(self) -> bool:
        """True if more than `QUEUE_BYTES_MAX` bytes are queued."""
        return self._attempt is not None and self._attempt.queued_bytes > QUEUE_BYTES_MAX

    @property
    def queued_bytes(self) -> int:
        """The number of queued bytes, which the carrier takes as fast as the bookie reads."""
        return 0 if self._attempt is None else self._attempt.queued_bytes

    def reopen(self) -> None:
        """Begin a new attempt; does nothing while an attempt is open.

        Messages may be queued at once. Within the connect timeout, the stream calls `on_open` if
        the bookie accepts the stream, and otherwise `on_broken`.

        Raises:
            ClientClosedError: The stream was closed.
        """
        if self._closed:
            raise ClientClosedError("the stream was closed")
        if self._attempt is None:
            self._attempt = attempt = _Attempt()
            attempt.task = self._tasks.create_task(
                self._run(attempt), name=f"stream to {self.address}"
            )

    def send_bytes(self, data: bytes) -> None:
        """Queue one message without waiting.

        Raises:
            BookieUnreachableError: The stream is broken; nothing was queued.
        """
        attempt = self._attempt
        if attempt is None:
            raise BookieUnreachableError(f"the stream to bookie {self.address} is broken")
        attempt.queue.append(data)
        attempt.queued_bytes += len(data)
        attempt.arrived.set()

    def abandon(self) -> None:
        """End the stream without `on_broken`, and do not wait; no callback is called any more."""
        self._closed = True
        attempt, self._attempt = self._attempt, None
        if attempt is not None and attempt.task is not None:
            attempt.task.cancel()

    async def close(self) -> None:
        """End the stream without `on_broken`; the bookie may still handle received messages."""
        attempt = self._attempt
        self.abandon()
        if attempt is not None and attempt.task is not None:
            await asyncio.wait((attempt.task,))

    @abstractmethod
    def _deliver(self, data: bytes) -> None:
        """Handle one received message; each kind of stream overrides this method."""

    def _error_of(self, error: Any) -> BookieError:
        return error_of(self.address, error, self._call.tls)

    def _refusal_of(self, offered: tuple[tuple[str, str | bytes], ...]) -> BookieError | None:
        """Return an error if the metadata shows that a wrong bookie accepted the stream."""
        del offered
        return None

    async def _run(self, attempt: _Attempt) -> None:
        error = await self._converse(attempt)
        if self._attempt is attempt:
            self._attempt = None
            self._on_broken(error)

    async def _converse(self, attempt: _Attempt) -> BookieError:
        """Send and receive until the call ends; return an error with the reason for the end."""
        call = self._call.open()
        writer: asyncio.Task[None] | None = None
        try:
            if not self._patient:
                writer = self._writer(call, attempt)
            async with asyncio.timeout(self._call.connect_timeout_seconds):
                offered = tuple(await call.initial_metadata() or ())
            refusal = self._refusal_of(offered)
            if refusal is not None:
                return await self._tls_error(call) or refusal
            if not call.done():
                self._call.tls.was_ready = True
            attempt.joins = JOINED_MESSAGES_METADATA in offered
            # A failed call returns initial metadata, too, but is already done.
            if self._patient and not call.done():
                writer = self._writer(call, attempt)
            if self._on_open is not None and self._attempt is attempt and not call.done():
                self._on_open()
            async for data in call:
                self._deliver(data)
        except TimeoutError:
            return BookieUnreachableError(f"bookie {self.address} did not take up the stream")
        except self._call.failures as error:
            return self._error_of(error)
        except BadRequestError as error:
            return BookieUnreachableError(
                f"bookie {self.address} sent an answer that cannot be understood: {error}"
            )
        finally:
            if writer is not None:
                writer.cancel()
            call.cancel()
        return BookieUnreachableError(f"bookie {self.address} ended the stream")

    async def _tls_error(self, call: Any) -> TlsError | None:
        """Return the error if TLS failed; None if the call failed for another reason or goes on."""
        problem = self._call.tls.problem(await call.details() or "") if call.done() else ""
        return TlsError(f"bookie {self.address}: {problem}") if problem else None

    def _writer(self, call: Any, attempt: _Attempt) -> asyncio.Task[None]:
        writing = _write(call, attempt, self._call.broken)
        return self._tasks.create_task(writing, name=f"writer to {self.address}")


async def _write(call: Any, attempt: _Attempt, broken: tuple[type[Exception], ...]) -> None:
    """Pass queued messages to the carrier, which makes this task wait for a slow bookie."""
    queue = attempt.queue
    try:
        while True:
            while queue:
                joined = fitting(queue) if attempt.joins else 1
                await call.write(join_messages(tuple(islice(queue, joined))))
                for _ in range(joined):
                    attempt.queued_bytes -= len(queue.popleft())
            attempt.arrived.clear()
            await attempt.arrived.wait()
    except broken:
        pass  # the call has ended; its reader gets the error


class AddStream(Stream):
    """A stream of adds to one bookie, for all ledgers that expect the same incarnation.

    A bookie of another incarnation refuses every add, and the stream breaks with
    `WrongIncarnationError`.
    """

    def __init__(
        self,
        call: StreamCall,
        on_answer: OnAnswer,
        on_broken: OnBroken,
        on_open: OnOpen | None = None,
        *,
        bookie_id: str = "",
        incarnation: str = "",
    ) -> None:
        super().__init__(call, on_broken, on_open)
        self._on_answer = on_answer
        self._bookie_id = bookie_id
        self._incarnation = incarnation
        self.life = ""
        """The id of the bookie process that last accepted the stream; empty if it sent none."""
        self.is_misdirected = False
        """True if a bookie with another id answered the last attempt."""

    def send(self, request: bytes) -> None:
        """Queue one add request; streams to other bookies may queue the same bytes object.

        Raises:
            BookieUnreachableError: The stream is broken; nothing was queued.
        """
        self.send_bytes(request)

    def _refusal_of(self, offered: tuple[tuple[str, str | bytes], ...]) -> BookieError | None:
        self.life = named(offered, LIFE_METADATA_KEY)
        other = named(offered, BOOKIE_ID_METADATA_KEY)
        self.is_misdirected = bool(self._bookie_id) and other not in ("", self._bookie_id)
        if self.is_misdirected:
            # The wanted bookie's state is unknown: it has moved or is down.
            return WrongBookieError(f"bookie {other} answers at {self.address} now")
        found = named(offered, INCARNATION_METADATA_KEY)
        if not self._incarnation or found == self._incarnation:
            return None
        if found:
            return WrongIncarnationError(
                f"bookie {self.address} may have lost what it acknowledged: it has another "
                "incarnation now"
            )
        # A failed call also names no incarnation, so the bookie's incarnation is unknown.
        return BookieUnreachableError(f"bookie {self.address} did not say which incarnation it is")

    def _deliver(self, data: bytes) -> None:
        for answer in split_message(data):
            self._on_answer(*parse_add_response(answer))


class ReadStream(Stream):
    """A stream of reads from one bookie, for all ledgers; the first read opens the stream.

    When the stream breaks, all unanswered reads fail. The next read opens the stream again.
    """

    # A write on a refused call would replace the refusal by another error.
    _patient = True

    def __init__(self, call: StreamCall, deadlines: Deadlines[Any]) -> None:
        super().__init__(call, self._fail)
        self._deadlines = deadlines
        self._request_ids = count(1)
        self._awaited: dict[int, asyncio.Future[Fields | BookieError | None]] = {}
        self.is_offered = True
        """False once the bookie has reported that it has no read streams."""
        self.has_moved = False
        """True if the stream is closed because the bookie has a new address."""

    async def ask(self, command: ReadCommand, timeout_seconds: float) -> Fields | None:
        """Send a read and return its answer's fields; None if the bookie has no read streams.

        Raises:
            BookieUnreachableError: The stream broke before the answer arrived.
            OperationTimeoutError: No answer arrived in time.
            ClientClosedError: The stream was closed before or during this read.
        """
        if self._attempt is None:
            self.reopen()
        request_id = next(self._request_ids)
        # The bookie's timeout starts later, so the bookie never gives up before the client.
        timeout_ms = ceil(min(timeout_seconds * 1000, TIMEOUT_MILLISECONDS_MAX))
        self.send_bytes(encode_streamed_read(request_id, command, max(timeout_ms, 1)))
        answer: asyncio.Future[Fields | BookieError | None]
        answer = asyncio.get_running_loop().create_future()
        self._awaited[request_id] = answer
        self._deadlines.start(answer, timeout_seconds)
        try:
            found = await answer
        except asyncio.CancelledError:
            if not self._deadlines.stop(answer) and not is_being_cancelled():
                raise OperationTimeoutError(
                    f"bookie {self.address} did not answer in time"
                ) from None
            raise
        finally:
            self._deadlines.stop(answer)
            self._awaited.pop(request_id, None)
        if isinstance(found, BookieError):
            raise found
        return found

    async def close(self) -> None:
        """End the stream; all unanswered reads fail."""
        try:
            await super().close()
        finally:
            self._settle(lambda: closed_error(self.address, has_moved=self.has_moved))

    def _error_of(self, error: Any) -> BookieError:
        if error.code().name == "UNIMPLEMENTED":
            self.is_offered = False
        return super()._error_of(error)

    def _fail(self, error: BookieError) -> None:
        """Fail all unanswered reads; if the bookie has no read streams, they return None."""
        if self.is_offered:
            self._settle(lambda: BookieUnreachableError(str(error)))
        else:
            self._settle(lambda: None)

    def _settle(self, outcome: Callable[[], BookieError | None]) -> None:
        awaited, self._awaited = self._awaited, {}
        for answer in awaited.values():
            if not answer.done():
                answer.set_result(outcome())

    def _deliver(self, data: bytes) -> None:
        request_id, fields = scan_read_response(data)
        # If the caller has given up, its request is already removed, or its future is done.
        answer = self._awaited.get(request_id)
        if answer is not None and not answer.done():
            answer.set_result(fields)


class LacWatch(Stream):
    """A stream of LAC updates from one bookie; `reopen` subscribes to the same ledgers again."""

    def __init__(
        self,
        call: StreamCall,
        on_update: Callable[[LacState], None],
        on_broken: OnBroken,
        on_open: OnOpen | None = None,
    ) -> None:
        super().__init__(call, on_broken, on_open)
        self._on_update = on_update
        self._watched: set[int] = set()

    def reopen(self) -> None:
        """Begin a new attempt and subscribe to all watched ledgers again."""
        if not self.is_open:
            super().reopen()
            self._send_changes(sorted(self._watched), subscribe=True)

    def subscribe(self, ledger_ids: Iterable[int]) -> None:
        """Watch ledgers; the bookie sends each ledger's state at once, and later each change."""
        added = sorted(set(ledger_ids) - self._watched)
        self._watched.update(added)
        self._send_changes(added, subscribe=True)

    def unsubscribe(self, ledger_ids: Iterable[int]) -> None:
        """Stop watching ledgers; updates in flight are dropped."""
        removed = sorted(self._watched.intersection(ledger_ids))
        self._watched.difference_update(removed)
        self._send_changes(removed, subscribe=False)

    def _send_changes(self, ledger_ids: list[int], *, subscribe: bool) -> None:
        if not self.is_open:
            return
        for start in range(0, len(ledger_ids), unary_codec.WATCH_IDS_MAX):
            part = ledger_ids[start : start + unary_codec.WATCH_IDS_MAX]
            change = unary_codec.WatchChange(part if subscribe else (), () if subscribe else part)
            self.send_bytes(unary_codec.encode_watch_change(change))

    def _deliver(self, data: bytes) -> None:
        state = unary_codec.parse_lac_state(data)
        if state.ledger_id in self._watched or state.ledger_id < 0:
            self._on_update(state)
