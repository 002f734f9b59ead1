"""A ZooKeeper client for an event loop: futures for answers, and notices in the socket's order.

kazoo's thread talks to the server. `Bridge.send` makes one of kazoo's asynchronous calls and
returns the answer through a future. All other notices (watch events, the session's state) go to one
callback. Answers and notices reach the event loop in the order in which the server sent them. So an
answer that shows a change never comes before the watch event of this change. However many answers
and notices arrive while the loop is busy, they wake the loop only once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from kazoo.exceptions import ConnectionClosedError, KazooException, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.retry import KazooRetry

from bookie.errors import ConfigurationError
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.zookeeper.kazoo_parts import Client, Notice, SaslStep
from bookie.metadata.zookeeper.requests import NodeError, Request, answer_of

_STOP_SECONDS_MAX = 5.0

_AUTHENTICATION_FAILED = -115

_LOST_CODES = {-4, _AUTHENTICATION_FAILED, -118}
"""Error codes that mean "no answer": connection lost, authentication failed, session moved."""


class NotSentError(Exception):
    """The request was not sent, or the client was stopped before the answer came."""


class LostError(Exception):
    """The connection broke before the answer came; a write may have been done."""


class SessionEndedError(LostError):
    """The connection broke before the answer came, and the session of the request has ended."""


class NoAnswerError(Exception):
    """The server did not answer in time. A write may have been done, or may be done later."""


class Pending:
    """A request that was sent, and the future of its answer."""

    __slots__ = ("answer", "begun_at", "request")

    def __init__(self, request: Request, answer: asyncio.Future[Any], begun_at: float) -> None:
        self.request = request
        self.answer = answer
        self.begun_at = begun_at
        """The time at which the request was sent, by the loop's clock."""


Answered: TypeAlias = tuple[Pending, object, BaseException | None]
"""A finished request, with its value or its error."""


class _Result:
    """kazoo's IAsyncResult, implemented without locks; the result is posted to the event loop.

    A result is set once, in any thread. Even if two threads run the callbacks, each callback runs
    once, because `pop` gives it to one thread.
    """

    __slots__ = ("_callbacks", "_pending", "_post", "_ready", "exception", "value")

    def __init__(self, pending: Pending | None, post: Callable[[Answered], None]) -> None:
        self.value: object = None
        self.exception: BaseException | None = None
        self._ready = False
        self._pending = pending
        self._post = post
        self._callbacks: list[Callable[[_Result], object]] = []

    def set(self, value: object = None) -> None:
        self._settle(value, None)

    def set_exception(self, exception: BaseException) -> None:
        self._settle(None, exception)

    def get(self) -> object:
        """Return the value or raise the exception; call this only after the result was set."""
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, callback: Callable[[_Result], object]) -> None:
        self._callbacks.append(callback)
        if self._ready:
            self._run()

    def _settle(self, value: object, exception: BaseException | None) -> None:
        if self._ready:
            return
        self.value, self.exception = value, exception
        self._ready = True
        if self._pending is not None:
            self._post((self._pending, value, exception))
        self._run()

    def _run(self) -> None:
        while self._callbacks:
            with suppress(IndexError):
                self._callbacks.pop()(self)


class _Waker:
    """Wakes kazoo's thread: takes the place of both ends of kazoo's pipe, and never blocks."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._is_open = True

    def fileno(self) -> int:
        return self._descriptor

    def send(self, data: bytes) -> None:
        if not self._is_open:
            raise OSError("it is closed")
        os.eventfd_write(self._descriptor, len(data))

    def recv(self, _: int) -> bytes:
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._descriptor)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler, with no thread but the connection's, and a time limit for each connect."""

    def __init__(
        self,
        connect_seconds_max: float,
        tls: ssl.SSLContext | None,
        post: Callable[[Answered], None],
    ) -> None:
        super().__init__()
        self._connect_seconds_max = connect_seconds_max
        self._tls = tls
        self._post = post
        self.next: Pending | None = None
        """The request for which kazoo will ask for a `_Result` next."""
        self.latest: socket.socket | None = None

    def start(self) -> None:
        """Do nothing: kazoo's queues for callbacks stay unused."""

    def stop(self) -> None:
        """Do nothing."""

    def async_result(self) -> _Result:
        """Return a result object for the request in `next`, if there is one, and clear `next`."""
        pending, self.next = self.next, None
        return _Result(pending, self._post)

    def create_socket_pair(self) -> tuple[_Waker, _Waker]:
        waker = _Waker()
        return waker, waker

    def select(
        self,
        readers: Sequence[Any],
        writers: Sequence[Any],
        _: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the sockets ready to read and to write, after at most `timeout` seconds.

        A broken socket counts as ready to read and to write. If TLS has already decrypted bytes
        that nobody has read, its socket is ready at once.
        """
        held = [r for r in readers if isinstance(r, ssl.SSLSocket) and r.pending() > 0]
        if held:
            return held, [], []
        waiting = select.poll()
        for ready_for, some in ((select.POLLIN, readers), (select.POLLOUT, writers)):
            for one in some:
                waiting.register(one, ready_for)
        # Round the time up. Otherwise kazoo would poll again and again during the last part of a
        # millisecond.
        ready = dict(waiting.poll(None if timeout is None else math.ceil(timeout * 1000)))
        return (
            [one for one in readers if one.fileno() in ready],
            [one for one in writers if one.fileno() in ready],
            [],
        )

    def create_connection(
        self, address: tuple[str, int], *, hostname: str, timeout: float, **options: Any
    ) -> socket.socket:
        """Connect within the time limit.

        kazoo's own method leaves a socket open if TLS fails.
        """
        bounded = min(timeout, self._connect_seconds_max)
        made = socket.create_connection(address, bounded)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                made = self._tls.wrap_socket(made, server_hostname=hostname)
        except BaseException:
            made.close()
            raise
        self.latest = made
        return made


class Bridge:
    """A connection to a ZooKeeper ensemble, used from one event loop.

    Args:
        hosts: the servers in kazoo's form, ``host:port,host:port``.
        session_timeout_seconds: the timeout to request.
        security: TLS files and credentials.
        on_notice: called in the loop with each notice, in the socket's order.
        on_quiet: called after each group of notices that arrived together.

    Raises:
        ConfigurationError: a TLS file cannot be read, or has the wrong content.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_seconds: float,
        security: MetadataSecurity,
        on_notice: Callable[[Notice], None],
        on_quiet: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_notice = on_notice
        self._on_quiet = on_quiet
        self._inbox: deque[Answered | Notice] = deque()
        self._is_draining = False
        self._waiting: dict[Pending, None] = {}
        self.silent_since: float | None = None
        """The loop's time at which the wait for any answer began; None if no request waits."""
        attempt = max(session_timeout_seconds / 3 / (hosts.count(",") + 1), 0.5)
        retry = KazooRetry(
            max_tries=-1,
            delay=min(0.1, session_timeout_seconds / 30),
            max_jitter=0.9,
            max_delay=min(2.0, session_timeout_seconds / 6),
        )
        logger = logging.getLogger("bookie.metadata.zookeeper.backend.kazoo")
        logger.disabled = True  # the store itself reports these events
        self._handler = _Handler(attempt, _tls(security), self._post)
        self._client = Client(
            self._post,
            hosts=hosts,
            timeout=session_timeout_seconds,
            handler=self._handler,
            connection_retry=retry,
            logger=logger,
            auth_data=_digest(security),
        )

    # ---- in the loop

    def start(self) -> None:
        """Begin to connect; `on_notice` gets the outcome."""
        self._client.start_async()

    async def stop(self) -> None:
        """End the session; if this takes `_STOP_SECONDS_MAX`, break the connection."""
        ended = asyncio.Event()

        def end() -> None:
            try:
                self._client.stop()
                self._client.close()
            finally:
                self._call_in_loop(ended.set)

        threading.Thread(target=end, name="zookeeper-stop", daemon=True).start()
        try:
            async with asyncio.timeout(_STOP_SECONDS_MAX):
                await ended.wait()
        except TimeoutError:
            self.cut()
            await ended.wait()
        for pending in list(self._waiting):
            self._settle(pending, None, NotSentError())

    def cut(self) -> None:
        """Break the connection, as a network failure would."""
        if (connection := self._handler.latest) is not None:
            with suppress(OSError):  # the connection may be broken already
                # TLS's own shutdown method is not used: after it, later bytes would count as plain
                # text.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def send(
        self, request: Request, session: int | None = None, connection: int | None = None
    ) -> Pending:
        """Send `request`; send it only in the given `session`, and through the given `connection`.

        None means any session, or any connection.

        The future `answer` of the result raises `NodeError`, `MultiRefusedError`, `NotSentError`,
        `LostError` or `NoAnswerError`.
        """
        client, now = self._client, self._loop.time()
        pending = Pending(request, self._loop.create_future(), now)
        with client.guard:
            if (
                client.session is None
                or session not in (None, client.session)
                or connection not in (None, client.number)
            ):
                self._loop.call_soon(self._settle, pending, None, NotSentError())
                return pending
            self._waiting[pending] = None
            if self.silent_since is None:
                self.silent_since = now
            self._handler.next = pending
            request.ask(client)
        return pending

    def give_up(self, begun_before: float) -> None:
        """Stop waiting for the answers to requests that were sent before `begun_before`.

        The outcomes of these requests stay unknown.
        """
        for pending in list(self._waiting):
            if pending.begun_at >= begun_before:
                return
            self._settle(pending, None, NoAnswerError())

    def _drain(self) -> None:
        self._is_draining = False
        inbox = self._inbox
        while inbox:
            item = inbox.popleft()
            if isinstance(item, tuple):
                self._settle(*item)
            else:
                self._on_notice(item)
        self.silent_since = self._loop.time() if self._waiting else None
        self._on_quiet()

    def _settle(self, pending: Pending, value: object, error: BaseException | None) -> None:
        self._waiting.pop(pending, None)
        if pending.answer.done():
            return  # the caller was cancelled
        try:
            if error is not None:
                raise _meaning_of(error, pending.request)
            pending.answer.set_result(answer_of(pending.request, value))
        except Exception as failure:  # noqa: BLE001  (the future's own)
            pending.answer.set_exception(failure)
            pending.answer.exception()  # else asyncio would log it if nobody awaits

    # ---- from any thread

    def _post(self, item: Answered | Notice) -> None:
        self._inbox.append(item)
        if not self._is_draining:
            # Set the flag before waking the loop: `_drain` may begin at once, and it clears the
            # flag.
            self._is_draining = True
            self._call_in_loop(self._drain)

    def _call_in_loop(self, action: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no caller waits any more
            self._loop.call_soon_threadsafe(action)


def _meaning_of(error: BaseException, request: Request) -> BaseException:
    if isinstance(error, SessionExpiredError):
        return SessionEndedError()
    if isinstance(error, KazooException) and not isinstance(error, ConnectionClosedError):
        code = error.code
        is_refusal = code == _AUTHENTICATION_FAILED and isinstance(request, SaslStep)
        if code not in _LOST_CODES or is_refusal:
            return NodeError(code)
    if isinstance(error, NotSentError | NoAnswerError):
        return error
    return LostError()


def describe_failure(reason: BaseException) -> str:
    """Return a text with the reason why a connection failed."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {reason.verify_message}"
    if isinstance(reason, KazooTimeoutError | TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return str(reason) or type(reason).__name__


def _tls(security: MetadataSecurity) -> ssl.SSLContext | None:
    """Return a TLS context with our certificate and the trusted authorities; None without TLS.

    Raises:
        ConfigurationError: a file cannot be read, or has the wrong content.
    """
    if security.tls_ca_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(security.tls_ca_file)
    except OSError as error:
        raise _bad_file("ca", security.tls_ca_file, error) from error
    if security.tls_certificate_file is not None and security.tls_key_file is not None:
        try:
            context.load_cert_chain(security.tls_certificate_file, security.tls_key_file)
        except OSError as error:
            raise _bad_file("certificate", security.tls_certificate_file, error) from error
    return context


def _bad_file(name: str, path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"metadata.tls_{name}_file {path} cannot be used: {error.strerror or error}"
    )


def _digest(security: MetadataSecurity) -> list[tuple[str, str]]:
    if security.sasl_mechanism != "digest":
        return []
    return [("digest", f"{security.user}:{security.password}")]
