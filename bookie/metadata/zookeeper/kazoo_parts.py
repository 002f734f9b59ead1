"""All private parts of kazoo that the store uses, each with the reason for its use.

| part of kazoo | reason |
|---|---|
| `_connection`, `_conn_retry` | our connection thread takes the place of kazoo's |
| `_call` | kazoo lacks two requests: the persistent recursive watch, SASL without its library |
| `_read_header`, `_read_watch_event` | kazoo hides the write of an event, and lacks that watch |
| `_read_response`, `_pending` | an answer out of order ends kazoo's thread; here, the connection |
| `_connect` | kazoo hides the timeout that the server grants, and counts no connections |
| `_queue` | kazoo sends a request for the former connection through the next one |
| `_reset`, `last_zxid` | kazoo lets a new session use a server that is behind the old session |
| `_expand_client_hosts` | kazoo only logs that no host name resolves |

A test fails if these parts of kazoo have changed.

Source: ZooDefs.OpCode and AddWatchRequest of ZooKeeper 3.9.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, ConnectionDropped, ConnectionLoss, KazooException
from kazoo.protocol.connection import WATCH_XID, ConnectionHandler
from kazoo.protocol.serialization import SASL, Watch, write_string
from kazoo.protocol.states import KazooState, KeeperState

# ---- requests that kazoo lacks

_INT = struct.Struct("!i")
_PERSISTENT_RECURSIVE = 1

for _code in range(-130, -118):  # an unknown code would end kazoo's thread
    EXCEPTIONS.setdefault(_code, type("UnnamedError", (KazooException,), {"code": _code}))


class AddWatch(NamedTuple):
    """Watch `path` and all nodes below it until the connection ends; each change sends an event."""

    path: str
    type: int = 106

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + _INT.pack(_PERSISTENT_RECURSIVE))

    def deserialize(self, buffer: bytes, offset: int) -> None:
        """Return nothing: the server's answer is empty."""

    def ask(self, client: KazooClient) -> object:
        return _call(client, self)


class SaslStep(NamedTuple):
    """One client message of a SASL authentication; the answer is the server's next message."""

    token: bytes
    type: int = SASL.type

    def serialize(self) -> bytearray:
        body: bytearray = SASL(self.token).serialize()
        return body

    def deserialize(self, buffer: bytes, offset: int) -> bytes:
        token: bytes | None = SASL.deserialize(buffer, offset)[0]
        return token or b""

    def ask(self, client: KazooClient) -> object:
        return _call(client, self)


def _call(client: KazooClient, request: object) -> object:
    result = client.handler.async_result()
    client._call(request, result)
    return result


# ---- notices of the connection


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A change of a node by the write `zxid`, which is not positive from servers before 3.9."""

    kind: int
    path: str
    zxid: int


@dataclass(frozen=True, slots=True)
class KazooConnected:
    """A connection was made: with a new or a resumed session, and the timeout that was granted."""

    session: int
    password: bytes
    timeout_seconds: float
    number: int


@dataclass(frozen=True, slots=True)
class KazooDisconnected:
    """The connection broke."""


@dataclass(frozen=True, slots=True)
class KazooExpired:
    """The server ended the session; the next connection begins a new session."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The server refuses our credentials; kazoo does not try to connect again."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """One attempt to connect failed."""

    reason: BaseException


Notice: TypeAlias = (
    NodeEvent | KazooConnected | KazooDisconnected | KazooExpired | Refused | AttemptFailed
)
"""A message that is not the answer to a request. Notices and answers stay in their common order."""


class _Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """The code of kazoo's connection thread, with the changes that the store needs."""

    client: Client
    _event_zxid = 0

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = super()._expand_client_hosts()
        if not found:
            self.client.post(AttemptFailed(OSError("no host name resolves")))
        return found

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        client = self.client
        client.close_way()
        client.drop_waiting()
        try:
            read_timeout, connect_timeout = super()._connect(host, hostip, port)
        except Exception as error:
            client.post(AttemptFailed(error.__context__ or error))
            raise
        # kazoo's read time-out is two thirds of the timeout that the server granted.
        client.open_way(read_timeout * 1.5 / 1000)
        return read_timeout, connect_timeout

    def _read_header(self, timeout: float) -> Any:
        found = super()._read_header(timeout)
        header = found[0]
        if header.xid == WATCH_XID:
            self._event_zxid = header.zxid
            # kazoo connects only to servers that have seen `last_zxid`: from now on, this event's
            # write.
            self.client.last_zxid = max(header.zxid, self.client.last_zxid)
        return found

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        # If the session has moved to another connection, a server drops a request without an
        # answer, and then ends this connection. Before the connection ends, the server may still
        # answer a later request. Such an answer must not be taken for the missing one.
        waiting = self.client._pending
        if not waiting or waiting[0][2] != header.xid:
            raise ConnectionDropped(f"answer {header.xid} came out of order")
        return super()._read_response(header, buffer, offset)

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        self.client.post(NodeEvent(event.type, event.path, self._event_zxid))


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """kazoo's client, which passes each notice to `post`, in the connection thread.

    Requests may be made between `open_way` and `close_way`. The event loop holds `guard` while it
    makes a request, so that a request for one connection is never sent through the next one.
    """

    def __init__(self, post: Callable[[Notice], None], **options: Any) -> None:
        super().__init__(**options)
        self.post = post
        self.guard = threading.Lock()
        self.session: int | None = None
        """The session of the present connection; None while there is no connection."""
        self.number = 0
        self._connection = _Connection(self, self._conn_retry.copy(), logger=self.logger)
        self.add_listener(self._take_state)

    def open_way(self, granted_seconds: float) -> None:
        session, password = self.client_id
        with self.guard:
            self.number += 1
            self.session = session
            self.post(KazooConnected(session, password, granted_seconds, self.number))

    def close_way(self) -> None:
        with self.guard:
            self.session = None

    def drop_waiting(self) -> None:
        """Fail the requests that were not sent on the former connection yet, except kazoo's own."""
        for _ in range(len(self._queue)):
            request, result = self._queue.popleft()
            if result is None:
                self._queue.append((request, result))  # kazoo's own request to close
            else:
                result.set_exception(ConnectionLoss())

    def _take_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            return  # `_connect` reports the connection after the authentication
        self.close_way()
        if self.client_state == KeeperState.EXPIRED_SESSION:
            self.post(KazooExpired())
        elif self.client_state == KeeperState.AUTH_FAILED:
            self.post(Refused())
        else:
            self.post(KazooDisconnected())

    def _reset(self) -> None:
        seen = getattr(self, "last_zxid", 0)
        super()._reset()
        self.last_zxid = seen
