"""A client's connections: for each bookie a channel, streams of adds, and a stream of LACs.

A *lane* is the stream of all adds of one kind, plain or recovery, to one bookie. A lane belongs to
one incarnation of its bookie. A writer reads the incarnations of its first bookies before it
creates or claims the ledger. The writer reads a newcomer's incarnation after the metadata names the
newcomer. If the bookie returns with another incarnation, the lane and all entries acknowledged on
the lane count as lost.

All ledgers share the lanes. While a lane has users, it reconnects automatically and reports to its
users when it is up or down. A lane matches answers with requests by request ids. All lanes share
one counter of request ids, so one bytes object can go to every bookie of a write set. A broken lane
forgets its requests. Each sender keeps its own requests, and decides if it sends them again.

Every attempt to connect looks up the bookie's address by its id, because the address may have
changed.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from itertools import count
from typing import Generic, Protocol, TypeVar

from bookie.cluster.directory import BookieDirectory
from bookie.cluster.endpoints import FRAMES, speaks_tls
from bookie.cluster.registration_record import Endpoint
from bookie.config import ClientSettings, RpcSettings
from bookie.env import gather
from bookie.env.backoff import Backoff
from bookie.errors import (
    BadRequestError,
    BookieError,
    BookieUnreachableError,
    ClientClosedError,
    TlsError,
    WrongIncarnationError,
)
from bookie.ids import Status
from bookie.ledger.connection.calls import ELSEWHERE
from bookie.ledger.connection.chosen_channel import ChosenChannel
from bookie.wire.client.channel import AddStream, BookieChannel, LacState, LacWatch
from bookie.wire.commands import Info
from bookie.wire.grpc.credentials import ChannelSecurity

RECONNECT_SECONDS_MIN = 0.05
RECONNECT_SECONDS_MAX = 1.0
"""The longest pause between attempts to connect; a restarted bookie may wait this long."""

LINGER_SECONDS_MAX = 1.0
"""The longest time that a closing client waits until bookies have received the last LAC."""

MOVED = "the bookie has another address now"

S = TypeVar("S", AddStream, LacWatch)

OnAnswer = Callable[[Status, str, int], None]
"""Gets the status, the message, and the pause in ms before the request may be repeated (0:
none)."""

OnLac = Callable[[LacState], None]


class AddSender(Protocol):
    """A user of a lane, which is a stream of adds to one bookie."""

    def on_up(self) -> None:
        """Handle that the lane is up; requests that were sent earlier will not be answered."""

    def on_down(self) -> None:
        """Handle that the lane is down; the outcome of every unanswered request is unknown."""

    def on_silent(self) -> None:
        """Handle that the bookie has not answered other users of the lane in time."""

    def on_lost(self) -> None:
        """Handle a new incarnation: the bookie may have lost all entries that it acknowledged."""


class _Reconnecting(ABC, Generic[S]):
    """A stream to one bookie that opens while it has users, and reopens after it breaks.

    The pauses between attempts to connect double, with jitter, until an attempt succeeds.
    """

    def __init__(self, connection: BookieConnection) -> None:
        self._connection = connection
        self._channel: BookieChannel | None = None
        self._stream: S | None = None
        self._backoff = Backoff(RECONNECT_SECONDS_MIN, RECONNECT_SECONDS_MAX, random.random)
        self._timer: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def _is_needed(self) -> bool:
        """True if the stream has users."""

    @abstractmethod
    def _open(self, channel: BookieChannel) -> S:
        """Open the stream on a new channel."""

    @abstractmethod
    def _on_broken(self, error: BookieError) -> None:
        """Handle that the stream broke."""

    def drop(self) -> None:
        """Drop the stream, because its channel is closed."""
        if self._stream is not None:
            self._stream.abandon()
        self._stream = self._channel = None
        self._on_broken(BookieUnreachableError(MOVED))

    def move(self, channel: BookieChannel) -> None:
        """Move the stream to `channel`, the connection's new channel, which reaches the bookie.

        The former channel stays open until `leave_channel` is called.
        """
        del channel
        self.drop()
        self.hurry()

    def leave_channel(self, channel: BookieChannel) -> None:
        """Drop the stream if it uses this channel, because the channel is closed now."""
        if self._channel is channel:
            self.drop()

    def abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _connect(self) -> None:
        if not self._is_needed or (self._stream is not None and self._stream.is_open):
            return
        try:
            channel = self._connection.channel()
        except BookieError as error:
            self._on_broken(error)
            return
        if self._stream is None or channel is not self._channel:
            self._channel = channel
            self._stream = self._open(channel)
        else:
            self._stream.reopen()

    def _on_open(self) -> None:
        """Reset the reconnect pauses to a short pause, because the bookie accepted the stream."""
        self._backoff.reset()

    def _reconnect_later(self) -> None:
        if self._is_needed and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._backoff.next(), self._fire)

    def hurry(self) -> None:
        """Try to connect now, because the bookie has just registered.

        The attempt to connect may fail, because the channel itself pauses after failures. So the
        pauses between further attempts start again with the shortest pause.
        """
        self._backoff.reset()
        if self._timer is not None:
            self._timer.cancel()
            self._fire()

    def _fire(self) -> None:
        self._timer = None
        self._connect()


class AddConnection(_Reconnecting[AddStream]):
    """The stream of adds of one kind (plain or recovery) to one incarnation of a bookie."""

    def __init__(self, connection: BookieConnection, incarnation: str = "") -> None:
        super().__init__(connection)
        self._incarnation = incarnation
        """The expected incarnation; if empty (the bookie registered none), any incarnation is
        accepted."""
        self._is_lost = False
        self._users: dict[AddSender, None] = {}
        self._awaited: dict[int, OnAnswer] = {}
        self.heard_at = 0.0
        """Event-loop time when the bookie last sent an answer, or accepted the stream."""
        self._told_at = -1.0
        """The value of `heard_at` when a silence was last reported; each silence is reported
        once."""
        self.is_up = False
        """True if the bookie has accepted the stream; requests are sent only while this is true."""
        self.tls_problem = ""
        """The TLS error of the last attempt to connect; empty if TLS did not fail."""

    @property
    def life(self) -> str:
        """The id of the bookie process that last accepted the stream; empty if unknown."""
        return "" if self._stream is None else self._stream.life

    def join(self, user: AddSender) -> None:
        """Add a user; call its `on_up` or `on_lost` now if the lane is up or lost, else later."""
        if self._is_lost:
            user.on_lost()
            return
        self._users[user] = None
        if self.is_up:
            user.on_up()
        else:
            self._connect()

    def leave(self, user: AddSender) -> None:
        """Stop using the lane. Answers in flight may still be delivered."""
        self._users.pop(user, None)

    def send(self, request_id: int, data: bytes, on_answer: OnAnswer) -> None:
        """Send one request if the lane is up; if the lane breaks, `on_answer` may not be called."""
        if self._stream is None or not self.is_up:
            return
        try:
            self._stream.send(data)
        except BookieUnreachableError:
            return  # the lane just broke, and `on_down` follows
        self._awaited[request_id] = on_answer

    async def request(self, request_id: int, data: bytes) -> tuple[Status, str]:
        """Send one request, and resend it each time the lane reopens, until it is answered."""
        once = _OneRequest(self, request_id, data)
        self.join(once)
        try:
            return await once.answered
        finally:
            self.leave(once)

    def suspect(self, teller: AddSender, seconds: float) -> None:
        """Call `on_silent` of all users except `teller` if the bookie was silent for `seconds`."""
        silent = asyncio.get_running_loop().time() - self.heard_at
        if self.is_up and self._awaited and silent >= seconds and self._told_at != self.heard_at:
            self._told_at = self.heard_at
            for user in list(self._users):
                if user is not teller:
                    user.on_silent()

    def describe(self) -> str:
        """Describe the lane's state, for the log of a writer without an answer."""
        bookie_id = self._connection.bookie_id
        if self._is_lost:
            return f"{bookie_id}: may have lost what it acknowledged"
        if not self.is_up or self._stream is None:
            return f"{bookie_id}: down"
        silent = asyncio.get_running_loop().time() - self.heard_at
        return (
            f"{bookie_id}: up, {len(self._awaited)} requests unanswered, "
            f"{self._stream.queued_bytes} bytes not sent, last heard {silent:.1f} s ago"
        )

    def abandon(self) -> None:
        self._users.clear()
        self._awaited.clear()
        super().abandon()

    @property
    def _is_needed(self) -> bool:
        return bool(self._users) and not self._is_lost

    def move(self, channel: BookieChannel) -> None:
        """Move the lane to `channel` when the bookie accepts a stream on this channel.

        Until then, the lane uses its former stream. So the lane is down for no time in which
        writers would replace the bookie. If the process of the bookie is the same, its
        acknowledgements without a sync still count.
        """
        if not self._is_needed or self._stream is None or not self._stream.is_open:
            super().move(channel)
            return

        def on_open() -> None:
            if self._stream is not stream:
                is_same = self.is_up and self.life != "" and self.life == stream.life
                if self._stream is not None:
                    self._stream.abandon()
                self._stream, self._channel = stream, channel
                if is_same:
                    self._awaited.clear()  # the users send it again
                else:
                    self._on_broken(BookieUnreachableError(MOVED))
            self._on_open()

        def on_broken(error: BookieError) -> None:
            if self._stream is stream:
                self._on_broken(error)

        stream = channel.add_stream(
            self._on_answer, on_broken, on_open, incarnation=self._incarnation
        )

    def _open(self, channel: BookieChannel) -> AddStream:
        return channel.add_stream(
            self._on_answer, self._on_broken, self._on_open, incarnation=self._incarnation
        )

    def _on_open(self) -> None:
        super()._on_open()
        self.is_up, self.tls_problem = True, ""
        self.heard_at = asyncio.get_running_loop().time()
        for user in list(self._users):
            user.on_up()

    def _on_broken(self, error: BookieError) -> None:
        self._awaited.clear()
        self.is_up, self.tls_problem = False, str(error) if isinstance(error, TlsError) else ""
        if isinstance(error, WrongIncarnationError):
            self._is_lost = True
            users, self._users = self._users, {}
            for user in users:
                user.on_lost()
            return
        # Any other error may be temporary, so connect again later.
        self._reconnect_later()
        for user in list(self._users):
            user.on_down()

    def _on_answer(
        self, request_id: int, status: Status, message: str, retry_after_ms: int, /
    ) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        on_answer = self._awaited.pop(request_id, None)
        if on_answer is not None:
            on_answer(status, message, retry_after_ms)


class _OneRequest:
    """A user of a lane that sends only one request."""

    def __init__(self, lane: AddConnection, request_id: int, data: bytes) -> None:
        self.answered: asyncio.Future[tuple[Status, str]]
        self.answered = asyncio.get_running_loop().create_future()
        self._lane, self._request_id, self._data = lane, request_id, data

    def on_up(self) -> None:
        self._lane.send(self._request_id, self._data, self._on_answer)

    def on_down(self) -> None:
        pass  # `on_up` resends the request

    def on_silent(self) -> None:
        pass  # the caller has its own timeout

    def on_lost(self) -> None:
        self._on_answer(Status.WRONG_INCARNATION, "the bookie has another incarnation now", 0)

    def _on_answer(self, status: Status, message: str, _retry_after_ms: int) -> None:
        if not self.answered.done():
            self.answered.set_result((status, message))


class LacSubscription(_Reconnecting[LacWatch]):
    """The stream of LACs from one bookie, shared by all readers of this client."""

    def __init__(self, connection: BookieConnection) -> None:
        super().__init__(connection)
        self._callbacks: dict[int, list[OnLac]] = {}

    def subscribe(self, ledger_id: int, callback: OnLac) -> None:
        """Call `callback` with the ledger's LAC state: now, and after each change or reconnect."""
        followers = self._callbacks.setdefault(ledger_id, [])
        followers.append(callback)
        self._connect()
        if self._stream is not None:
            if len(followers) > 1:
                # Subscribe again, because a bookie reports the current state only to a new
                # subscriber.
                self._stream.unsubscribe([ledger_id])
            self._stream.subscribe([ledger_id])

    def unsubscribe(self, ledger_id: int, callback: OnLac) -> None:
        followers = self._callbacks.get(ledger_id, [])
        if callback in followers:
            followers.remove(callback)
        if not followers and self._callbacks.pop(ledger_id, None) is not None and self._stream:
            self._stream.unsubscribe([ledger_id])

    def abandon(self) -> None:
        self._callbacks.clear()
        super().abandon()

    @property
    def _is_needed(self) -> bool:
        return bool(self._callbacks)

    def _open(self, channel: BookieChannel) -> LacWatch:
        watch = channel.watch_lac(self._on_update, self._on_broken, self._on_open)
        watch.subscribe(self._callbacks)
        return watch

    def _on_update(self, state: LacState) -> None:
        for callback in list(self._callbacks.get(state.ledger_id, ())):
            callback(state)

    def _on_broken(self, error: BookieError) -> None:
        del error
        self._reconnect_later()


class BookieConnection:
    """All streams and calls between this client and one bookie."""

    def __init__(self, bookie_id: str, pool: BookiePool) -> None:
        self.bookie_id = bookie_id
        self._pool = pool
        self._chosen = ChosenChannel(bookie_id, pool, self._lanes)
        self._plain: dict[str, AddConnection] = {}
        self._recovery: dict[str, AddConnection] = {}
        """`_plain` and `_recovery` map an incarnation of the bookie to the lane of this
        incarnation."""
        self.lacs = LacSubscription(self)

    def plain(self, incarnation: str) -> AddConnection:
        """Return the lane for writers that expect this incarnation of the bookie."""
        return self._lane(self._plain, incarnation)

    def recovery(self, incarnation: str) -> AddConnection:
        """Return the lane for recoveries that expect this incarnation of the bookie."""
        return self._lane(self._recovery, incarnation)

    def _lane(self, lanes: dict[str, AddConnection], incarnation: str) -> AddConnection:
        if incarnation not in lanes:
            lanes[incarnation] = AddConnection(self, incarnation)
        return lanes[incarnation]

    def _lanes(self) -> list[AddConnection | LacSubscription]:
        return [*self._plain.values(), *self._recovery.values(), self.lacs]

    def channel(self) -> BookieChannel:
        """Return the channel to the bookie's current address.

        Raises:
            BookieUnreachableError: the bookie's address is unknown.
            TlsError: the client's settings forbid the bookie's address.
        """
        return self._chosen.channel()

    def hurry(self) -> None:
        self._chosen.hurry()
        for lane in self._lanes():
            lane.hurry()

    async def close(self) -> None:
        """End all streams and calls. The bookie may still carry out requests that it received."""
        for lane in self._lanes():
            lane.abandon()
        await self._chosen.close()


class BookiePool:
    """The connections of one client to bookies, created at first use.

    Args:
        directory: the addresses of bookies.
        instance_id: the cluster instance to which the bookies must belong.
        tasks: the task group of streams and calls; the group must end after `close`.
        settings: the client's timeouts.
        rpc: message sizes and keepalive, the same as the bookies'.
        security: the credentials for TLS; by default there is no TLS.
    """

    def __init__(
        self,
        directory: BookieDirectory,
        instance_id: str,
        tasks: asyncio.TaskGroup,
        settings: ClientSettings,
        rpc: RpcSettings,
        security: ChannelSecurity | None = None,
    ) -> None:
        self.directory = directory
        self.security = security or ChannelSecurity()
        self.tasks = tasks
        self.settings = settings
        self._instance_id = instance_id
        self._rpc = rpc
        self._connections: dict[str, BookieConnection] = {}
        self._request_ids = count(1)
        self.is_closed = False
        self._loop = asyncio.get_running_loop()
        self._spawned: set[asyncio.Task[None]] = set()
        self._on_close: dict[Callable[[], None], None] = {}
        self._lingering: list[asyncio.Event] = []
        directory.on_arrival(self._on_arrival)

    def next_request_id(self) -> int:
        return next(self._request_ids)

    def connection(self, bookie_id: str) -> BookieConnection:
        """Return the connection to a bookie; it opens at its first use."""
        found = self._connections.get(bookie_id)
        if found is None:
            found = self._connections[bookie_id] = BookieConnection(bookie_id, self)
        return found

    def _on_arrival(self, bookie_id: str) -> None:
        if not self.is_closed and (found := self._connections.get(bookie_id)) is not None:
            found.hurry()

    def offered(self, bookie_id: str) -> tuple[Endpoint, ...]:
        """Return the bookie's addresses that this client may use: first for gRPC, then for frames.

        Raises:
            BookieUnreachableError: the bookie's address is unknown.
            TlsError: the client's settings forbid the bookie's address.
        """
        transport = self.settings.transport
        best = self.directory.resolve(bookie_id, self.security.settings, transport)
        if transport != "auto" or best.name != FRAMES:
            return (best,)
        return (self.directory.resolve(bookie_id, self.security.settings), best)

    def require_permitted(self, bookies: Collection[str]) -> None:
        """Raise an error if the client's settings forbid every bookie of `bookies`.

        Raises:
            TlsError: every bookie is forbidden, so it is useless to wait for a reachable bookie.
        """
        refusal: TlsError | None = None
        for bookie_id in bookies:
            try:
                self.offered(bookie_id)
            except TlsError as error:
                refusal = error
            except BookieUnreachableError:
                return
            else:
                return
        if refusal is not None:
            raise refusal

    def open_channel(self, endpoint: Endpoint, bookie_id: str) -> BookieChannel:
        """Make a channel to `endpoint`; it fails if another bookie than `bookie_id` answers."""
        return BookieChannel(
            endpoint.address,
            self._instance_id,
            self.tasks,
            bookie_id=bookie_id,
            connect_timeout_seconds=self.settings.connect_timeout_seconds,
            settings=self._rpc,
            security=self.security if speaks_tls(endpoint) else None,
            is_framed=endpoint.name == FRAMES,
        )

    def require_open(self) -> None:
        """Raise an error if the pool was closed, or if another event loop runs this call.

        Raises:
            ClientClosedError: the pool was closed.
            BadRequestError: the call comes from another event loop.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise BadRequestError(ELSEWHERE)
        if self.is_closed:
            raise ClientClosedError("the client is closed")

    def spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Start a task of the client; the pool cancels the task when the pool closes."""
        task = self.tasks.create_task(work, name=name)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    def on_close(self, callback: Callable[[], None]) -> None:
        """Register `callback`; `close` calls it before calls and connections end."""
        self._on_close[callback] = None

    def off_close(self, callback: Callable[[], None]) -> None:
        self._on_close.pop(callback, None)

    def linger(self, event: asyncio.Event) -> None:
        """Make a running `close` wait for `event`, for at most `LINGER_SECONDS_MAX`."""
        if self.is_closed:
            self._lingering.append(event)

    def close_channel(self, channel: BookieChannel) -> None:
        """Close the channel to a bookie's former address, in the background."""
        work = channel.close(has_moved=True)
        self.tasks.create_task(work, name=f"close {channel.address}")

    async def close(self) -> None:
        """Run the callbacks of `on_close`, end all calls and close all connections."""
        self.is_closed = True
        while self._on_close:
            self._on_close.popitem()[0]()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS_MAX):
                for event in self._lingering:
                    await event.wait()
        for task in self._spawned:
            task.cancel()
        for connection in self._connections.values():
            await connection.close()


async def ask_bookies(
    pool: BookiePool, bookie_ids: Collection[str], *, timeout_seconds: float
) -> dict[str, Info]:
    """Ask bookies for their info; return, by bookie id, the answers within `timeout_seconds`."""

    async def ask(bookie_id: str) -> Info | None:
        try:
            return await pool.connection(bookie_id).channel().info(timeout=timeout_seconds)
        except BookieError:
            return None

    answers = await gather(ask(bookie_id) for bookie_id in bookie_ids)
    return {one: info for one, info in zip(bookie_ids, answers, strict=True) if info is not None}
