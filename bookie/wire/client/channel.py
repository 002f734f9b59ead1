"""A client's calls to one bookie, and the streams of adds, reads and LACs, over either carrier.

A fence or a LAC read must not wait behind megabytes of adds, so adds have a connection of their
own. Calls return the bookie's answer with any status, because a status has different meanings for a
writer, a reader and recovery. Only a status that means the same for all callers is raised as an
error. A call also raises an error if the transport fails; the outcome of the call is then unknown:

* `BookieUnreachableError`: the connection failed or broke, or the answer is malformed;
* `OperationTimeoutError`: no answer came in time;
* `BadRequestError`: a message was too large for the client or for the bookie;
* `ClientClosedError`: the channel was closed during the call. If the channel was closed because the
  bookie has another address now, the error is `BookieUnreachableError`.

After a call was cancelled, the bookie may still execute it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeVar

from bookie._pb import bookie_pb2 as pb
from bookie.config import RpcSettings
from bookie.errors import (
    BadRequestError,
    BookieUnreachableError,
    OperationTimeoutError,
    error_for_status,
)
from bookie.ids import NO_ENTRY, Status
from bookie.wire import unary_codec
from bookie.wire.call_metadata import call_metadata
from bookie.wire.carrier import Carrier
from bookie.wire.client.streams import (
    AddStream,
    LacWatch,
    OnAnswer,
    OnBroken,
    OnOpen,
    ReadStream,
    StreamCall,
    closed_error,
    error_of,
)
from bookie.wire.client.tls_problems import TlsHistory
from bookie.wire.codec import encode_read_request, parse_read_response, read_reply_of
from bookie.wire.commands import Info, LacReply, LacState, LedgerRow, ReadCommand, ReadReply, Reply
from bookie.wire.deadlines import Deadlines, is_being_cancelled
from bookie.wire.frames.client import FramesCarrier
from bookie.wire.grpc.connection import GrpcCarrier
from bookie.wire.grpc.credentials import ChannelSecurity
from bookie.wire.unary_codec import Ranges

__all__ = [
    "AddStream",
    "BookieChannel",
    "Info",
    "LacReply",
    "LacState",
    "LacWatch",
    "LedgerRow",
    "Ranges",
    "ReadCommand",
    "ReadReply",
    "Reply",
]

_T = TypeVar("_T")


class BookieChannel:
    """Calls to the bookie at `address` (``HOST:PORT``) in the cluster `instance_id`.

    The first call or stream opens the connections. Streams run in the task group `tasks`, which
    must end after all streams; `close` ends all streams. Only one event loop may use a channel.

    Args:
        address: Address at which the bookie listens.
        instance_id: The cluster to which client and bookie must belong.
        tasks: The group that runs the streams' tasks.
        bookie_id: The id of the bookie to call; another bookie at the address refuses calls. Empty
            means any bookie.
        connect_timeout_seconds: The longest time until a connection is established, and until the
            bookie accepts a stream.
        settings: Message sizes and keepalive, the same as the server's.
        security: The source of credentials and token; None means a connection without TLS and
            without token.
        is_framed: True if the address is the bookie's port for frames, not for gRPC.
    """

    def __init__(
        self,
        address: str,
        instance_id: str,
        tasks: asyncio.TaskGroup,
        *,
        bookie_id: str = "",
        connect_timeout_seconds: float = 5.0,
        settings: RpcSettings | None = None,
        security: ChannelSecurity | None = None,
        is_framed: bool = False,
    ) -> None:
        self.address = address
        self.is_framed = is_framed
        self.credentials = credentials = None if security is None else security.credentials()
        self._security = security
        self._tls = TlsHistory(uses_tls=credentials is not None)
        self._tasks = tasks
        self._connect_timeout_seconds = connect_timeout_seconds
        self._instance_id = instance_id
        self._bookie_id = bookie_id
        settings = settings or RpcSettings()
        self._carrier: Carrier
        if is_framed:
            context = None if security is None or credentials is None else security.context
            self._carrier = FramesCarrier(
                address, tasks, settings, connect_timeout_seconds, context
            )
        else:
            self._carrier = GrpcCarrier(address, settings, connect_timeout_seconds, credentials)
        self._metadata = self._carrier.prepared(call_metadata(instance_id, bookie_id))
        self._deadlines: Deadlines[Any] = Deadlines()
        self._reads = ReadStream(self._stream_call("ReadStream"), self._deadlines)
        self._streams: list[AddStream | ReadStream | LacWatch] = [self._reads]
        self._is_closed = self._has_moved = False

    @property
    def is_connected(self) -> bool:
        """True if a connection is ready, and no attempt to connect has failed."""
        return self._carrier.is_connected

    @property
    def is_failing(self) -> bool:
        """True if another address should be tried: this one leads to no bookie or a wrong one."""
        return self._carrier.is_failing or any(
            isinstance(one, AddStream) and one.is_misdirected for one in self._streams
        )

    async def close(self, *, has_moved: bool = False) -> None:
        """End the streams and close the connections.

        Running calls raise ClientClosedError. If the bookie `has_moved` to another address, they
        raise BookieUnreachableError instead, because they may be retried at the new address.
        """
        self._is_closed = True
        self._has_moved = self._reads.has_moved = has_moved
        for stream in self._streams:
            await stream.close()
        await self._carrier.close()
        self._deadlines.abandon()

    def add_stream(
        self,
        on_answer: OnAnswer,
        on_broken: OnBroken,
        on_open: OnOpen | None = None,
        *,
        incarnation: str = "",
    ) -> AddStream:
        """Open a stream of adds; a client has separate streams for plain adds and recovery adds.

        If `incarnation` is set, the stream breaks unless the bookie has this incarnation.
        """
        stream = AddStream(
            self._stream_call("AddStream", incarnation, is_bulk=True),
            on_answer,
            on_broken,
            on_open,
            bookie_id=self._bookie_id,
            incarnation=incarnation,
        )
        self._streams.append(stream)
        stream.reopen()
        return stream

    def watch_lac(
        self,
        on_update: Callable[[LacState], None],
        on_broken: OnBroken,
        on_open: OnOpen | None = None,
    ) -> LacWatch:
        """Open a stream of LAC updates, at first without watched ledgers."""
        call = self._stream_call("WatchLac")
        stream = LacWatch(call, on_update, on_broken, on_open)
        self._streams.append(stream)
        stream.reopen()
        return stream

    def _stream_call(self, rpc: str, incarnation: str = "", *, is_bulk: bool = False) -> StreamCall:
        carrier = self._carrier
        return StreamCall(
            self.address,
            lambda: carrier.stream(rpc, self._metadata_for(incarnation), is_bulk=is_bulk),
            self._tasks,
            None if self.is_framed else self._connect_timeout_seconds,
            self._tls,
            carrier.failures,
            carrier.broken,
        )

    def _metadata_for(self, incarnation: str, life: str = "") -> Any:
        """Return the metadata of a call, which may name an incarnation and a `life`."""
        token = self._security.authorization() if self._security is not None else ""
        if not (incarnation or life or token):
            return self._metadata
        return self._carrier.prepared(
            call_metadata(
                self._instance_id, self._bookie_id, incarnation, life, authorization=token
            )
        )

    async def read(
        self, command: ReadCommand, *, timeout: float, incarnation: str = ""
    ) -> ReadReply:
        """Read entries; the bounds of the batch are checked, but its packets are not."""
        return await self._call(
            "Read",
            encode_read_request(command),
            timeout,
            lambda data: parse_read_response(data, command.ledger_id),
            incarnation,
        )

    async def read_entry(self, command: ReadCommand, *, timeout: float) -> ReadReply:
        """Read one entry over a stream, which costs half as much as a call; does not fence.

        If the bookie has no read streams, this read and all later reads of the channel are calls.
        While the stream is full, reads are calls, too.
        """
        reads = self._reads
        if reads.is_offered and not reads.is_full:
            due = asyncio.get_running_loop().time() + timeout
            fields = await reads.ask(command, timeout)
            if fields is not None:
                try:
                    return read_reply_of(fields, command.ledger_id)
                except BadRequestError as error:
                    raise self._not_understood(error) from None
            timeout = due - asyncio.get_running_loop().time()
        return await self.read(command, timeout=timeout)

    async def read_lac(
        self, ledger_id: int, master_key: bytes, *, timeout: float, incarnation: str = ""
    ) -> LacReply:
        """Read a ledger's end as the bookie knows it; the packets of the reply are not verified."""
        request = pb.ReadLacRequest(ledger_id=ledger_id, master_key=master_key).SerializeToString()
        parse = unary_codec.parse_lac_reply
        return await self._call("ReadLac", request, timeout, parse, incarnation)

    async def fence(
        self, ledger_id: int, master_key: bytes, *, timeout: float, incarnation: str = ""
    ) -> LacReply:
        """Fence a ledger; OK, NO_SUCH_LEDGER or NO_SUCH_ENTRY means that the fence is durable."""
        request = pb.FenceRequest(ledger_id=ledger_id, master_key=master_key).SerializeToString()
        parse = unary_codec.parse_lac_reply
        return await self._call("Fence", request, timeout, parse, incarnation)

    async def force(self, ledger_id: int, *, timeout: float, life: str = "") -> Reply:
        """Make all entries of a ledger durable that the bookie has accepted so far.

        `life` is the process id that the bookie sent on the stream of the adds. A later process of
        the bookie may lack these adds, so it answers WRONG_INCARNATION. An empty `life` means any
        process.
        """
        request = pb.ForceRequest(ledger_id=ledger_id).SerializeToString()
        return await self._call("Force", request, timeout, unary_codec.parse_reply, life=life)

    async def write_lac(
        self, ledger_id: int, master_key: bytes, packet: bytes, *, timeout: float
    ) -> Reply:
        request = pb.WriteLacRequest(
            ledger_id=ledger_id, master_key=master_key, lac_packet=packet
        ).SerializeToString()
        return await self._call("WriteLac", request, timeout, unary_codec.parse_reply)

    async def info(self, *, timeout: float) -> Info:
        """Ask the bookie to describe itself.

        Raises:
            BookieError: The error for the answer's status, if the status is not OK.
        """
        request = pb.GetInfoRequest().SerializeToString()
        reply, info = await self._call("GetInfo", request, timeout, unary_codec.parse_info)
        _check(reply)
        return info

    async def list_entries(
        self,
        ledger_id: int,
        first_entry_id: int = 0,
        last_entry_id: int = NO_ENTRY,
        *,
        key: bytes = b"",
        timeout: float | None = None,
        incarnation: str = "",
    ) -> AsyncIterator[Ranges]:
        """Yield ascending ranges of stored entry ids; without an error, the listing is complete.

        Args:
            ledger_id: The ledger.
            first_entry_id: The first id to list.
            last_entry_id: The last id to list (inclusive); -1 lists to the end.
            key: The ledger's key; without it, the bookie may list entries of a deleted ledger with
                the same id.
            timeout: Seconds for the whole listing; None means no limit.
            incarnation: If not empty, only a bookie of this incarnation answers.

        Raises:
            BookieError: The error for the answer's status, if the status is not OK.
        """
        request = pb.ListEntriesRequest(
            ledger_id=ledger_id,
            first_entry_id=first_entry_id,
            last_entry_id=last_entry_id,
            master_key=key,
        ).SerializeToString()
        pages = self._pages("ListEntries", request, timeout, incarnation)
        async with contextlib.aclosing(pages):
            async for page in pages:
                reply, ranges = self._understand(unary_codec.parse_ranges, page)
                _check(reply)
                yield ranges

    async def list_ledgers(
        self, after_ledger_id: int = -1, *, timeout: float | None = None
    ) -> AsyncIterator[list[LedgerRow]]:
        """Yield the stored ledgers in id order; without an error, the listing is complete.

        Raises:
            BookieError: The error for the answer's status, if the status is not OK.
        """
        request = pb.ListLedgersRequest(after_ledger_id=after_ledger_id).SerializeToString()
        pages = self._pages("ListLedgers", request, timeout)
        async with contextlib.aclosing(pages):
            async for page in pages:
                reply, rows = self._understand(unary_codec.parse_ledger_rows, page)
                _check(reply)
                yield rows

    async def _call(
        self,
        rpc: str,
        request: bytes,
        timeout: float,
        parse: Callable[[bytes], _T],
        incarnation: str = "",
        *,
        life: str = "",
    ) -> _T:
        """Make one unary call and parse its answer.

        This method enforces the timeout, because a gRPC deadline costs much work in each call. With
        32 concurrent calls on two shared cores, 6200 calls a second are possible; with gRPC
        deadlines, only 2400 calls.
        """
        self._require_open()
        call = self._carrier.call(rpc, request, self._metadata_for(incarnation, life))
        self._deadlines.start(call, timeout)
        try:
            data: bytes | None = await call
            self._tls.was_ready = True
        except self._carrier.failures as error:
            raise error_of(self.address, error, self._tls) from None
        except asyncio.CancelledError:
            if not self._deadlines.stop(call) and not is_being_cancelled():
                raise OperationTimeoutError(
                    f"bookie {self.address} did not answer in time"
                ) from None
            self._check_cancelled()
            raise
        finally:
            self._deadlines.stop(call)
        if data is None:  # a carrier returns this for a call that ended well, but without a message
            raise BookieUnreachableError(f"bookie {self.address} ended a call without an answer")
        return self._understand(parse, data)

    def _require_open(self) -> None:
        """After `close`, raise the same error as `_check_cancelled`."""
        if self._is_closed:
            raise closed_error(self.address, has_moved=self._has_moved)

    def _check_cancelled(self) -> None:
        """Raise an error if the call ended because the channel was closed; return otherwise.

        When a channel is closed, its calls end with a CancelledError, although the waiting task
        was not cancelled.

        Raises:
            ClientClosedError: The current task was not cancelled.
            BookieUnreachableError: The current task was not cancelled, and the bookie has another
                address now.
        """
        if not is_being_cancelled():
            raise closed_error(self.address, has_moved=self._has_moved) from None

    async def _pages(
        self, rpc: str, request: bytes, timeout: float | None, incarnation: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """Yield the messages of a listing; cancel the call if the iteration ends early."""
        self._require_open()
        metadata = self._metadata_for(incarnation)
        call: Any = self._carrier.listing(rpc, request, metadata, timeout)
        try:
            async for page in call:
                yield page
        except self._carrier.failures as error:
            raise error_of(self.address, error, self._tls) from None
        except asyncio.CancelledError:
            self._check_cancelled()
            raise
        finally:
            call.cancel()

    def _understand(self, parse: Callable[[bytes], _T], data: bytes) -> _T:
        """Parse an answer; for a malformed answer, raise BookieUnreachableError."""
        try:
            return parse(data)
        except BadRequestError as error:
            raise self._not_understood(error) from None

    def _not_understood(self, error: BadRequestError) -> BookieUnreachableError:
        return BookieUnreachableError(
            f"bookie {self.address} sent an answer that cannot be understood: {error}"
        )


def _check(reply: Reply) -> None:
    if reply.status is not Status.OK:
        raise error_for_status(reply.status, reply.message, reply.retry_after_ms / 1000)
