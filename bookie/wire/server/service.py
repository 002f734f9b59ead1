"""The service of a bookie: it parses each request, calls the node, and encodes the node's reply.

The carriers pass messages to the handlers as bytes, without serializers. A table has one row for
each unary call. The row says how to parse the request, call the node, encode the reply, and encode
a refusal. A reply reports an error by its status; only `ErrorMapper` maps an error to a status.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from bookie.config import NodeSettings, RpcSettings
from bookie.env import SystemClock
from bookie.errors import BadRequestError, BookieError, TooManyRequestsError, WrongIncarnationError
from bookie.ids import INCARNATION_METADATA_KEY, LIFE_METADATA_KEY, NO_ENTRY, Status
from bookie.security.gatekeeper import Caller, Gatekeeper
from bookie.security.rates import Rates
from bookie.security.rights import RPC_RIGHTS, Right
from bookie.security.tokens import LEEWAY_SECONDS
from bookie.telemetry import Metrics
from bookie.wire import unary_codec
from bookie.wire.call_metadata import check_recipient, named
from bookie.wire.codec import encode_read_response, parse_read_request
from bookie.wire.commands import Info, LacReply, ReadCommand, ReadReply, Reply, refused_read
from bookie.wire.interfaces import BookieNode, BrokenCallError, CallerContext, IdentifiedCall
from bookie.wire.server.add_stream import AddStreamHandler
from bookie.wire.server.arrivals import Arrivals
from bookie.wire.server.callers import caller_of
from bookie.wire.server.error_mapper import ErrorMapper
from bookie.wire.server.lac_watch import LacWatchHandler
from bookie.wire.server.rate_meter import RateMeter
from bookie.wire.server.read_budget import ReadBudget
from bookie.wire.server.read_stream import TOO_LATE, ReadStreamHandler
from bookie.wire.server.stream_handler import StreamHandler
from bookie.wire.server.visits import Reception, Visit

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

EXPIRY_LOOK_SECONDS: Final = 60.0
"""The longest time between two checks of the clock for the end of a stream's token."""

RATED_RPCS: Final = frozenset({"ReadLac", "WriteLac", "ListEntries"})
"""Calls that the caller's rate counts as one request; reads and adds are charged elsewhere."""
REFUSED_STREAM_SECONDS: Final = 5.0
"""The longest life of a stream that is refused because its peer has too many calls or streams."""

URGENT: Final = frozenset({"ReadLac", "Fence"})
"""The calls that recovery waits for."""

_status: Final[Callable[[Any], Status]] = attrgetter("status")


@dataclass(frozen=True, slots=True)
class _Call(Generic[_Request, _Reply]):
    """Describes how to serve one unary call of the contract."""

    rpc: str
    parse: Callable[[bytes], _Request]
    ask: Callable[[_Request, CallerContext, Visit], Awaitable[_Reply]]
    encode: Callable[[_Reply], bytes]
    refuse: Callable[[Reply], _Reply]
    ledger_of: Callable[[_Request], int | None] = attrgetter("ledger_id")
    """Returns the ledger that the request concerns; None if it concerns no ledger."""
    status_of: Callable[[_Reply], Status] = _status


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of a bookie's calls, by the name of the call."""

    streams: Mapping[str, Callable[[IdentifiedCall], Awaitable[None]]]
    """Calls with many messages in both directions."""
    listings: Mapping[str, Callable[[bytes, IdentifiedCall], Awaitable[None]]]
    """Calls with one request; the handler writes the pages of the answer."""
    calls: Mapping[str, Callable[[bytes, CallerContext], Awaitable[bytes]]]
    """Calls with one request and one answer."""
    is_urgent: Callable[[str, bytes], bool]
    """A function of the name and request of a call with one answer: True if recovery waits for
    it."""


class BookieService:
    """Serves the calls of all carriers for one node."""

    def __init__(
        self,
        node: BookieNode,
        limits: NodeSettings,
        metrics: Metrics,
        gatekeeper: Gatekeeper | None = None,
        rates: Rates | None = None,
        rpc: RpcSettings | None = None,
        arrivals: Arrivals | None = None,
    ) -> None:
        """Without a `gatekeeper`, callers may do everything; without `rates`, no rate is limited.

        `rpc` limits the duration of calls. `arrivals` counts the bytes that reach the handlers.
        """
        self._arrivals = arrivals or Arrivals()
        self._node = node
        self._rates = rates
        self._gatekeeper = gatekeeper
        self._errors = ErrorMapper(metrics)
        self._budget = ReadBudget(limits.in_flight_read_bytes_max, limits.read_bytes_max, metrics)
        self._reception = Reception(limits, rpc or RpcSettings(), metrics)
        self._streams: dict[StreamHandler, None] = {}
        """The open streams, in the order of their start."""
        self._ended = False
        self._life = uuid.uuid4().hex
        """The id of this service object; it changes at each restart, which may lose unsynced
        adds."""

    def handlers(self) -> Handlers:
        """Return the handlers of all calls, which each carrier serves in its own way."""
        return Handlers(
            streams={
                "AddStream": self._add_stream,
                "ReadStream": self._read_stream,
                "WatchLac": self._watch_lac,
            },
            listings={"ListEntries": self._list_entries, "ListLedgers": self._list_ledgers},
            calls={call.rpc: self._handler(call) for call in self._calls()},
            is_urgent=_is_urgent,
        )

    def end_streams(self) -> None:
        """End every stream after it has answered its requests; later streams end at once."""
        self._ended = True
        for stream in list(self._streams):
            stream.end()

    def close(self) -> None:
        """Stop the timers of calls; call this after all calls have ended."""
        self._reception.close()

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
                lambda request, *_: node.read_lac(*request),
                unary_codec.encode_lac_reply,
                _refuse_lac,
                _first,
            ),
            _Call(
                "Fence",
                unary_codec.parse_fence_request,
                lambda request, *_: node.fence(*request),
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
                lambda request, *_: node.write_lac(*request),
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
    ) -> Callable[[bytes, CallerContext], Awaitable[bytes]]:
        """Return a handler for one kind of unary call, which answers every error by a status.

        The handler is a plain function, because gRPC inspects it at each call and would take longer
        for a ``functools.partial``.
        """
        rpc, parse, ask, encode, status_of = (
            call.rpc, call.parse, call.ask, call.encode, call.status_of
        )  # fmt: skip
        errors, check, permit, rate, arrived = (
            self._errors, self._check, self._permit, self._rate, self._arrived
        )  # fmt: skip
        ledger_of, enter, is_urgent = call.ledger_of, self._enter, rpc in URGENT

        async def answer(data: bytes, context: CallerContext) -> bytes:
            visit: Visit | None = None
            arrived(context, len(data))
            try:
                check(context)
                request = parse(data)
                caller, visit = enter(context, is_urgent=is_urgent or _fences(request))
                await permit(rpc, caller, ledger_of(request), request)
                rate(rpc, context, ledger_of(request))
                reply = await ask(request, context, visit)
            except asyncio.CancelledError:
                _check_late(visit)
                reply = call.refuse(errors.reply(rpc, TooManyRequestsError(TOO_LATE)))
            except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
                reply = call.refuse(errors.reply(rpc, error))
            errors.count(rpc, status_of(reply))
            if visit is not None:
                visit.sends()
            return encode(reply)

        return answer

    def _enter(
        self, context: CallerContext, *, is_urgent: bool = False
    ) -> tuple[Caller | None, Visit]:
        """Begin a call with a single request; its visit ends when the carrier reports its end.

        Raises:
            NotPermittedError: the token is not valid.
            TooManyRequestsError: the peer already has the largest permitted number of calls.
        """
        caller = None if self._gatekeeper is None else caller_of(self._gatekeeper, context)
        visit = self._reception.enter(context.peer(), caller, is_urgent=is_urgent)
        context.add_done_callback(visit.leave)
        visit.works()
        return caller, visit

    async def _permit(
        self, rpc: str, caller: Caller | None, ledger_id: int | None, request: object = None
    ) -> None:
        """Refuse a call that the caller's roles do not permit; write fences to the audit log.

        Raises:
            NotPermittedError: the roles do not permit the call.
            MetadataError: the metadata store cannot say to which log the ledger belongs.
        """
        if caller is None:
            return
        plain, flagged = RPC_RIGHTS[rpc]
        right = flagged if _fences(request) and flagged is not None else plain
        if ledger_id is None:
            caller.require_everywhere(rpc, right)
            return
        await caller.require(rpc, right, ledger_id)
        if right is Right.RECOVER:
            caller.did(rpc, ledger_id)

    def _rate(self, rpc: str, context: CallerContext, ledger_id: int | None) -> None:
        """Charge a call of `RATED_RPCS` to the caller's rate; ignore other calls.

        Raises:
            TooManyRequestsError: a rate is used up.
        """
        rates = self._rates
        if rates is not None and rates.is_on and rpc in RATED_RPCS and ledger_id is not None:
            RateMeter(rates, self._gatekeeper, context).ask(ledger_id)

    async def _read(self, command: ReadCommand, context: CallerContext, visit: Visit) -> ReadReply:
        """Read entries in the caller's turn, within the caller's rate and the read budget."""
        if not (command.fence or visit.try_turn(1)):
            await visit.turn(1)
        meter = None
        if self._rates is not None and self._rates.is_on and not command.fence:
            meter = RateMeter(self._rates, self._gatekeeper, context)
            meter.read(command)
        charge = self._budget.reserve(command, visit)
        context.add_done_callback(charge.release)
        reply = await self._node.read(command)
        charge.settle(reply)
        if meter is not None:
            meter.has_read(reply)
        return reply

    async def _force(self, ledger_id: int, context: CallerContext, _visit: Visit) -> Reply:
        """Force a ledger; refuse if the client names an earlier process, which may have lost adds.

        Raises:
            WrongIncarnationError: The client named another process of this bookie.
        """
        if named(context.invocation_metadata(), LIFE_METADATA_KEY) not in ("", self._life):
            raise WrongIncarnationError(
                f"bookie {self._node.bookie_id} was restarted, and may have lost what it "
                "acknowledged without a sync"
            )
        return await self._node.force(ledger_id)

    async def _info(
        self, _request: None, _context: CallerContext, _visit: Visit
    ) -> tuple[Reply, Info | None]:
        return Reply(Status.OK), await self._node.info()

    async def _add_stream(self, context: IdentifiedCall) -> None:
        is_named = bool(named(context.invocation_metadata(), INCARNATION_METADATA_KEY))
        caller, refusal, visit = self._admit(context)
        stream = AddStreamHandler(
            self._node,
            self._errors,
            refusal,
            caller,
            visit=visit,
            is_named=is_named,
            life=self._life,
            meter=self._meter(context, refusal),
        )
        await self._serve(stream, context, caller, visit)

    async def _read_stream(self, context: IdentifiedCall) -> None:
        caller, refusal, visit = self._admit(context)
        meter = self._meter(context, refusal)
        stream = ReadStreamHandler(
            self._node, self._errors, self._budget, refusal, caller, meter, visit=visit
        )
        await self._serve(stream, context, caller, visit)

    async def _watch_lac(self, context: IdentifiedCall) -> None:
        caller, refusal, visit = self._admit(context)
        stream = LacWatchHandler(self._node, self._errors, refusal, caller, visit=visit)
        await self._serve(stream, context, caller, visit)

    async def _serve(
        self, stream: StreamHandler, context: IdentifiedCall, caller: Caller | None, visit: Visit
    ) -> None:
        """Serve a stream until it ends; it ends at the latest when the caller's token expires.

        After its token has expired, the client opens another stream with a new token. A stream
        whose peer has too many calls or streams ends after its first message, or after
        `REFUSED_STREAM_SECONDS`.
        """
        if self._ended:
            stream.end()
        self._streams[stream] = None
        stop_waiting = _end_later(caller, stream.end)
        soon: asyncio.TimerHandle | None = None
        if not visit.shares:
            stream.is_brief = True
            soon = asyncio.get_running_loop().call_later(REFUSED_STREAM_SECONDS, stream.end)
        stream.arrived = self._arrivals.of(context.peer())
        stream.arrived.call(context.invocation_metadata())
        try:
            await stream.serve(context)
            visit.sends()  # the status of the call
        finally:
            del self._streams[stream]
            stop_waiting()
            if soon is not None:
                soon.cancel()

    async def _list_entries(self, data: bytes, context: IdentifiedCall) -> None:
        self._arrived(context, len(data))

        async def pages(caller: Caller | None) -> AsyncIterator[bytes]:
            wanted = unary_codec.parse_list_entries_request(data)
            await self._permit("ListEntries", caller, wanted[0])
            self._rate("ListEntries", context, wanted[0])
            async for ranges in self._node.list_entries(*wanted):
                if caller is not None:  # the roles may change during a slow listing
                    await caller.require("ListEntries", Right.READ, wanted[0])
                yield unary_codec.encode_ranges(Reply(Status.OK), ranges)

        await self._send_pages(
            "ListEntries",
            pages,
            context,
            lambda refusal: unary_codec.encode_ranges(refusal, None),
        )

    async def _list_ledgers(self, data: bytes, context: IdentifiedCall) -> None:
        self._arrived(context, len(data))

        async def pages(caller: Caller | None) -> AsyncIterator[bytes]:
            after = unary_codec.parse_list_ledgers_request(data)
            await self._permit("ListLedgers", caller, None)
            async for rows in self._node.list_ledgers(after):
                if caller is not None:
                    caller.require_everywhere("ListLedgers", Right.LIST)
                yield unary_codec.encode_ledger_rows(Reply(Status.OK), rows)

        await self._send_pages(
            "ListLedgers",
            pages,
            context,
            lambda refusal: unary_codec.encode_ledger_rows(refusal, ()),
        )

    async def _send_pages(
        self,
        rpc: str,
        pages: Callable[[Caller | None], AsyncIterator[bytes]],
        context: IdentifiedCall,
        refuse: Callable[[Reply], bytes],
    ) -> None:
        """Write a listing's pages as fast as the client accepts them; an error is the last page.

        A listing is complete when the call ends without an error and every page's status was OK.
        Both the wait for each page and the wait for the client to receive it are limited.
        """
        status, visit = Status.OK, None
        try:
            self._check(context)
            caller, visit = self._enter(context)
            async for page in pages(caller):
                visit.sends()
                await context.write(page)
                visit.works()
                if not visit.try_turn(1):
                    await visit.turn(1)
        except BrokenCallError:
            return  # the client is gone
        except asyncio.CancelledError:
            _check_late(visit)
            status = await self._refuse(rpc, TooManyRequestsError(TOO_LATE), context, refuse)
        except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
            status = await self._refuse(rpc, error, context, refuse)
        if visit is not None:
            visit.sends()  # the client must receive the last page or the status
        self._errors.count(rpc, status)

    async def _refuse(
        self,
        rpc: str,
        error: Exception,
        context: IdentifiedCall,
        refuse: Callable[[Reply], bytes],
    ) -> Status:
        """Write an error as the last page of a listing."""
        refusal = self._errors.reply(rpc, error)
        await context.write(refuse(refusal))
        return refusal.status

    def _arrived(self, context: CallerContext, size: int) -> None:
        """Count the bytes of a call and of its single message."""
        arrived = self._arrivals.of(context.peer())
        arrived.call(context.invocation_metadata())
        arrived.message(size)

    def _check(self, context: CallerContext) -> None:
        """Refuse a call that is meant for another bookie or cluster."""
        node = self._node
        metadata = context.invocation_metadata()
        check_recipient(metadata, node.instance_id, node.bookie_id, node.incarnation)

    def _admit(self, context: CallerContext) -> tuple[Caller | None, BookieError | None, Visit]:
        """Return the caller of a stream, the error that refuses its requests, and its visit.

        The caller is None if no request needs a check: roles are not required, or the stream is
        refused.
        """
        caller = refusal = None
        peer, keeper = context.peer(), self._gatekeeper
        try:
            self._check(context)
            caller = None if keeper is None else caller_of(keeper, context)
        except BookieError as error:
            refusal = error
        try:
            visit = self._reception.enter(peer, caller, is_stream=True)
        except TooManyRequestsError as error:
            visit, refusal = self._reception.turn_away(peer), error
        context.add_done_callback(visit.leave)
        asks = keeper is not None and keeper.is_required and refusal is None
        return caller if asks else None, refusal, visit

    def _meter(self, context: CallerContext, refusal: BookieError | None) -> RateMeter | None:
        """Return the meter that charges a call; None without rates, or if the call is refused."""
        if self._rates is None or refusal is not None:
            return None
        return RateMeter(self._rates, self._gatekeeper, context)


def _end_later(caller: Caller | None, end: Callable[[], None]) -> Callable[[], None]:
    """Call `end` when the caller's token has expired; return a function that stops the wait.

    The wall clock may jump, so the function checks it at least once a minute.
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


def _fences(request: object) -> bool:
    return isinstance(request, ReadCommand) and request.fence


def _is_urgent(rpc: str, data: bytes) -> bool:
    """True if recovery waits for the call; a malformed request is not urgent."""
    if rpc != "Read":
        return rpc in URGENT
    try:
        return parse_read_request(data).fence
    except BadRequestError:
        return False


def _check_late(visit: Visit | None) -> None:
    """Return if the task was cancelled only because the call has lasted too long; otherwise raise.

    Raises:
        CancelledError: the call was cancelled for another reason.
    """
    task = asyncio.current_task()
    if visit is None or not visit.is_late or task is None or task.uncancel():
        raise asyncio.CancelledError


def _first(request: tuple[Any, ...]) -> int:
    ledger_id: int = request[0]
    return ledger_id


def _refuse_lac(refusal: Reply) -> LacReply:
    return LacReply(
        refusal.status,
        refusal.message,
        max_lac=NO_ENTRY,
        retry_after_ms=refusal.retry_after_ms,
    )
