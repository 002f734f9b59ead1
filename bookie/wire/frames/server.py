"""A bookie's listener for frames, from binding its port to draining its conversations.

Like the gRPC port, the port is bound before the bookie creates files, and refuses conversations
until the bookie serves. The handlers of `bookie.wire.server.service` serve the conversations, so
roles, tokens, shares, rates and turns are those of gRPC. A conversation has the same name of its
peer as a call by gRPC, so both carriers share the limits of an address.

A peer costs bounded memory: a hello has a time limit and a size, and `FramedConnection` bounds the
rest. A peer that sends anything else than this carrier's bytes loses its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

from bookie.addresses import join_address
from bookie.config import RpcSettings
from bookie.env.listening import bind_all
from bookie.env.own_sockets import peer_name, plain_address
from bookie.env.turns import Turns
from bookie.errors import BadRequestError, CannotStartError
from bookie.security import PemFiles
from bookie.security.identity import identity_of_certificate
from bookie.telemetry import event_log
from bookie.wire.call_metadata import Pairs
from bookie.wire.carrier import CallCode
from bookie.wire.frames.connection import OUTBOX_BYTES_MAX, FramedConnection, prepare_socket
from bookie.wire.frames.format import (
    CALLS,
    HELLO_BYTES_MAX,
    SCRATCH_BYTES,
    BookieHello,
    OversizeError,
    encode_bookie_hello,
    encode_end,
    parse_client_hello,
)
from bookie.wire.frames.served_calls import ServedCalls
from bookie.wire.interfaces import BrokenCallError
from bookie.wire.server.service import Handlers

BACKLOG: Final = 512
"""The most connections that the kernel accepts before the event loop does."""

PAUSE_SECONDS: Final = 0.1
"""The pause after a failed accept, such as without a free descriptor."""

SMALL_ANSWER_BYTES: Final = 64 * 1024
"""The largest answer that overtakes others which the client does not take."""

URGENT_CALLS_PER_TURN: Final = 64
"""More than recovery needs, but few enough that they delay nobody: they take about 3 ms."""

HANDSHAKES_MAX: Final = 16
"""The most handshakes of TLS with one address at a time. Each takes the event loop for about 1 ms.
A bound for all addresses together would let a few silent clients lock out everybody."""

HANDSHAKES_PER_TURN: Final = 2
"""The most handshakes that begin in one turn of the event loop. More would delay the adds of all
clients, even by gRPC: beside 64 attackers, p99 of a lone append is 8.6 ms instead of 10.5 ms."""

LOOK_SECONDS: Final = 1.0
"""The time between two looks for connections that have ended unnoticed."""

LOG_SECONDS: Final = 60.0
"""The shortest time between two log lines about malformed connections."""

_log = event_log(__name__)


class ServedConnection(FramedConnection):
    """A client's connection, and the context of its conversation for the handlers.

    Args:
        port: the listener, which knows the handlers and the limits.
    """

    def __init__(self, port: FramesPort) -> None:
        most = min(HELLO_BYTES_MAX, port.settings.metadata_bytes_max)
        super().__init__(port.scratch, most)
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._peer = ""
        self._properties: Mapping[str, Iterable[bytes]] = {}
        self._metadata: Pairs = ()
        self._callbacks: list[Callable[[Any], None]] = []
        self._task: asyncio.Task[None] | None = None
        """The task of a stream or listing."""
        self._calls: ServedCalls | None = None
        self._is_accepted = self._is_finishing = False
        self._failure = (CallCode.OK, "")
        """What the end says if the conversation itself does not fail."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends a connection without a hello, and one that does not close after its end."""

    # --- the context of a call -----------------------------------------------------------

    def invocation_metadata(self) -> Pairs:
        return self._metadata

    def add_done_callback(self, callback: Callable[[Any], None], /) -> None:
        self._callbacks.append(callback)

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return self._properties

    def peer(self) -> str:
        return self._peer

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...], /) -> None:
        if self._is_broken or self._is_finishing:
            raise BrokenCallError("the connection is closed")
        self.accept(metadata)

    async def write(self, message: bytes, /) -> None:
        if self._is_finishing:
            raise BrokenCallError("the conversation has ended")
        if len(message) > self._port.settings.message_bytes_max:
            self.finish(CallCode.RESOURCE_EXHAUSTED, "the answer is too large")
            raise BrokenCallError("the answer is too large")
        await super().write(message)

    # --- begin ---------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        port = self._port
        peername = transport.get_extra_info("peername")
        if peername is None or not port.admit(self):
            self.abort()
            return
        self._peer = _peer_name(peername)
        self._timer = self._loop.call_later(port.settings.handshake_timeout_seconds, self.abort)
        with contextlib.suppress(OSError):  # the peer is gone
            prepare_socket(
                transport.get_extra_info("socket"), port.settings, port.settings.slow_reader_seconds
            )
        self._properties = _properties_of(transport.get_extra_info("ssl_object"))

    def _greet(self, body: bytes) -> None:
        self._stop_timer()
        hello = parse_client_hello(body)
        port = self._port
        self._metadata = hello.metadata
        self._units.frame_bytes_max = most = port.settings.message_bytes_max
        if port.requires_certificate and not self._properties:
            self.refuse(CallCode.UNAUTHENTICATED, "a client's certificate is required")
            return
        handlers = port.handlers
        if handlers is None:
            self.refuse(CallCode.UNAVAILABLE, port.refusal)
        elif (stream := handlers.streams.get(hello.conversation)) is not None:
            self._begin(hello.conversation, lambda: stream(self))
        elif (listing := handlers.listings.get(hello.conversation)) is not None:
            self._begin(hello.conversation, lambda: self._list(listing))
        elif hello.conversation == CALLS:
            self._units.frame_bytes_max = most + HELLO_BYTES_MAX
            self.accept(())
            self._calls = ServedCalls(self, port, handlers)
        else:
            self.refuse(CallCode.UNIMPLEMENTED, "there is no such conversation")

    def _begin(self, name: str, conversation: Callable[[], Awaitable[None]]) -> None:
        self._task = self._port.spawn(self._serve(conversation), f"{name} of {self._peer}")

    async def _list(self, listing: Callable[[bytes, Any], Awaitable[None]]) -> None:
        async with asyncio.timeout(self._port.settings.handshake_timeout_seconds):
            request = await self.read()
        if request is None:
            raise BrokenCallError("the client sent no request")
        self.accept(())
        await listing(request, self)

    async def _serve(self, conversation: Callable[[], Awaitable[None]]) -> None:
        """Serve a stream or listing, and send its end; a cancelled one ends without an end."""
        try:
            await self._converse(conversation)
        except Exception as error:  # noqa: BLE001  (it would stop the bookie, whose task this is)
            _log.error("conversation_failed", error, peer=self._peer)
            self.abort()

    async def _converse(self, conversation: Callable[[], Awaitable[None]]) -> None:
        try:
            await conversation()
        except (BrokenCallError, TimeoutError):
            self._give_up()
        except asyncio.CancelledError:
            self._give_up()
            raise
        except Exception as error:  # noqa: BLE001  (as gRPC answers what a handler raises)
            _log.error("conversation_failed", error, peer=self._peer)
            self.finish(CallCode.UNKNOWN, "the bookie failed; its log says why")
        else:
            self.finish(CallCode.OK)

    def _arrived(self, message: bytes) -> None:
        if self._calls is None:
            super()._arrived(message)
        else:
            self._calls.arrived(message)

    def _end_arrived(self, body: bytes | None) -> None:
        super()._end_arrived(body)
        if self._calls is not None and body is not None:
            self._calls.pump()
        elif self._calls is not None:
            self.abort()  # without an end message, so the client is gone
        elif self._task is None:
            self.abort()

    # --- for calls -----------------------------------------------------------------------

    def hold(self, request: bytes) -> None:
        """Count a request that waits; while too many bytes wait, nothing is read."""
        self._hold(request)

    def took(self, request: bytes) -> None:
        """Count a request no longer, because it is begun or given up."""
        self._took(request)

    @property
    def has_ended(self) -> bool:
        """True if the client sends no more requests."""
        return self._has_ended

    def try_answer(self, data: bytes) -> None:
        """Send a refusal unless the client takes no answers; the end then refuses its call."""
        if self._is_writable and not (self._is_broken or self._is_finishing):
            self._send(data)

    async def answer(self, data: bytes) -> None:
        """Send an answer on a connection for calls; raises like `FramedConnection.write`.

        The client may cancel a call, which then gives back what it was charged for its answer. So
        an answer waits here, not in the transport, until the client has taken earlier ones. A small
        answer, such as that of a fence, overtakes the answers that wait; it waits behind one large
        answer.
        """
        if not (self._is_writable or self._has_room_for(data)):
            await self.until_writable()
        if self._is_finishing:
            raise BrokenCallError("the conversation has ended")
        await super().write(data)

    def _has_room_for(self, answer: bytes) -> bool:
        """Tell if an answer is so small that the transport may hold it behind a large one."""
        assert self._transport is not None
        most = OUTBOX_BYTES_MAX + self._port.settings.message_bytes_max
        return len(answer) <= SMALL_ANSWER_BYTES and self._transport.get_write_buffer_size() < most

    # --- end -----------------------------------------------------------------------------

    def accept(self, metadata: Pairs) -> None:
        """Send the bookie's hello."""
        assert self._transport is not None
        hello = BookieHello(CallCode.OK, "", metadata)
        self._transport.write(encode_bookie_hello(hello))
        self._is_accepted = True

    def refuse(self, code: CallCode, details: str) -> None:
        """Refuse the conversation by the bookie's hello, and close."""
        assert self._transport is not None
        if not self._is_broken:
            self._transport.write(encode_bookie_hello(BookieHello(code, details)))
            self._close()

    def finish(self, code: CallCode, details: str = "") -> None:
        """Send the end, and close as soon as the client has taken it."""
        if self._is_broken or self._is_finishing:
            return
        if code is CallCode.OK:
            code, details = self._failure
        if not self._is_accepted:
            self.refuse(code, details)
            return
        assert self._transport is not None
        self._transport.write(encode_end(code, details))
        self._close()

    def drain(self) -> None:
        """Take no further request; the connection ends after the answers to earlier ones."""
        if self._calls is not None:
            self._calls.drain()
        elif self._task is None and not self._is_finishing:
            self.abort()

    def _close(self) -> None:
        """Close when the client does, or when it takes too long.

        A close with unread bytes would reset the connection, and the client could lose its last
        answers. So what the client still sends is read, and thrown away.
        """
        self._is_finishing = self._is_discarding = True
        self._units.drop()
        self._inbox.clear()
        self._resume()
        if self._transport is not None and self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client is gone
                self._transport.write_eof()
        if self._has_ended:
            self._close_flushed()
        else:
            self._wait_for_close(-1)

    def _close_flushed(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._wait_for_close(-1)

    def _give_up(self) -> None:
        """Close without an end, unless the end was sent before or has a reason."""
        if self._failure[0] is not CallCode.OK:
            self.finish(CallCode.OK)
        elif not self._is_finishing:
            self.abort()

    def _wait_for_close(self, unsent: int) -> None:
        """Give the connection up when the client takes nothing for the time of a handshake."""
        self._stop_timer()
        assert self._transport is not None
        left = self._transport.get_write_buffer_size()
        if 0 <= unsent <= left:
            self.abort()
            return
        seconds = self._port.settings.handshake_timeout_seconds
        self._timer = self._loop.call_later(seconds, self._wait_for_close, left)

    def eof_received(self) -> bool:
        if self._is_finishing:
            self._has_ended = True
            self._close_flushed()
            return False
        if self._units.has_more:
            self.abort()  # by TLS, the client is gone; so nobody waits for an answer
            return False
        return super().eof_received()

    def _malformed(self, error: BadRequestError) -> None:
        self._port.note_malformed(self._peer, error)
        if not isinstance(error, OversizeError):
            self.abort()
            return
        self._failure = CallCode.RESOURCE_EXHAUSTED, str(error)
        if self._task is None and self._calls is None:
            self.finish(CallCode.OK)
            return
        # The frames before it are answered, as before an end.
        self._is_discarding = True
        self._units.drop()
        self._end_arrived(b"")

    def _lost(self, error: Exception | None) -> None:
        del error
        self._stop_timer()
        self._inbox.clear()
        if self._task is not None:
            self._task.cancel()
        if self._calls is not None:
            self._calls.cancel()
        self._port.forget(self)
        for callback in self._callbacks:
            callback(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class FramesPort:
    """A bound port, on which conversations are refused until `serve`; `hold_frames_port` makes it.

    Args:
        settings: message sizes, keepalive and limits.
        tasks: the group of the conversations' tasks.
        files: the certificate and key for TLS; None for plaintext.
        connections_max: the most connections for each listening socket, of which a host with
            several addresses has several; further ones are closed as soon as they are accepted.
    """

    def __init__(
        self,
        settings: RpcSettings,
        tasks: asyncio.TaskGroup,
        files: PemFiles | None,
        connections_max: int,
    ) -> None:
        self.settings = settings
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.handlers: Handlers | None = None
        """The handlers of conversations; None while the bookie does not serve."""
        self.refusal = "the bookie is starting"
        self.turns, self.urgent_turns = Turns(), Turns(URGENT_CALLS_PER_TURN)
        """The calls that are begun in a turn of the event loop, and those that recovery waits for.
        They have their own turns, because a call that is begun takes its turns like gRPC's."""
        self._tasks = tasks
        self._files = files
        self._connections_max = connections_max
        self._connections: dict[ServedConnection, None] = {}
        self._beginning: dict[asyncio.Task[None], socket.socket] = {}
        """The tasks that begin connections, and their sockets."""
        self._coming: set[ServedConnection] = set()
        """Accepted connections that have no transport yet, such as during a TLS handshake."""
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshake_turns = Turns(HANDSHAKES_PER_TURN)
        self._handshakes: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """The free handshakes of each address that has any."""
        self._looking: asyncio.TimerHandle | None = None
        self._works: set[asyncio.Task[None]] = set()
        """The tasks of conversations."""
        self._malformed_count = 0
        self._next_line = 0.0
        """Event-loop time of the next line about malformed connections, and their number since."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def port(self) -> int:
        """The port of the first listening socket."""
        return int(self._sockets[0].getsockname()[1])

    @property
    def requires_certificate(self) -> bool:
        """True if a client must show a certificate."""
        return self._files is not None and self._files.settings.require_client_certificate

    async def open(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            CannotStartError: the process cannot listen on the address now.
        """
        try:
            self._sockets = await bind_all(host, port)
            for one in self._sockets:
                one.listen(BACKLOG)
        except OSError as error:
            self._close_sockets()
            reason = os.strerror(error.errno) if error.errno else str(error)
            if error.errno == errno.EADDRINUSE:
                reason = "address already in use"
            where = join_address(host, port)
            raise CannotStartError(f"cannot listen on {where}: {reason.lower()}") from error
        self._look()
        self._accepting = [
            self._tasks.create_task(self._accept(one), name=f"listener of frames on {host}")
            for one in self._sockets
        ]

    def serve(self, handlers: Handlers) -> None:
        """Serve conversations from now on."""
        self.handlers = handlers
        _log.info("frames_listening", port=self.port)

    async def stop(self, grace_seconds: float) -> None:
        """Accept nothing more, and wait until all conversations have ended, at most so long.

        The owner has told the streams to end before.
        """
        self.handlers, self.refusal = None, "the bookie is stopping"
        await self._stop_accepting()
        for connection in list(self._connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._empty.wait()
        self._abort()
        await self._empty.wait()
        if self._works:
            # They use what the owner takes apart next.
            await asyncio.wait(self._works)
        _log.info("frames_stopped")

    async def close(self) -> None:
        """Close everything at once."""
        await self._stop_accepting()
        self._abort()
        await self._empty.wait()
        if self._looking is not None:
            self._looking.cancel()

    def spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        """Start a task of a conversation."""
        task = self._tasks.create_task(work, name=name)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return task

    def admit(self, connection: ServedConnection) -> bool:
        """Count a new connection; False if there are too many."""
        self._coming.discard(connection)
        self._connections[connection] = None
        self._empty.clear()
        return len(self._connections) <= self._connections_max * len(self._sockets)

    def forget(self, connection: ServedConnection) -> None:
        """Count a connection no longer, because it has ended."""
        self._connections.pop(connection, None)
        if not self._connections:
            self._empty.set()

    def note_malformed(self, peer: str, error: BadRequestError) -> None:
        """Log, at most once a minute, that a peer does not speak this carrier's language."""
        self._malformed_count += 1
        now = asyncio.get_running_loop().time()
        if now >= self._next_line:
            count, self._malformed_count = self._malformed_count, 0
            self._next_line = now + LOG_SECONDS
            _log.warning("frames_malformed", connections=count, last=peer, reason=str(error))

    def _look(self) -> None:
        """Abort connections that have ended while nothing was read from them.

        An event loop notices an end only by reading or writing. The end may come from the client,
        or from this process, which shuts sockets down to bound connections and memory.
        """
        self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        poll, idle = select.poll(), dict[int, ServedConnection]()
        for connection in self._connections:
            if (descriptor := connection.idle_descriptor()) >= 0:
                poll.register(descriptor, 0)  # the ends of both directions are always reported
                idle[descriptor] = connection
        for descriptor, _ in poll.poll(0) if idle else ():
            idle[descriptor].abort()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            accepted: socket.socket | None = None
            try:
                accepted, _ = await loop.sock_accept(listening)
                self._accepted(accepted)
            except ConnectionAbortedError:
                continue
            except Exception as error:  # noqa: BLE001  (it would stop the bookie)
                if accepted is not None:
                    accepted.close()
                if not isinstance(error, OSError):
                    _log.error("frames_accept_failed", error)
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(0)  # sock_accept does not yield while connections wait

    def _accepted(self, accepted: socket.socket) -> None:
        count = len(self._connections) + len(self._coming)
        if count >= self._connections_max * len(self._sockets):
            accepted.close()
            return
        connection = ServedConnection(self)
        self._coming.add(connection)
        work = self._begin(accepted, connection)
        task = self._tasks.create_task(work, name="handshake of frames")
        self._beginning[task] = accepted
        task.add_done_callback(self._beginning.pop)

    async def _begin(self, accepted: socket.socket, connection: ServedConnection) -> None:
        """Make the protocol of an accepted connection, after the handshake of TLS."""
        try:
            if self._files is None:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: connection, accepted)
            else:
                await self._shake_hands(accepted, connection, self._files.context)
        except OSError:
            pass  # the peer is gone, or does not speak TLS as it must
        except Exception as error:  # noqa: BLE001  (it would stop the bookie, whose task this is)
            _log.error("frames_handshake_failed", error)
            connection.abort()
            accepted.close()
        finally:
            self._coming.discard(connection)

    async def _shake_hands(
        self, accepted: socket.socket, connection: ServedConnection, context: ssl.SSLContext
    ) -> None:
        """Make the protocol of a connection by TLS, when its address has few other handshakes."""
        seconds = self.settings.handshake_timeout_seconds
        try:
            address = plain_address(str(accepted.getpeername()[0]))
            handshakes = self._handshakes.setdefault(address, asyncio.Semaphore(HANDSHAKES_MAX))
            async with asyncio.timeout(seconds):
                await self._may_shake_hands(handshakes, address)
        except BaseException:
            accepted.close()  # no transport has it yet
            raise
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        finally:
            handshakes.release()

    async def _may_shake_hands(self, handshakes: asyncio.Semaphore, address: str) -> None:
        """Wait for one of the handshakes of an address, and for a turn of the event loop."""
        await handshakes.acquire()
        try:
            await self._handshake_turns.take(1, address)
        except BaseException:
            handshakes.release()
            raise

    async def _stop_accepting(self) -> None:
        for task in self._accepting:
            task.cancel()
        for accepted in self._beginning.values():
            # To cancel the task would leave the socket open in uvloop (0.23).
            with contextlib.suppress(OSError):  # the peer is gone
                accepted.shutdown(socket.SHUT_RDWR)
        tasks = [*self._accepting, *self._beginning]
        if tasks:
            await asyncio.wait(tasks)
        # Not before: the loop still waits for these descriptors.
        self._close_sockets()

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()

    def _abort(self) -> None:
        for connection in list(self._connections):
            connection.abort()


@contextlib.asynccontextmanager
async def hold_frames_port(
    host: str,
    port: int,
    settings: RpcSettings,
    *,
    files: PemFiles | None = None,
    connections_max: int = 2**31,
) -> AsyncIterator[FramesPort]:
    """Listen for frames on `host` and `port`; refuse conversations until `FramesPort.serve`.

    Args:
        host: the address to listen on.
        port: the port to listen on; 0 means any free port.
        settings: message sizes, keepalive and limits.
        files: the certificate and key for TLS; None means a port without TLS.
        connections_max: the most connections for each address of `host`.

    Raises:
        CannotStartError: the address cannot be bound now; the message says why.
    """
    tasks = asyncio.TaskGroup()
    held = FramesPort(settings, tasks, files, connections_max)
    await tasks.__aenter__()
    try:
        await held.open(host, port)
        yield held
    finally:
        await held.close()
        # An error of the body bypasses the task group, which would wrap it.
        await tasks.__aexit__(None, None, None)


def _peer_name(peername: tuple[Any, ...]) -> str:
    """Return the name that gRPC gives to a peer, in which it quotes the brackets of IPv6."""
    name = peer_name(plain_address(str(peername[0])), int(peername[1]))
    return name.replace("[", "%5B").replace("]", "%5D")


def _properties_of(connection: ssl.SSLObject | None) -> Mapping[str, Iterable[bytes]]:
    """Return the names in the client's certificate, under gRPC's keys; empty without one."""
    certificate = None if connection is None else connection.getpeercert(binary_form=True)
    if connection is None or certificate is None:
        return {}
    identity = identity_of_certificate(connection.getpeercert())
    if identity is None:
        return {}
    return {
        "x509_pem_cert": (ssl.DER_cert_to_PEM_cert(certificate).encode(),),
        "x509_common_name": (identity.common_name.encode(),) if identity.common_name else (),
        "x509_subject_alternative_name": tuple(name.encode() for name in identity.names),
    }
