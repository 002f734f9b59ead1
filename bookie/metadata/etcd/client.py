"""The connection to etcd: endpoints, calls, streams, credentials, and translation of errors.

Each endpoint has one gRPC channel, which opens at the first call. All calls go to the current
endpoint. After a call without an answer, the next call goes to another endpoint. An unanswered call
raises `LostReplyError`, because its outcome is unknown. Only `read` and `authenticate` repeat an
unanswered call.

Every call has the gRPC metadata ``hasleader``, which demands a member that knows a leader. So a
member that has lost contact with the other members refuses the call at once; otherwise the call
would wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import grpc
from grpc import aio

from bookie._pb import etcd_pb2 as pb
from bookie.config import with_free_poller
from bookie.env import Backoff, jitter
from bookie.env.forks import grpc_use
from bookie.errors import (
    BookieError,
    ConfigurationError,
    InvalidKeyError,
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    SessionLostError,
    UnauthorizedError,
)
from bookie.metadata.security import MetadataSecurity

CALLS_MAX: Final = 128
"""The most calls at once; more calls wait, because thousands of calls slow and break gRPC."""

_PAUSE_SECONDS: Final = (0.05, 1.0)
"""The first and the longest pause, in seconds, when all endpoints were tried without an answer."""

_NEEDS_LEADER: Final = ("hasleader", "true")
_METADATA: Final = aio.Metadata(_NEEDS_LEADER)
"""gRPC metadata of a call without a token, in the type that gRPC takes without conversion."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # no limit: pages and records are bounded
    ("grpc.max_send_message_length", -1),
    # A server with default settings disconnects clients that ping more often than every 5 seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # gRPC must not repeat a call by itself: only this module decides if a call is repeated.
    ("grpc.enable_retries", 0),
)


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC of etcd: its path, and the types of its request and response."""

    path: str
    request: Any
    response: Any
    name: str = field(init=False)
    """The name under which `EtcdClient.calls` counts this RPC."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.path.rpartition("/")[2])


RANGE: Final = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
REVOKE: Final = Method(
    "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse
)
KEEP_ALIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse
)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)
_AUTHENTICATE: Final = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse
)


class LostReplyError(MetadataUnavailableError):
    """etcd did not answer, or its answer does not show if etcd carried out the request."""


class CompactedError(MetadataError):
    """etcd has compacted away the requested revision, or has not reached this revision yet."""


class StaleTokenError(MetadataUnavailableError):
    """etcd refused the request, probably because our user's token expired; nothing was done."""


class NoRightError(UnauthorizedError):
    """The roles of our user lack the right to read or to write a key; nothing was done."""


class EtcdEndpoint:
    """One member of the etcd cluster, and the gRPC channel to it."""

    def __init__(self, address: str, credentials: Any) -> None:
        self.address = address
        grpc_use.begin()
        self._channel: Any = with_free_poller(
            lambda: (
                aio.insecure_channel(address, options=_OPTIONS)
                if credentials is None
                else aio.secure_channel(address, credentials, options=_OPTIONS)
            )
        )
        self._calls: dict[str, Any] = {}

    def unary(self, method: Method) -> Any:
        """Return the gRPC callable of an RPC with one request and one response."""
        found = self._calls.get(method.path)
        if found is None:
            found = self._calls[method.path] = self._channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return found

    def stream(self, method: Method) -> Any:
        """Return the gRPC callable of an RPC that streams requests and responses."""
        return self._channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    async def close(self) -> None:
        await self._channel.close()


class EtcdClient:
    """A client of an etcd cluster, for use in one event loop.

    Args:
        addresses: ``HOST:PORT`` of the cluster's members, at least one.
        security: TLS files, user and password.
        scope: the prefix of all keys, shown in messages.
        attempt_seconds: the longest time for one endpoint to answer.
        operation_seconds: the longest time for all attempts of a read.
        on_connected: called when etcd answers again: at the first answer to a watch, read or Txn
            after a call without an answer. An answer about a lease does not count, because the
            session monitor handles it.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: MetadataSecurity,
        *,
        scope: str,
        attempt_seconds: float,
        operation_seconds: float,
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self.attempt_seconds = attempt_seconds
        self.operation_seconds = operation_seconds
        self.calls: Counter[str] = Counter()
        """The number of calls of each RPC, by name: ``Range``, ``Txn``, …"""
        self._addresses = list(addresses)
        self._security = security
        self._scope = scope
        self._credentials = _credentials(security)
        self._endpoints: dict[str, EtcdEndpoint] = {}
        # Each client begins with a random member, so that clients spread over all members.
        self._current = int(jitter() * len(self._addresses))
        self._under_way = asyncio.Semaphore(CALLS_MAX)
        self._metadata = _METADATA
        self.token = 0
        """The number of the token that calls carry now, counted from 1; 0 means no token."""
        self._authenticating = asyncio.Lock()
        self._on_connected = on_connected
        self._is_silent = False
        self._closed = False

    @property
    def user(self) -> str:
        """The name of our user, for messages."""
        return self._security.user or "nobody"

    async def close(self) -> None:
        """Close all connections; calls that wait for an answer raise MetadataClosedError."""
        self._closed = True
        for endpoint in self._endpoints.values():
            await endpoint.close()

    def endpoint(self) -> EtcdEndpoint:
        address = self._addresses[self._current]
        found = self._endpoints.get(address)
        if found is None:
            found = self._endpoints[address] = EtcdEndpoint(address, self._credentials)
        return found

    def leave(self, endpoint: EtcdEndpoint) -> None:
        """Send later calls to another endpoint, because `endpoint` does not answer."""
        if self._addresses[self._current] == endpoint.address:
            self._current = (self._current + 1) % len(self._addresses)

    def note_sign_of_life(self) -> None:
        if self._is_silent:
            self._is_silent = False
            self._on_connected()

    async def call(self, method: Method, request: Any, *, seconds: float | None = None) -> Any:
        """Send `request` and return the response; send it again only if etcd refused our token.

        `seconds` is the longest time that the endpoint may take; the default is `attempt_seconds`.

        Raises:
            LostReplyError: there was no answer; etcd may have carried out the request, or may do so
                later.
            SessionLostError, CompactedError, UnauthorizedError, ConfigurationError,
            InvalidKeyError, MetadataUnavailableError: etcd refused the request; nothing was done.
            MetadataClosedError: the client is closed.
        """
        loop = asyncio.get_running_loop()
        since = loop.time() if self._under_way.locked() else None
        async with self._under_way:
            if since is not None and loop.time() - since >= self.operation_seconds:
                raise MetadataUnavailableError(
                    f"too many requests wait for etcd: this one waited {self.operation_seconds:g} s"
                )
            return await self._with_token(self._send, method, request, seconds)

    async def read(
        self, method: Method, request: Any, before: Callable[[], object] = lambda: None
    ) -> Any:
        """Send a request, again and again until etcd answers or `operation_seconds` have passed.

        `before` is called before each attempt.

        Raises:
            MetadataUnavailableError: no endpoint answered, too many requests wait, or etcd's
                database is full.
            BookieError: for the reasons that `call` names.
        """

        async def send() -> Any:
            before()
            return await self.call(method, request)

        return await self._repeat(send)

    async def _repeat(self, send: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.operation_seconds
        retries: Retries | None = None
        while True:
            try:
                return await send()
            except LostReplyError:
                retries = retries or self.retries()
                pause = retries.pause()
                if loop.time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    def open_stream(self, endpoint: EtcdEndpoint, method: Method) -> Any:
        """Open and return a bidirectional stream to `endpoint`."""
        self._require_open()
        self.calls[method.name] += 1
        return endpoint.stream(method)(metadata=self._metadata)

    async def exchange(self, method: Method, request: Any, *, seconds: float) -> Any:
        """Open a stream, send one request on it, and return the first response; see `call`."""
        return await self._with_token(self._exchange, method, request, seconds)

    async def authenticate(self, refused: int = 0) -> None:
        """Get a token for the configured user and password, if any; later calls carry the token.

        `refused` is the number of the token that etcd refused; 0 means no token. If calls already
        carry a newer token than the refused one, this method does nothing.

        Raises:
            UnauthorizedError: etcd does not accept the user and password.
            BookieError: for the reasons that `call` names.
        """
        if not self._security.user:
            return
        async with self._authenticating:
            if refused != self.token:
                return
            request = pb.AuthenticateRequest(
                name=self._security.user, password=self._security.password
            )
            send = partial(self._send, _AUTHENTICATE, request, None)
            # After a refusal, ask only once for a new token, because the caller sends its own
            # request again.
            response = await (send() if refused else self._repeat(send))
            self._metadata = aio.Metadata(_NEEDS_LEADER, ("token", response.token))
            self.token += 1

    def retries(self) -> Retries:
        return Retries(len(self._addresses))

    # ---- one request

    async def _with_token(
        self,
        send: Callable[[Method, Any, float | None], Awaitable[Any]],
        method: Method,
        request: Any,
        seconds: float | None,
    ) -> Any:
        """Send a request; if etcd refuses the token, send the request again with a new token."""
        token = self.token
        try:
            return await send(method, request, seconds)
        except StaleTokenError:
            await self.authenticate(token)
        return await send(method, request, seconds)

    async def _send(self, method: Method, request: Any, seconds: float | None) -> Any:
        self._require_open()
        self.calls[method.name] += 1
        endpoint = self.endpoint()
        # Send no old token with a request for a new one: if the old token has expired, etcd refuses
        # the request.
        metadata = _METADATA if method is _AUTHENTICATE else self._metadata
        timeout = seconds or self.attempt_seconds
        call = endpoint.unary(method)(request, timeout=timeout, metadata=metadata)
        try:
            response = await call
        except aio.AioRpcError as error:
            raise self.explain(error, endpoint) from None
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        if method in (RANGE, TXN):
            self.note_sign_of_life()
        return response

    async def _exchange(self, method: Method, request: Any, seconds: float | None) -> Any:
        self._require_open()
        self.calls[method.name] += 1
        endpoint = self.endpoint()
        call = endpoint.stream(method)(timeout=seconds, metadata=self._metadata)
        try:
            await call.write(request)
            await call.done_writing()
            response = await call.read()
        except aio.AioRpcError as error:
            raise self.explain(error, endpoint) from None
        except (asyncio.InvalidStateError, aio.InternalError):
            response = aio.EOF  # the stream ended before, or while, the request was written
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        finally:
            call.cancel()
        if response is aio.EOF:
            self.leave(endpoint)
            raise LostReplyError(f"etcd at {endpoint.address} ended a stream without an answer")
        return response

    def _raise_if_closed(self) -> None:
        """Raise MetadataClosedError if `close` cancelled this call by closing its channel."""
        task = asyncio.current_task()
        if self._closed and task is not None and not task.cancelling():
            raise MetadataClosedError("the metadata store is closed") from None

    def _require_open(self) -> None:
        if self._closed:
            raise MetadataClosedError("the metadata store is closed")

    # ---- errors

    def explain(self, error: aio.AioRpcError, endpoint: EtcdEndpoint) -> BookieError:
        """Translate a gRPC error into our error; `leave` the endpoint if it did not answer."""
        code, text = error.code(), error.details() or ""
        where = f"etcd at {endpoint.address}"
        match code:
            case grpc.StatusCode.NOT_FOUND if "lease not found" in text:
                return SessionLostError("the session with etcd ended")
            case grpc.StatusCode.OUT_OF_RANGE:
                return CompactedError(f"{where}: {text}")
            case grpc.StatusCode.UNAUTHENTICATED:
                return StaleTokenError(f"{where} refuses the token of our user")
            case grpc.StatusCode.PERMISSION_DENIED:
                return NoRightError(
                    f"{where} does not let {self.user} use the keys of {self._scope}"
                )
            case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.FAILED_PRECONDITION:
                return self._explain_refusal(text, where)
            case grpc.StatusCode.RESOURCE_EXHAUSTED if "etcdserver" in text:
                if "space" in text:
                    text = "its database is full: compact, defragment, disarm the alarm"
                return MetadataUnavailableError(f"{where} refuses writes: {text}")
            case _:
                self._is_silent = True
                self.leave(endpoint)
                return LostReplyError(f"{where} does not answer: {_reason(code, text)}")

    def _explain_refusal(self, text: str, where: str) -> BookieError:
        if "auth store is old" in text:
            return StaleTokenError(f"{where} has changed its users")
        if "authentication failed" in text:
            return UnauthorizedError(
                f"{where} refuses the user {self._security.user}: wrong name or password"
            )
        if "user name is empty" in text:
            return UnauthorizedError(
                f"{where} requires a user: set metadata.user and metadata.password"
            )
        if "authentication is not enabled" in text:
            return ConfigurationError(f"{where} has no users: leave metadata.user empty")
        if "too large" in text:
            return InvalidKeyError(f"{where} refuses a request of this size")
        return MetadataError(f"{where} refuses a request: {text}")


class Retries:
    """Pauses between attempts: only after each endpoint was tried once; each pause is doubled."""

    def __init__(self, endpoints: int) -> None:
        self._endpoints = endpoints
        self._failures = 0
        self._backoff = Backoff(*_PAUSE_SECONDS, jitter)

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt, with jitter."""
        self._failures += 1
        if self._failures % self._endpoints:
            return 0.0
        return self._backoff.next()


def _credentials(security: MetadataSecurity) -> Any:
    if not security.uses_tls:
        return None
    read = []
    for path in (security.tls_ca_file, security.tls_key_file, security.tls_certificate_file):
        try:
            read.append(path.read_bytes() if path is not None else None)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    return grpc.ssl_channel_credentials(*read)


def _reason(code: grpc.StatusCode, text: str) -> str:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no reply in time"
    _, unverified, why = text.partition("CERTIFICATE_VERIFY_FAILED: ")
    if unverified:
        return f"its certificate is refused: {why.removesuffix(': OK')}"
    if "andshake" in text:
        return "the TLS handshake failed: it has no TLS, or refuses our certificate"
    return text.rpartition("last error: ")[2].strip() or code.name
