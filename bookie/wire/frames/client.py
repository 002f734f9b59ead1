"""A client's side of the carrier by frames: streams, listings and calls; see `Carrier`.

Each stream and each listing has a connection of its own. All calls with one answer share another
connection, which opens at the first call, and closes after `rpc.connection_idle_seconds_max`
without a call.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final, TypeVar

from bookie.addresses import split_address
from bookie.config import RpcSettings
from bookie.errors import BadRequestError
from bookie.wire.call_metadata import Pairs
from bookie.wire.carrier import CallCode, CallError
from bookie.wire.frames.connection import FramedConnection, prepare_socket
from bookie.wire.frames.format import (
    CALLS,
    HELLO_BYTES_MAX,
    SCRATCH_BYTES,
    CallRequest,
    ClientHello,
    OversizeError,
    encode_cancelled,
    encode_client_hello,
    encode_end,
    encode_request,
    pack_size,
    parse_answer,
    parse_bookie_hello,
    parse_end,
)
from bookie.wire.interfaces import BrokenCallError

C = TypeVar("C", bound="ClientConnection")

REQUEST_ID_BYTES: Final = 4

REQUEST_IDS: Final = 2 ** (8 * REQUEST_ID_BYTES)
"""The number of different call ids; after this many calls on one connection, the ids repeat."""

FAILURES_MAX: Final = 3
"""After this many failed attempts to connect in a row, the bookie's port for frames counts as
unreachable."""

CONNECTING: Final = "failed to connect: "
"""The first words of the error text for a failure to connect; gRPC's error texts contain these
words, too."""


class PreparedPairs:
    """The metadata of calls; it is encoded only once for all calls of the same method."""

    __slots__ = ("_heads", "pairs")

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self._heads: dict[str, bytes] = {}

    def head(self, rpc: str) -> bytes:
        """Return the bytes that come between the id and the message of an encoded call.

        Raises:
            BadRequestError: the metadata is too large.
        """
        head = self._heads.get(rpc)
        if head is None:
            request = encode_request(CallRequest(0, rpc, self.pairs, b""))
            head = self._heads[rpc] = request[REQUEST_ID_BYTES:]
        return head


class FramesCarrier:
    """Carries a client's calls to the bookie at `address` (``HOST:PORT``).

    Args:
        address: the address of the bookie's port for frames.
        tasks: the group that runs attempts to connect; it must outlive `close`.
        settings: message sizes and keepalive, the same as the bookie's.
        connect_timeout_seconds: the longest time until the bookie's hello.
        context: returns the SSL context for TLS, which verifies the host. The carrier calls this
            function at each attempt to connect, because certificates are renewed from time to time.
            None means plaintext.
    """

    failures: tuple[type[Exception], ...] = (CallError,)
    broken: tuple[type[Exception], ...] = (CallError, BrokenCallError)

    def __init__(
        self,
        address: str,
        tasks: asyncio.TaskGroup,
        settings: RpcSettings,
        connect_timeout_seconds: float,
        context: Callable[[], ssl.SSLContext | None] | None = None,
    ) -> None:
        self.address = address
        self.host, self.port = split_address(address)
        self.tasks = tasks
        self.settings = settings
        self.connect_timeout_seconds = connect_timeout_seconds
        self.context = context
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.failures_in_row = 0
        """The number of attempts to connect that failed since a bookie last answered an attempt."""
        self._connections: dict[ClientConnection, None] = {}
        self._calls: CallsConnection | None = None
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        return not self.failures_in_row and any(one.is_ready for one in self._connections)

    @property
    def is_failing(self) -> bool:
        return self.failures_in_row >= FAILURES_MAX

    def prepared(self, metadata: Pairs, /) -> PreparedPairs:
        return PreparedPairs(metadata)

    def stream(
        self, rpc: str, metadata: PreparedPairs, /, *, is_bulk: bool = False
    ) -> StreamConnection:
        del is_bulk  # each stream has a connection of its own
        return self._begin(StreamConnection(self, rpc, metadata.pairs))

    def call(self, rpc: str, request: bytes, metadata: PreparedPairs, /) -> asyncio.Future[bytes]:
        calls = self._calls
        if calls is None or calls.is_over:
            calls = self._calls = CallsConnection(self)
            self._begin(calls)
        return calls.request(rpc, request, metadata)

    def listing(
        self, rpc: str, request: bytes, metadata: PreparedPairs, timeout: float | None, /
    ) -> StreamConnection:
        return self._begin(StreamConnection(self, rpc, metadata.pairs, request, timeout))

    async def close(self) -> None:
        self._is_closed = True
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.sleep(0)

    def forget(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended."""
        self._connections.pop(connection, None)

    def _begin(self, connection: C) -> C:
        if self._is_closed:
            connection.cancel()
        else:
            self._connections[connection] = None
            connection.begin()
        return connection


class ClientConnection(FramedConnection):
    """The client's side of one connection, from the attempt to connect to the last message.

    Args:
        carrier: provides the settings of the connection.
        hello: names the conversation that the connection begins: a stream, a listing or `CALLS`.
    """

    def __init__(self, carrier: FramesCarrier, hello: ClientHello) -> None:
        super().__init__(carrier.scratch, HELLO_BYTES_MAX)
        self._carrier = carrier
        self._hello = hello
        self._loop = asyncio.get_running_loop()
        self._attempt: asyncio.Task[None] | None = None
        self._changed: list[asyncio.Future[None]] = []
        """Futures that become done at the next change: the connection is made, is accepted by the
        bookie, or ends."""
        self._offered: Pairs | None = None
        """The metadata of the bookie's hello; None until the bookie accepts the conversation."""
        self._is_answered = False
        """True if a bookie has accepted or refused the conversation."""
        self._outcome: BaseException | None = None
        """The error that ended the conversation; None after a normal end, and before the end."""
        self.is_over = False

    @property
    def is_ready(self) -> bool:
        """True if the bookie has accepted the conversation, and the conversation has not ended."""
        return self._offered is not None and not self.is_over

    def begin(self) -> None:
        """Begin to connect."""
        name = f"connect to {self._carrier.address}"
        self._attempt = self._carrier.tasks.create_task(self._connect(), name=name)

    def cancel(self) -> bool:
        """End the conversation; the bookie may still handle the messages that it has received."""
        return self._finish(asyncio.CancelledError())

    def fail(self, code: CallCode, details: str) -> None:
        """End the conversation with an error."""
        self._finish(CallError(code, details))

    async def _connect(self) -> None:
        carrier = self._carrier
        context = None if carrier.context is None else carrier.context()
        host = None if context is None else carrier.host
        try:
            async with asyncio.timeout(carrier.connect_timeout_seconds):
                await self._loop.create_connection(
                    lambda: self,
                    carrier.host,
                    carrier.port,
                    ssl=context,
                    server_hostname=host,
                )
                while self._offered is None and not self.is_over:
                    await self._change()
        except TimeoutError:
            self._fail_to_connect("the bookie did not answer in time")
        except (OSError, ValueError) as error:  # ssl raises ValueError for an impossible host
            self._fail_to_connect(str(error))

    def _fail_to_connect(self, reason: str) -> None:
        self.fail(CallCode.UNAVAILABLE, CONNECTING + reason)

    def _opening(self) -> bytes:
        """Return the bytes to send immediately after the hello, before the bookie answers."""
        return b""

    def _is_accepted(self) -> None:
        """Handle the bookie's acceptance."""

    # --- what arrives --------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.is_over:
            self.abort()
            return
        settings = self._carrier.settings
        with suppress(OSError):  # the bookie is gone
            prepare_socket(transport.get_extra_info("socket"), settings, 0)
        transport.write(encode_client_hello(self._hello) + self._opening())
        self._tell()

    def _greet(self, body: bytes) -> None:
        hello = parse_bookie_hello(body)
        self._units.frame_bytes_max = self._carrier.settings.message_bytes_max + HELLO_BYTES_MAX
        if hello.code is CallCode.UNAUTHENTICATED:
            self.fail(hello.code, CONNECTING + hello.details)
            return
        # A refusal, for example by a bookie that is starting, also shows that the port can be
        # reached.
        self._carrier.failures_in_row = 0
        self._is_answered = True
        if hello.code is not CallCode.OK:
            self.fail(hello.code, hello.details)
            return
        self._offered = hello.metadata
        self._is_accepted()
        self._tell()

    def _end_arrived(self, body: bytes | None) -> None:
        if body is None:
            self._finish(self._broken("the bookie closed the connection"))
            return
        code, details = parse_end(body)
        self._finish(None if code is CallCode.OK else CallError(code, details))

    def _malformed(self, error: BadRequestError) -> None:
        is_large = isinstance(error, OversizeError)
        code = CallCode.RESOURCE_EXHAUSTED if is_large else CallCode.UNAVAILABLE
        self.fail(code, str(error))

    def _lost(self, error: Exception | None) -> None:
        self._finish(self._broken(str(error) if error else "the connection was closed"))

    def _broken(self, reason: str) -> CallError:
        if self._offered is None:
            reason = CONNECTING + ("Socket closed" if self._carrier.context else reason)
        return CallError(CallCode.UNAVAILABLE, reason)

    def _finish(self, outcome: BaseException | None) -> bool:
        if self.is_over:
            return False
        self.is_over = True
        self._outcome = outcome
        if not self._is_answered and isinstance(outcome, CallError):
            self._carrier.failures_in_row += 1
        self._carrier.forget(self)
        self._is_discarding = True
        self.abort()
        if self._attempt is not None and self._attempt is not asyncio.current_task():
            self._attempt.cancel()
        self._ended()
        self._tell()
        return True

    def _ended(self) -> None:
        """Handle the end of the conversation."""

    # --- waiting -------------------------------------------------------------------------

    def _tell(self) -> None:
        changed, self._changed = self._changed, []
        for one in changed:
            if not one.done():
                one.set_result(None)
        self._wake()

    async def _change(self) -> None:
        change: asyncio.Future[None] = self._loop.create_future()
        self._changed.append(change)
        await change


class StreamConnection(ClientConnection):
    """A stream or a listing, with the methods of `grpc.aio`'s calls.

    A listing has a `request`, which is the client's only message, and may have a timeout.
    """

    def __init__(
        self,
        carrier: FramesCarrier,
        rpc: str,
        metadata: Pairs,
        request: bytes | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__(carrier, ClientHello(rpc, metadata))
        self._request = request
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            self._timer = self._loop.call_later(
                timeout, self.fail, CallCode.DEADLINE_EXCEEDED, "no answer in time"
            )

    def done(self) -> bool:
        return self.is_over

    async def initial_metadata(self) -> Pairs:
        """Return the metadata of the bookie's hello; empty for a failed call."""
        while self._offered is None and not self.is_over:
            await self._change()
        if isinstance(self._outcome, asyncio.CancelledError):
            raise asyncio.CancelledError
        return self._offered or ()

    async def details(self) -> str:
        """Return the reason why the call failed; empty if it did not fail."""
        return self._outcome.details() if isinstance(self._outcome, CallError) else ""

    async def write(self, message: bytes, /) -> None:
        """Send one message, and wait until the bookie accepts the call and takes the message.

        Only from the acceptance, the caller learns if it may join further messages.

        Raises:
            BrokenCallError: the call has ended.
        """
        if len(message) > self._carrier.settings.message_bytes_max:
            self.fail(CallCode.RESOURCE_EXHAUSTED, "the message is too large")
        while self._offered is None and not self.is_over:
            await self._change()
        await super().write(message)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[bytes]:
        inbox = self._inbox
        while True:
            while inbox:
                message = inbox.popleft()
                self._took(message)
                yield message
                if inbox:
                    # Before the next message is handled, let the tasks run that this message has
                    # woken.
                    await asyncio.sleep(0)
            if self.is_over:
                break
            self._reader = self._loop.create_future()
            await self._reader
        if self._outcome is not None:
            raise self._outcome

    def _opening(self) -> bytes:
        if self._request is None:
            return b""
        return pack_size(len(self._request)) + self._request + encode_end(CallCode.OK)

    def _ended(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class CallsConnection(ClientConnection):
    """The connection that all calls with one answer share."""

    def __init__(self, carrier: FramesCarrier) -> None:
        super().__init__(carrier, ClientHello(CALLS, ()))
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._early: list[bytes] = []
        """Requests that were made before the connection was established."""
        self._idle: asyncio.TimerHandle | None = None
        self._rest()

    def request(self, rpc: str, message: bytes, metadata: PreparedPairs) -> asyncio.Future[bytes]:
        """Send a call, and return a future for its answer; cancelling the future cancels the call.

        If the call fails, the future raises `CallError`. If the carrier is closed, the future is
        cancelled.

        Raises:
            BadRequestError: the metadata is too large.
        """
        head = metadata.head(rpc)
        request_id = next(self._ids) % REQUEST_IDS
        answer: asyncio.Future[bytes] = self._loop.create_future()
        if self.is_over:
            answer.cancel()
            return answer
        if len(message) > self._carrier.settings.message_bytes_max:
            answer.set_exception(CallError(CallCode.RESOURCE_EXHAUSTED, "the message is too large"))
            return answer
        self._waiting[request_id] = answer
        answer.add_done_callback(lambda _: self._over(request_id))
        self._put(pack_size(request_id) + head + message)
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        return answer

    def _put(self, data: bytes) -> None:
        if self._transport is None:
            self._early.append(data)
        elif not self._is_broken:
            self._send(data)

    def _opening(self) -> bytes:
        early, self._early = self._early, []
        return b"".join(part for data in early for part in (pack_size(len(data)), data))

    def _arrived(self, message: bytes) -> None:
        request_id, code, content = parse_answer(message)
        answer = self._waiting.get(request_id)
        if answer is None or answer.done():
            return  # cancelled meanwhile
        if code is CallCode.OK:
            answer.set_result(content)
        else:
            answer.set_exception(CallError(code, content.decode("utf-8", "replace")))

    def _over(self, request_id: int) -> None:
        answer = self._waiting.pop(request_id, None)
        if self.is_over:
            return
        if answer is not None and answer.cancelled():
            self._put(encode_cancelled(request_id))
        self._rest()

    def _rest(self) -> None:
        """If no call is running, start the timer that closes the idle connection."""
        if not self._waiting and self._idle is None:
            seconds = self._carrier.settings.connection_idle_seconds_max
            self._idle = self._loop.call_later(seconds, self.cancel)

    def _ended(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        for answer in list(self._waiting.values()):
            if answer.done():
                continue
            if isinstance(self._outcome, asyncio.CancelledError):
                answer.cancel()
            else:
                answer.set_exception(self._error())

    def _error(self) -> CallError:
        """Return the error for a call that got no answer before the connection ended.

        Once the bookie has accepted the connection, the client does not know which call caused the
        end, or if a call was executed. So the error is UNAVAILABLE, after which a call may be
        repeated.
        """
        error = self._outcome
        if not isinstance(error, CallError):
            return CallError(CallCode.UNAVAILABLE, "the bookie stopped")
        code = error.code() if self._offered is None else CallCode.UNAVAILABLE
        return CallError(code, error.details())
