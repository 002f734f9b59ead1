"""ZooKeeper from an event loop: requests with futures, and notices in the order of the socket.

A request is sent with `Bridge.send`, which answers through a future. All else that the connection
has to say (watch events, the session's fate) goes to one function. Both happen in the loop, in the
order in which the server said it: a watch event is seen before the answer that already knows of it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from bookie.errors import ConfigurationError
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.zookeeper_sockets import Handler
from bookie.metadata.zookeeper_thread import (
    Answered,
    Batch,
    Client,
    NoAnswerError,
    Notice,
    NotSentError,
    Pending,
)
from bookie.metadata.zookeeper_wire import Request

_STOP_SECONDS_MAX = 5.0


class Bridge:
    """A connection to an ensemble, driven from one event loop.

    Args:
        hosts: as kazoo takes them, ``host:port,host:port``.
        session_timeout_seconds: what is asked of the server.
        security: TLS files and credentials.
        on_notice: called in the loop, in the order of the socket.
        on_quiet: called when all that came together has been handed out.
        make_nonce: text that was never used before, for the exchange of passwords.

    Raises:
        ConfigurationError: a file of TLS cannot be read, or holds something else.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_seconds: float,
        security: MetadataSecurity,
        on_notice: Callable[[Notice], None],
        on_quiet: Callable[[], None],
        make_nonce: Callable[[], str],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_notice = on_notice
        self._on_quiet = on_quiet
        self._inbox: deque[Answered | Notice] = deque()
        self._is_draining = False
        self._outbox: list[Pending] = []
        self._waiting: dict[Pending, None] = {}
        attempt = max(session_timeout_seconds / 3 / (hosts.count(",") + 1), 0.5)
        retry = KazooRetry(
            max_tries=-1,
            delay=min(0.1, session_timeout_seconds / 30),
            max_jitter=0.9,
            max_delay=min(2.0, session_timeout_seconds / 6),
        )
        logger = logging.getLogger("bookie.metadata.zookeeper.kazoo")
        logger.disabled = True  # every line of it is an event that the store tells
        self._client = Client(
            self.post,
            hosts=hosts,
            timeout=session_timeout_seconds,
            handler=Handler(attempt, _tls(security)),
            connection_retry=retry,
            logger=logger,
            auth_data=_digest(security),
            sasl=_sasl(security, make_nonce),
        )

    # ---- in the loop

    def start(self) -> None:
        """Begin to connect; `on_notice` tells what comes of it."""
        self._client.start_async()

    async def stop(self) -> None:
        """End the session: returns when the server did, or does not answer."""
        ended = asyncio.Event()

        def end() -> None:
            try:
                with suppress(BlockingIOError):  # it is being woken already
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
        self._fail_all(NotSentError())

    def cut(self) -> None:
        """Break the connection, as if the network had."""
        connection = self._client._connection._socket
        if connection is not None:
            try:
                # Not TLS's own, after which what comes would be taken for plain text.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                return  # it is broken already

    def send(
        self, request: Request, session: int | None = None, connection: int | None = None
    ) -> Pending:
        """Send a request; everything sent in one turn of the loop goes out together.

        It leaves only in the `session` and through the `connection` of these numbers, if given.

        Its `answer` raises `NodeError`, `MultiRefusedError`, `NotSentError` or `LostError`.
        """
        loop = self._loop
        pending = Pending(request, loop.create_future(), loop.time(), session, connection)
        if not self._outbox:
            loop.call_soon(self._flush)
        self._outbox.append(pending)
        self._waiting[pending] = None
        return pending

    @property
    def oldest_begun_at(self) -> float | None:
        """When the oldest request without an answer was made, by the loop's clock."""
        return next((pending.begun_at for pending in self._waiting), None)

    def give_up(self, begun_before: float) -> None:
        """Let those who wait for answers to older requests go; they cannot know the outcome."""
        for pending in list(self._waiting):
            if pending.begun_at >= begun_before:
                return
            del self._waiting[pending]
            _settle(pending, None, NoAnswerError())

    def _flush(self) -> None:
        connection, outbox = self._client._connection, self._outbox
        self._outbox = []
        connection.outgoing.extend(outbox)
        if connection.send_from_loop():
            return
        try:
            connection._write_sock.send(b"\0")
        except BlockingIOError:
            return  # it is being woken already, by more than it took so far
        except (OSError, AttributeError):
            self._fail_all(NotSentError())  # it is stopped

    def _fail_all(self, error: Exception) -> None:
        for pending in list(self._waiting):
            del self._waiting[pending]
            _settle(pending, None, error)

    def _drain(self) -> None:
        self._is_draining = False
        inbox = self._inbox
        while inbox:
            item = inbox.popleft()
            if isinstance(item, tuple):
                self._waiting.pop(item[0], None)
                _settle(*item)
            else:
                self._on_notice(item)
        self._on_quiet()

    # ---- from any thread

    def post(self, items: Batch) -> None:
        """Hand what happened to the loop."""
        self._inbox.extend(items)
        if not self._is_draining:
            # Set before the loop looks: a drain that begins now takes these items as well.
            self._is_draining = True
            self._call_in_loop(self._drain)

    def _call_in_loop(self, action: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            return  # the loop is closed, and with it everybody who could have waited


def _settle(pending: Pending, value: object, error: BaseException | None) -> None:
    if pending.answer.done():
        return  # nobody waits any more
    if error is None:
        pending.answer.set_result(value)
    else:
        pending.answer.set_exception(error)
        pending.answer.exception()  # whoever waited may have gone without taking it


def describe_failure(reason: BaseException) -> str:
    """What kept a connection from being made, in words."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {reason.verify_message}"
    if isinstance(reason, KazooTimeoutError | TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return str(reason) or type(reason).__name__


def _tls(security: MetadataSecurity) -> ssl.SSLContext | None:
    """What we believe and show.

    Raises:
        ConfigurationError: a file cannot be read, or holds something else.
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


def _sasl(security: MetadataSecurity, make_nonce: Callable[[], str]) -> dict[str, object] | None:
    if security.sasl_mechanism != "digest-md5":
        return None
    return {"username": security.user, "password": security.password, "nonce": make_nonce}
