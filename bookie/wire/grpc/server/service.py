"""The gRPC service: it turns the bytes of each call into a call of the node, and encodes the reply.

Handlers have no serializers: gRPC hands them the messages' bytes. Each unary call is a row of a
table, which says how to parse the request, call the node, encode the reply, and refuse. A reply
reports an error by its status; only `ErrorMapper` knows the status of an error.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import grpc
from grpc import aio

from bookie.config import NodeSettings
from bookie.env import SystemClock
from bookie.errors import BookieError, WrongIncarnationError
from bookie.ids import INCARNATION_METADATA_KEY, LIFE_METADATA_KEY, NO_ENTRY, Status
from bookie.security.gatekeeper import Caller, Gatekeeper
from bookie.security.rates import Rates
from bookie.security.rights import RPC_RIGHTS, Right
from bookie.security.tokens import LEEWAY_SECONDS
from bookie.telemetry import Metrics
from bookie.wire import unary_codec
from bookie.wire.codec import encode_read_response, parse_read_request
from bookie.wire.commands import Info, LacReply, ReadCommand, ReadReply, Reply, refused_read
from bookie.wire.grpc.server.add_stream import AddStreamHandler
from bookie.wire.grpc.server.callers import caller_of
from bookie.wire.grpc.server.error_mapper import ErrorMapper
from bookie.wire.grpc.server.lac_watch import LacWatchHandler
from bookie.wire.grpc.server.rate_meter import RateMeter
from bookie.wire.grpc.server.read_budget import ReadBudget
from bookie.wire.grpc.server.read_stream import ReadStreamHandler
from bookie.wire.grpc.server.stream_handler import StreamHandler
from bookie.wire.grpc.transport import check_recipient, named
from bookie.wire.interfaces import SERVICE, BookieNode, IdentifiedCall

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

EXPIRY_LOOK_SECONDS: Final = 60.0
"""The longest time between two looks at the clock, while a stream waits for its token's end."""

RATED_RPCS: Final = frozenset({"ReadLac", "WriteLac", "ListEntries"})
"""Calls that count as one request of their caller. Reads and adds count by their bytes as well."""

_status: Final[Callable[[Any], Status]] = attrgetter("status")


@dataclass(frozen=True, slots=True)
class _Call(Generic[_Request, _Reply]):
    """Describes how to serve one unary call of the contract."""

    rpc: str
    parse: Callable[[bytes], _Request]
    ask: Callable[[_Request, IdentifiedCall], Awaitable[_Reply]]
    encode: Callable[[_Reply], bytes]
    refuse: Callable[[Reply], _Reply]
    ledger_of: Callable[[_Request], int | None] = attrgetter("ledger_id")
    """The ledger whose rights are needed; None if it is about none."""
    status_of: Callable[[_Reply], Status] = _status


class BookieService:
    """Serves one node. `end_streams` is the first step of a shutdown."""

    def __init__(
        self,
        node: BookieNode,
        limits: NodeSettings,
        metrics: Metrics,
        gatekeeper: Gatekeeper | None = None,
        rates: Rates | None = None,
    ) -> None:
        """Without a `gatekeeper`, everybody may do everything; without `rates`, at any rate."""
        self._node = node
        self._rates = rates
        self._gatekeeper = gatekeeper
        self._errors = ErrorMapper(metrics)
        self._budget = ReadBudget(limits.in_flight_read_bytes_max, limits.read_bytes_max, metrics)
        self._streams: dict[StreamHandler, None] = {}
        """The open streams, in the order of their start."""
        self._ended = False
        self._life = uuid.uuid4().hex
        """Id of this service, which lives as long as the engine with its unsynced adds."""

    def handlers(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        paged = grpc.unary_stream_rpc_method_handler
        streamed = grpc.stream_stream_rpc_method_handler
        handlers = {
            "AddStream": streamed(self._add_stream),
            "ReadStream": streamed(self._read_stream),
            "WatchLac": streamed(self._watch_lac),
            "ListEntries": paged(self._list_entries),
            "ListLedgers": paged(self._list_ledgers),
        }
        for call in self._calls():
            handlers[call.rpc] = unary(self._handler(call))
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def end_streams(self) -> None:
        """End every stream after its owed answers; later streams end at once."""
        self._ended = True
        for stream in list(self._streams):
            stream.end()

    def _calls(self) -> list[_Call[Any, Any]]:
        node = self._node
        return [
            _Call(
                "Read",
                parse_read_request,
                self._read,
                encode_read_response,
                refused_read,
            ),
            _Call(
                "ReadLac",
                unary_codec.parse_read_lac_request,
                lambda request, _: node.read_lac(*request),
                unary_codec.encode_lac_reply,
                _refuse_lac,
                _first,
            ),
            _Call(
                "Fence",
                unary_codec.parse_fence_request,
                lambda request, _: node.fence(*request),
                unary_codec.encode_lac_reply,
                _refuse_lac,
                _first,
            ),
            _Call(
                "Force",
                unary_codec.parse_force_request,
                self._force,
                unary_codec.encode_reply,
                lambda refusal: refusal,
                int,
            ),
            _Call(
                "WriteLac",
                unary_codec.parse_write_lac_request,
                lambda request, _: node.write_lac(*request),
                unary_codec.encode_reply,
                lambda refusal: refusal,
                _first,
            ),
            _Call(
                "GetInfo",
                unary_codec.parse_info_request,
                self._info,
                lambda reply: unary_codec.encode_info(*reply),
                lambda refusal: (refusal, None),
                lambda _: None,
                lambda reply: reply[0].status,
            ),
        ]

    def _handler(
        self, call: _Call[_Request, _Reply]
    ) -> Callable[[bytes, IdentifiedCall], Awaitable[bytes]]:
        """Make the handler of one kind of unary call; it answers every error by a status.

        gRPC inspects the handler at each call, which is faster for a plain function than for a
        ``functools.partial``.
        """
        rpc, parse, ask, encode, status_of = (
            call.rpc, call.parse, call.ask, call.encode, call.status_of
        )  # fmt: skip
        errors, check, permit, rate = self._errors, self._check, self._permit, self._rate
        ledger_of = call.ledger_of

        async def answer(data: bytes, context: IdentifiedCall) -> bytes:
            try:
                check(context)
                request = parse(data)
                await permit(rpc, context, ledger_of(request), request)
                rate(rpc, context, ledger_of(request))
                reply = await ask(request, context)
            except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
                reply = call.refuse(errors.reply(rpc, error))
            errors.count(rpc, status_of(reply))
            return encode(reply)

        return answer

    async def _permit(
        self, rpc: str, context: IdentifiedCall, ledger_id: int | None, request: object = None
    ) -> Caller | None:
        """Refuse a call that the caller's roles do not permit; note fences in the audit log.

        Return the caller, or None without a gatekeeper.

        Raises:
            NotPermittedError: they do not, or the token proves nothing.
            MetadataError: the store does not tell of which log the ledger is.
        """
        if self._gatekeeper is None:
            return None
        caller = caller_of(self._gatekeeper, context)
        plain, flagged = RPC_RIGHTS[rpc]
        fences = isinstance(request, ReadCommand) and request.fence
        right = flagged if fences and flagged is not None else plain
        if ledger_id is None:
            caller.require_everywhere(rpc, right)
            return caller
        await caller.require(rpc, right, ledger_id)
        if right is Right.RECOVER:
            caller.did(rpc, ledger_id)
        return caller

    def _rate(self, rpc: str, context: IdentifiedCall, ledger_id: int | None) -> None:
        """Charge a call of `RATED_RPCS` to the caller's rate.

        Raises:
            TooManyRequestsError: a rate is used up.
        """
        rates = self._rates
        if rates is not None and rates.is_on and rpc in RATED_RPCS and ledger_id is not None:
            RateMeter(rates, self._gatekeeper, context).ask(ledger_id)

    async def _read(self, command: ReadCommand, context: IdentifiedCall) -> ReadReply:
        """Read within the caller's rate and the budget of bytes in flight."""
        meter = None
        if self._rates is not None and self._rates.is_on and not command.fence:
            meter = RateMeter(self._rates, self._gatekeeper, context)
            meter.read(command)
        charge = self._budget.reserve(command)
        context.add_done_callback(charge.release)
        reply = await self._node.read(command)
        charge.settle(reply)
        if meter is not None:
            meter.has_read(reply)
        return reply

    async def _force(self, ledger_id: int, context: IdentifiedCall) -> Reply:
        """Do a force; refuse it if the client means an earlier process, which may have lost adds.

        Raises:
            WrongIncarnationError: The client named another process.
        """
        if named(context.invocation_metadata(), LIFE_METADATA_KEY) not in ("", self._life):
            raise WrongIncarnationError(
                f"bookie {self._node.bookie_id} was restarted, and may have lost what it "
                "acknowledged without a sync"
            )
        return await self._node.force(ledger_id)

    async def _info(self, _request: None, _context: IdentifiedCall) -> tuple[Reply, Info | None]:
        return Reply(Status.OK), await self._node.info()

    async def _add_stream(self, _requests: Any, context: IdentifiedCall) -> None:
        is_named = bool(named(context.invocation_metadata(), INCARNATION_METADATA_KEY))
        caller, refusal = self._admit(context)
        stream = AddStreamHandler(
            self._node,
            self._errors,
            refusal,
            caller,
            is_named=is_named,
            life=self._life,
            meter=self._meter(context, refusal),
        )
        await self._serve(stream, context, caller)

    async def _read_stream(self, _requests: Any, context: IdentifiedCall) -> None:
        caller, refusal = self._admit(context)
        meter = self._meter(context, refusal)
        stream = ReadStreamHandler(self._node, self._errors, self._budget, refusal, caller, meter)
        await self._serve(stream, context, caller)

    async def _watch_lac(self, _requests: Any, context: IdentifiedCall) -> None:
        caller, refusal = self._admit(context)
        stream = LacWatchHandler(self._node, self._errors, refusal, caller)
        await self._serve(stream, context, caller)

    async def _serve(
        self, stream: StreamHandler, context: IdentifiedCall, caller: Caller | None
    ) -> None:
        """Serve a stream to its end, which comes at the latest when the caller's token expires.

        The client then opens another stream, with its next token.
        """
        if self._ended:
            stream.end()
        self._streams[stream] = None
        stop_waiting = _end_later(caller, stream.end)
        try:
            await stream.serve(context)
        finally:
            del self._streams[stream]
            stop_waiting()

    async def _list_entries(self, data: bytes, context: IdentifiedCall) -> None:
        async def pages() -> AsyncIterator[bytes]:
            wanted = unary_codec.parse_list_entries_request(data)
            caller = await self._permit("ListEntries", context, wanted[0])
            self._rate("ListEntries", context, wanted[0])
            async for ranges in self._node.list_entries(*wanted):
                if caller is not None:  # the client decides how long a listing takes
                    await caller.require("ListEntries", Right.READ, wanted[0])
                yield unary_codec.encode_ranges(Reply(Status.OK), ranges)

        await self._send_pages(
            "ListEntries",
            pages(),
            context,
            lambda refusal: unary_codec.encode_ranges(refusal, None),
        )

    async def _list_ledgers(self, data: bytes, context: IdentifiedCall) -> None:
        async def pages() -> AsyncIterator[bytes]:
            after = unary_codec.parse_list_ledgers_request(data)
            caller = await self._permit("ListLedgers", context, None)
            async for rows in self._node.list_ledgers(after):
                if caller is not None:
                    caller.require_everywhere("ListLedgers", Right.LIST)
                yield unary_codec.encode_ledger_rows(Reply(Status.OK), rows)

        await self._send_pages(
            "ListLedgers",
            pages(),
            context,
            lambda refusal: unary_codec.encode_ledger_rows(refusal, ()),
        )

    async def _send_pages(
        self,
        rpc: str,
        pages: AsyncIterator[bytes],
        context: IdentifiedCall,
        refuse: Callable[[Reply], bytes],
    ) -> None:
        """Write pages as fast as the client accepts them; an error is the last page.

        A listing is complete when the call ends with gRPC OK and every page's status was OK.
        """
        status = Status.OK
        try:
            self._check(context)
            async for page in pages:
                await context.write(page)
        except aio.BaseError:
            return  # the client is gone
        except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
            refusal = self._errors.reply(rpc, error)
            status = refusal.status
            await context.write(refuse(refusal))
        self._errors.count(rpc, status)

    def _check(self, context: IdentifiedCall) -> None:
        """Refuse a call that is meant for another bookie or cluster."""
        node = self._node
        metadata = context.invocation_metadata()
        check_recipient(metadata, node.instance_id, node.bookie_id, node.incarnation)

    def _admit(self, context: IdentifiedCall) -> tuple[Caller | None, BookieError | None]:
        """Return who opens a stream, and the error for all its requests if it is refused.

        The caller is None if everybody may do everything, so that requests need no check.
        """
        try:
            self._check(context)
            if self._gatekeeper is None:
                return None, None
            caller = caller_of(self._gatekeeper, context)
            return caller if self._gatekeeper.is_required else None, None
        except BookieError as error:
            return None, error

    def _meter(self, context: IdentifiedCall, refusal: BookieError | None) -> RateMeter | None:
        """Return who is charged for a call; None if nothing is limited, or nobody was let in."""
        if self._rates is None or refusal is not None:
            return None
        return RateMeter(self._rates, self._gatekeeper, context)


def _end_later(caller: Caller | None, end: Callable[[], None]) -> Callable[[], None]:
    """Call `end` when the caller's token is no longer accepted; return what stops the wait.

    The wall clock may jump, so it is looked at again at least once a minute.
    """
    if caller is None or caller.expires_seconds is None:
        return lambda: None
    loop, expires_seconds = asyncio.get_running_loop(), caller.expires_seconds
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        left = expires_seconds + LEEWAY_SECONDS - SystemClock().now_ms() / 1000
        if left <= 0:
            end()
        else:
            timer = loop.call_later(min(left, EXPIRY_LOOK_SECONDS), look)

    look()
    return lambda: timer.cancel() if timer is not None else None


def _first(request: tuple[Any, ...]) -> int:
    """Return the ledger id of a request that is a tuple."""
    ledger_id: int = request[0]
    return ledger_id


def _refuse_lac(refusal: Reply) -> LacReply:
    return LacReply(
        refusal.status,
        refusal.message,
        max_lac=NO_ENTRY,
        retry_after_ms=refusal.retry_after_ms,
    )
