"""A client's two connections to one bookie: one for streams of adds, one for all other calls.

A fence or a LAC read must not wait behind megabytes of adds, so adds have a connection of their
own. Calls return the bookie's answer with any status, because a status has different meanings for a
writer, a reader and recovery. A call raises an error only for a status with the same meaning for
all callers. A call that fails in transport raises too, and its outcome is unknown:

* `BookieUnreachableError`: the connection failed or broke, or the answer is malformed;
* `OperationTimeoutError`: no answer in time;
* `BadRequestError`: a message was too large for one of the two ends;
* `ClientClosedError`: the channel was closed meanwhile. If the bookie has moved:
  `BookieUnreachableError`.

A cancelled call is abandoned; the bookie may still carry it out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeVar

import grpc

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
from bookie.wire.codec import encode_read_request, parse_read_response, read_reply_of
from bookie.wire.commands import Info, LacReply, LacState, LedgerRow, ReadCommand, ReadReply, Reply
from bookie.wire.deadlines import Deadlines, is_being_cancelled
from bookie.wire.grpc import transport
from bookie.wire.grpc.client.streams import (
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
from bookie.wire.grpc.client.tls_problems import TlsHistory
from bookie.wire.grpc.credentials import ChannelSecurity
from bookie.wire.interfaces import SERVICE
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

    Nothing connects before the first call. Streams run in `tasks`, which has to outlive the
    streams; `close` ends all streams. Only one event loop may use a channel.

    Args:
        address: Address at which the bookie listens.
        instance_id: The cluster to which client and bookie must belong.
        tasks: The group that runs the streams' tasks.
        bookie_id: The bookie to call; another one at the address refuses. Empty means any bookie.
        connect_timeout_seconds: Time to establish a connection, and to get a stream accepted.
        settings: Message sizes and keepalive, the same as the server's.
        security: The files of credentials and token; None connects without TLS, and shows no token.
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
    ) -> None:
        self.address = address
        self.credentials = credentials = None if security is None else security.credentials()
        self._security = security
        self._tls = TlsHistory(uses_tls=credentials is not None)
        self._tasks = tasks
        self._connect_timeout_seconds = connect_timeout_seconds
        self._instance_id = instance_id
        self._bookie_id = bookie_id
        self._metadata = transport.call_metadata(instance_id, bookie_id)
        options = transport.channel_options(settings or RpcSettings(), connect_timeout_seconds)
        self._bulk = transport.open_channel(address, options, credentials)
        self._control = transport.open_channel(address, options, credentials)
        self._unary = {
            rpc: self._control.unary_unary(f"/{SERVICE}/{rpc}")
            for rpc in ("Read", "ReadLac", "Fence", "Force", "WriteLac", "GetInfo")
        }
        self._deadlines: Deadlines[Any] = Deadlines()
        self._reads = ReadStream(self._stream_call(self._control, "ReadStream"), self._deadlines)
        self._streams: list[AddStream | ReadStream | LacWatch] = [self._reads]
        self._has_moved = False

    @property
    def is_connected(self) -> bool:
        """True if a connection stands, and none has failed to be made."""
        states = {one.get_state() for one in (self._bulk, self._control)}
        failed = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        return grpc.ChannelConnectivity.READY in states and failed not in states

    async def close(self, *, has_moved: bool = False) -> None:
        """End the streams and close the connections.

        Running calls raise ClientClosedError, or BookieUnreachableError if the bookie `has_moved`,
        because then another connection reaches the bookie.
        """
        self._has_moved = self._reads.has_moved = has_moved
        for stream in self._streams:
            await stream.close()
        await self._bulk.close()
        await self._control.close()
        self._deadlines.abandon()

    def add_stream(
        self,
        on_answer: OnAnswer,
        on_broken: OnBroken,
        on_open: OnOpen | None = None,
        *,
        incarnation: str = "",
    ) -> AddStream:
        """Open a stream of adds; a client keeps one for plain adds and one for recovery adds.

        If `incarnation` is not empty, only a bookie of that incarnation accepts the stream.
        """
        stream = AddStream(
            self._stream_call(self._bulk, "AddStream", incarnation),
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
        """Open a subscription to LACs, at first without ledgers."""
        call = self._stream_call(self._control, "WatchLac")
        stream = LacWatch(call, on_update, on_broken, on_open)
        self._streams.append(stream)
        stream.reopen()
        return stream

    def _stream_call(self, connection: Any, rpc: str, incarnation: str = "") -> StreamCall:
        call = connection.stream_stream(f"/{SERVICE}/{rpc}")
        return StreamCall(
            self.address,
            lambda: call(metadata=self._metadata_for(incarnation)),
            self._tasks,
            self._connect_timeout_seconds,
            self._tls,
        )

    def _metadata_for(self, incarnation: str, life: str = "") -> Any:
        """Return the metadata of a call for one incarnation or process of the bookie."""
        token = self._security.authorization() if self._security is not None else ""
        if not (incarnation or life or token):
            return self._metadata
        return transport.call_metadata(
            self._instance_id, self._bookie_id, incarnation, life, authorization=token
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
        """Read one entry, without fencing, over a stream, at half the cost of a call.

        If the bookie has no such stream, this channel uses calls for all later reads. A call is
        also used while the stream is full.
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
        """Read the end of a ledger as the bookie knows it; the packets are unverified."""
        request = pb.ReadLacRequest(ledger_id=ledger_id, master_key=master_key).SerializeToString()
        parse = unary_codec.parse_lac_reply
        return await self._call("ReadLac", request, timeout, parse, incarnation)

    async def fence(
        self, ledger_id: int, master_key: bytes, *, timeout: float, incarnation: str = ""
    ) -> LacReply:
        """Fence a ledger; the bookie sends OK or a definite denial once the fence is durable."""
        request = pb.FenceRequest(ledger_id=ledger_id, master_key=master_key).SerializeToString()
        parse = unary_codec.parse_lac_reply
        return await self._call("Fence", request, timeout, parse, incarnation)

    async def force(self, ledger_id: int, *, timeout: float, life: str = "") -> Reply:
        """Make all entries of a ledger durable that the bookie accepted before.

        Pass the `life` of the stream on which the adds were sent. A later process of the bookie,
        which may lack these adds, answers WRONG_INCARNATION. An empty `life` means any process.
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
            BookieError: The error of the status, when it is not OK.
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
        """List ranges of ids that the bookie stores, ascending; complete if no error ends the list.

        Args:
            ledger_id: The ledger.
            first_entry_id: The first id to list.
            last_entry_id: The last id to list (inclusive); -1 lists to the end.
            key: The ledger's; without it, entries of another life of the id may be listed.
            timeout: Seconds for the whole listing; None waits for ever.
            incarnation: If not empty, only a bookie of this incarnation answers.

        Raises:
            BookieError: The error of the status, when it is not OK.
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
        """List the ledgers that the bookie stores, by id; complete if no error ends the list.

        Raises:
            BookieError: The error of the status, when it is not OK.
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

        The timeout runs here and not in gRPC, because a gRPC deadline costs extra work in each
        call. With 32 calls at a time on two shared cores, gRPC deadlines allow 2400 calls a second
        instead of 6200.
        """
        call: Any = self._unary[rpc](request, metadata=self._metadata_for(incarnation, life))
        self._deadlines.start(call, timeout)
        try:
            data: bytes | None = await call
            self._tls.was_ready = True
        except grpc.RpcError as error:
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
        if data is None:  # gRPC returns this for a call that ended well, but without a message
            raise BookieUnreachableError(f"bookie {self.address} ended a call without an answer")
        return self._understand(parse, data)

    def _check_cancelled(self) -> None:
        """Distinguish a cancelled caller from a cancelled call.

        When a channel is closed, gRPC ends its calls with a CancelledError, although nobody has
        cancelled the waiting task.

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
        """Yield the messages of a listing; the call is cancelled if the caller leaves early."""
        call: Any = self._control.unary_stream(f"/{SERVICE}/{rpc}")(
            request, timeout=timeout, metadata=self._metadata_for(incarnation)
        )
        try:
            async for page in call:
                yield page
        except grpc.RpcError as error:
            raise error_of(self.address, error, self._tls) from None
        except asyncio.CancelledError:
            self._check_cancelled()
            raise
        finally:
            call.cancel()

    def _understand(self, parse: Callable[[bytes], _T], data: bytes) -> _T:
        """Parse an answer; a malformed answer counts as no answer."""
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
