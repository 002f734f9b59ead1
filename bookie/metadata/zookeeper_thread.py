"""The thread that talks to ZooKeeper: kazoo's connection with another way of reading and sending.

kazoo brings what is tedious to get right (the hand-shake, the rotation through hosts, TLS, pings).
What it does beside that is replaced:

- **One order.** Answers, watch events and changes of the connection leave this thread in the order
  of the socket, in batches; kazoo would sort them into two queues.
- **Whole buffers.** What the socket holds is read at once and cut into messages, and what waits to
  be sent goes out in one piece; kazoo takes several system calls for every message.
- **No detour.** When nothing is under way the loop writes to the socket itself: a thread that has
  to be woken up first costs more than all else in a small request. With answers to come the thread
  is awake anyway, and leaves the loop more time.
- **Known outcomes.** A request knows whether any of its bytes may have left this process, and is
  only ever sent in the session that it was made for.
- **What the server has told is never forgotten.** A client that begins a new session does not
  accept a server that is behind what it saw in the old one.

This rests on inner parts of kazoo 2.11; a test fails when they are not what they were.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped
from kazoo.protocol.connection import (
    AUTH_XID,
    CLOSE_RESPONSE,
    PING_XID,
    WATCH_XID,
    ConnectionHandler,
)
from kazoo.protocol.serialization import SASL, Close, Exists
from kazoo.protocol.states import KeeperState

from bookie.env import boot_time_seconds
from bookie.metadata.zookeeper_sasl import DigestMd5, SaslRefusedError
from bookie.metadata.zookeeper_wire import (
    CONNECTION_LOSS,
    NO_NODE,
    OK,
    SESSION_EXPIRED,
    MultiRefusedError,
    Request,
)

RECEIVE_BYTES = 256 * 1024
SEND_BYTES = 256 * 1024
"""What goes through the socket at once, at most (one larger message excepted)."""

_DROPS_MAX = 3
"""A server that drops so many connections during the exchange of passwords refuses us."""

_FRAME = struct.Struct("!iiqi")
_LENGTH = struct.Struct("!i")
_EVENT = struct.Struct("!iii")
"""The kind of change, the state of the connection, the length of the path."""
_REQUEST = struct.Struct("!iii")
_XID_MAX = 2**31 - 1


class NodeError(Exception):
    """The server's answer to one request, as its code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class NotSentError(Exception):
    """The request never left this process: there is no connection, or it has another session."""


class LostError(Exception):
    """The connection broke before the answer came; a write may have been done."""


class SessionEndedError(LostError):
    """Likewise, and the session that the request was made for is over."""


class NoAnswerError(Exception):
    """Nothing was heard for too long; a write may have been done, or still be done."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A change of a node; `zxid` is that of the write, or not positive from servers before 3.9."""

    kind: int
    path: str
    zxid: int


@dataclass(frozen=True, slots=True)
class Connected:
    """The hand-shake is done: a session, new or resumed, and the timeout that the server grants."""

    session: int
    password: bytes
    timeout_seconds: float
    number: int
    """Of the connection."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection broke."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The server ended the session; the next connection begins a new one."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The server does not accept our credentials; nothing more is tried."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """One attempt to connect failed."""

    reason: BaseException


Notice: TypeAlias = NodeEvent | Connected | Disconnected | Expired | Refused | AttemptFailed
"""What the connection tells by itself, in one order with the answers."""


class Pending:
    """A request on its way, and the future of its answer."""

    __slots__ = ("answer", "begun_at", "body", "connection", "request", "session")

    def __init__(
        self,
        request: Request,
        answer: asyncio.Future[Any],
        begun_at: float,
        session: int | None,
        connection: int | None,
    ) -> None:
        self.request = request
        self.body = request.serialize()
        """Written down by whoever asks: what cannot be fails there, and holds up nobody else."""
        self.answer = answer
        self.begun_at = begun_at
        """By the loop's clock."""
        self.session = session
        """The session in which alone it may be sent; None is any."""
        self.connection = connection
        """Likewise the connection, by its number."""


Answered: TypeAlias = tuple[Pending, object, BaseException | None]
"""A request that is done: its value or its error."""

Batch: TypeAlias = Sequence[Answered | Notice]
"""What happened, in the order of the socket."""


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """The connection thread. Source of the loop around it: kazoo's `zk_loop`."""

    client: Client

    def begin(self) -> None:
        """Set up what kazoo's constructor does not know."""
        self.outgoing: deque[Pending] = deque()
        self._received = bytearray()
        self._xid: int = 0
        self._was_authenticated = False
        self._drops = 0
        self._number = 0
        self._heard_at = 0.0
        self._writing = threading.RLock()
        """Held while requests are framed and written, so that `client._pending` has the order of
        the socket, and while a connection ends. The loop never waits for it."""
        self._takes_from_loop = False
        self._unsent: bytes | bytearray = b""
        """The rest of what the loop wrote, which goes out before all else."""

    def start(self) -> None:
        """Begin the thread. Whoever wakes it never waits for it: it may be held up by a socket."""
        super().start()
        self._read_sock.setblocking(False)
        self._write_sock.setblocking(False)

    # ---- connecting

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = super()._expand_client_hosts()
        if not found:
            self.client.post([AttemptFailed(ConnectionDropped("no host name resolves"))])
        return found

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        self._received.clear()
        self._number += 1
        try:
            read_timeout, connect_timeout = super()._connect(host, hostip, port)
        except Exception as error:
            self.client.post([AttemptFailed(error.__context__ or error)])
            raise
        self._heard_at = boot_time_seconds()
        # kazoo waits for two thirds of what the server granted.
        granted = read_timeout * 1.5 / 1000
        client = self.client
        client.post([Connected(client._session_id, client._session_passwd, granted, self._number)])
        # What TLS keeps of a connection is for one thread.
        self._takes_from_loop = not isinstance(self._socket, ssl.SSLSocket)
        return read_timeout, connect_timeout

    @contextmanager
    def _socket_error_handling(self) -> Iterator[None]:
        """Through here kazoo leaves a connection, whatever error ends it, and then closes it."""
        try:
            with super()._socket_error_handling():
                yield
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """The connection is over: from here on the loop sends nothing through it."""
        with self._writing:
            self._takes_from_loop = False
            self._unsent = b""

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        options = self.sasl_options
        exchange = DigestMd5(options["username"], options["password"], options["nonce"]())
        try:
            _, challenge = self._ask(SASL(b""), 1, timeout)
            error, answer = self._ask(SASL(exchange.respond(challenge)), 2, timeout)
            if error:
                raise AuthFailedError("the server refused the password")
            exchange.check(answer)
        except SaslRefusedError as error:
            raise AuthFailedError(str(error)) from error
        except ConnectionDropped as error:
            # A server may close the connection of who fails; but so may a network, at any time.
            self._drops += 1
            if self._was_authenticated or self._drops < _DROPS_MAX:
                raise
            raise AuthFailedError(str(error)) from error
        self._was_authenticated = True

    def _ask(self, request: SASL, xid: int, timeout: float) -> tuple[int, bytes]:
        self._submit(request, timeout, xid)
        header, body, offset = self._read_header(timeout)
        token = b"" if header.err else SASL.deserialize(body, offset)[0] or b""
        return header.err, token

    # ---- receiving

    def _read_socket(self, read_timeout: float) -> object:
        """Take everything that is there; called when the socket is readable."""
        self._receive()
        batch: list[Answered | Notice] = []
        response: object = None
        received, position = self._received, 0
        try:
            while len(received) - position >= _FRAME.size:
                length, xid, zxid, error = _FRAME.unpack_from(received, position)
                end = position + _LENGTH.size + length
                if len(received) < end:
                    break
                frame = bytes(received[position + _LENGTH.size : end])
                position = end
                if self._take(frame, xid, zxid, error, batch) is CLOSE_RESPONSE:
                    response = CLOSE_RESPONSE
        finally:
            del received[:position]
            if batch:
                self.client.post(batch)
        return response

    def _receive(self) -> None:
        try:
            piece = self._socket.recv(RECEIVE_BYTES)
            # TLS may have more than it gave, of which a select would not know.
            while piece and getattr(self._socket, "pending", int)() > 0:
                self._received += piece
                piece = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        if not piece:
            raise ConnectionDropped("the server closed the connection")
        self._received += piece
        self._heard_at = boot_time_seconds()

    def _take(
        self, frame: bytes, xid: int, zxid: int, error: int, batch: list[Answered | Notice]
    ) -> object:
        client = self.client
        offset = _FRAME.size - _LENGTH.size
        if xid == PING_XID:
            self.ping_outstanding.clear()
            return None
        if xid == WATCH_XID:
            kind, _, length = _EVENT.unpack_from(frame, offset)
            offset += _EVENT.size
            path = frame[offset : offset + length].decode()
            # Who was told of a change is not served by one who does not know of it.
            client.last_zxid = max(zxid, client.last_zxid)
            batch.append(NodeEvent(kind, path, zxid))
            return None
        if xid == AUTH_XID:
            if error:
                raise AuthFailedError
            return None
        pending, expected = client._pending.popleft()[1:]
        if zxid > 0:
            client.last_zxid = zxid
        if xid != expected:
            raise ConnectionDropped(f"an answer to request {xid}, not {expected}")
        if pending is None:
            return CLOSE_RESPONSE  # only kazoo's own request to close has no future
        batch.append(_answer(pending, frame, offset, error))
        return None

    # ---- sending

    def send_from_loop(self) -> bool:
        """Send what waits, in the loop; returns whether nothing is left for the thread.

        All is left to it while answers are to come, while it writes itself, while there is no
        connection, and with TLS; and what there is no room for.
        """
        if not self._writing.acquire(blocking=False):
            return False
        try:
            if not self._takes_from_loop or self.client._pending:
                return False
            message = self._next_message()
            try:
                sent = self._socket.send(message) if message else 0
            except OSError:
                sent = 0  # there is no room, or the thread meets the error as well
            self._unsent = message[sent:]
            return not self._unsent and not self.outgoing
        finally:
            self._writing.release()

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Send what waits, in few pieces; called when the loop, or kazoo's `stop`, woke us."""
        self._read_sock.recv(4096)
        client = self.client
        if client._pending and boot_time_seconds() - self._heard_at > read_timeout:
            # kazoo takes whatever it sends for a ping, and waits for an answer only to its own.
            raise ConnectionDropped("the server is silent")
        with self._writing:
            while self._unsent or self.outgoing or client._queue:
                message = self._next_message()
                if not self.outgoing and client._queue:
                    request, _ = client._queue.popleft()
                    message += self._frame(request, request.serialize(), None)
                self._write(message, connect_timeout)

    def _next_message(self) -> bytearray:
        """Requests that wait, as they go out together.

        From here on some of them may reach the server.
        """
        message = bytearray()
        while self.outgoing and len(message) < SEND_BYTES:
            pending = self.outgoing.popleft()
            if pending.session not in (None, self.client._session_id) or (
                pending.connection not in (None, self._number)
            ):
                self.client.post([(pending, None, NotSentError())])
                continue
            message += self._frame(pending.request, pending.body, pending)
        return message

    def _write(self, message: bytes | bytearray, timeout: float) -> None:
        """Send all of it; waits, up to `timeout` seconds for each piece, when there is no room."""
        with self._writing, self._socket_error_handling():
            rest = memoryview(self._unsent + message)
            self._unsent = b""
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    if not self.handler.select([], [self._socket], [], timeout)[1]:
                        raise self.handler.timeout_exception("no room to send in time") from None

    def _frame(
        self, request: Request | Close, body: bytes | bytearray, pending: Pending | None
    ) -> bytes:
        self._xid = self._xid % _XID_MAX + 1
        self.client._pending.append((request, pending, self._xid))
        return _REQUEST.pack(len(body) + 8, self._xid, request.type) + body


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """kazoo's client with our connection; `post` takes what happens, in the connection thread."""

    def __init__(self, post: Callable[[Batch], None], **options: Any) -> None:
        sasl = options.pop("sasl")
        super().__init__(**options)
        self.post = post
        self._connection = _Connection(
            self, self._conn_retry.copy(), logger=self.logger, sasl_options=sasl
        )
        self._connection.begin()

    def _reset(self) -> None:
        seen = getattr(self, "last_zxid", 0)
        super()._reset()
        self.last_zxid = seen

    def _session_callback(self, state: str) -> None:
        """Called in the connection thread, before kazoo forgets what was pending."""
        if state != self._state:
            self._tell(state)
        super()._session_callback(state)

    def _tell(self, state: str) -> None:
        if state in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO):
            return  # `_connect` says so when it has authenticated
        expired = state == KeeperState.EXPIRED_SESSION
        refused = state == KeeperState.AUTH_FAILED
        self._connection.end()
        batch: list[Answered | Notice] = []
        while self._pending:
            _, pending, _ = self._pending.popleft()
            if pending is not None:
                batch.append((pending, None, SessionEndedError() if expired else LostError()))
        outgoing = self._connection.outgoing
        while outgoing:
            batch.append((outgoing.popleft(), None, NotSentError()))
        batch.append(Expired() if expired else Refused() if refused else Disconnected())
        self.post(batch)


def _answer(pending: Pending, frame: bytes, offset: int, error: int) -> Answered:
    if error == OK:
        try:
            return pending, pending.request.deserialize(frame, offset), None
        except MultiRefusedError as refused:
            return pending, None, refused
    if error == NO_NODE and pending.request.type == Exists.type:
        return pending, None, None
    if error == SESSION_EXPIRED:
        return pending, None, SessionEndedError()
    if error == CONNECTION_LOSS:
        return pending, None, LostError()
    return pending, None, NodeError(error)
