"""The servicer: each call of the contract, from bytes to the node and back.

Handlers have no serializers: gRPC hands them the messages' bytes. A unary call is a row of a table:
how its request is parsed, what is asked of the node, how the reply is encoded, and which reply a
refusal is. What fails, fails in band; `Faults` alone knows which status an error is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import grpc
from grpc import aio

from bookie.config import NodeSettings
from bookie.errors import WrongClusterError
from bookie.formats.commands import Info, LacReply, ReadCommand, ReadReply, Reply
from bookie.ids import NO_ENTRY, Status
from bookie.rpc import cold
from bookie.rpc.add_stream import AddStream
from bookie.rpc.codec import encode_read_response, parse_read_request
from bookie.rpc.contract import SERVICE, CallContext, Node
from bookie.rpc.conversation import Conversation
from bookie.rpc.faults import Faults
from bookie.rpc.lac_watch import LacWatch
from bookie.rpc.read_budget import ReadBudget
from bookie.rpc.read_stream import ReadStream
from bookie.rpc.security import check_instance_id
from bookie.telemetry import Metrics

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

_status: Final[Callable[[Any], Status]] = attrgetter("status")


@dataclass(frozen=True, slots=True)
class _Call(Generic[_Request, _Reply]):
    """One unary call of the contract."""

    rpc: str
    parse: Callable[[bytes], _Request]
    ask: Callable[[_Request, CallContext], Awaitable[_Reply]]
    encode: Callable[[_Reply], bytes]
    refuse: Callable[[Reply], _Reply]
    status_of: Callable[[_Reply], Status] = _status


class BookieService:
    """Serves one node. `end_streams` is the first step of a shutdown."""

    def __init__(self, node: Node, limits: NodeSettings, metrics: Metrics) -> None:
        self._node = node
        self._faults = Faults(metrics)
        self._budget = ReadBudget(limits.in_flight_read_bytes_max, limits.read_bytes_max, metrics)
        self._streams: set[Conversation] = set()
        self._ended = False

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a gRPC server needs to serve this."""
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
        """End every stream after the answers it owes; streams opened later end at once."""
        self._ended = True
        for stream in list(self._streams):
            stream.end()

    def _calls(self) -> list[_Call[Any, Any]]:
        """The unary calls."""
        node = self._node
        return [
            _Call(
                "Read",
                parse_read_request,
                self._read,
                encode_read_response,
                lambda refusal: ReadReply(refusal.status, refusal.message),
            ),
            _Call(
                "ReadLac",
                cold.parse_read_lac_request,
                lambda request, _: node.read_lac(request.ledger_id, request.master_key),
                cold.encode_lac_reply,
                _refuse_lac,
            ),
            _Call(
                "Fence",
                cold.parse_fence_request,
                lambda request, _: node.fence(request.ledger_id, request.master_key),
                cold.encode_lac_reply,
                _refuse_lac,
            ),
            _Call(
                "Force",
                cold.parse_force_request,
                lambda request, _: node.force(request.ledger_id),
                cold.encode_reply,
                _same,
            ),
            _Call(
                "WriteLac",
                cold.parse_write_lac_request,
                lambda request, _: node.write_lac(*request),
                cold.encode_reply,
                _same,
            ),
            _Call(
                "GetInfo",
                cold.parse_info_request,
                self._info,
                lambda reply: cold.encode_info(*reply),
                lambda refusal: (refusal, None),
                lambda reply: reply[0].status,
            ),
        ]

    def _handler(
        self, call: _Call[_Request, _Reply]
    ) -> Callable[[bytes, CallContext], Awaitable[bytes]]:
        """Answers one kind of unary call; every error becomes a status here.

        A plain function, which gRPC finds out for each call; of a partial one that takes it longer.
        """
        rpc, parse, ask, encode, status_of = (
            call.rpc, call.parse, call.ask, call.encode, call.status_of
        )  # fmt: skip
        faults, node = self._faults, self._node

        async def answer(data: bytes, context: CallContext) -> bytes:
            try:
                check_instance_id(context.invocation_metadata(), node.instance_id)
                reply = await ask(parse(data), context)
            except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
                reply = call.refuse(faults.reply(rpc, error))
            faults.count(rpc, status_of(reply))
            return encode(reply)

        return answer

    async def _read(self, command: ReadCommand, context: CallContext) -> ReadReply:
        """Read within the budget of bytes in flight."""
        charge = self._budget.reserve(command)
        context.add_done_callback(charge.release)
        reply = await self._node.read(command)
        charge.settle(reply)
        return reply

    async def _info(self, _request: None, _context: CallContext) -> tuple[Reply, Info | None]:
        return Reply(Status.OK), await self._node.info()

    async def _add_stream(self, _requests: Any, context: CallContext) -> None:
        """Serve one stream of adds."""
        await self._serve(AddStream(self._node, self._faults, self._refusal(context)), context)

    async def _read_stream(self, _requests: Any, context: CallContext) -> None:
        """Serve one stream of reads."""
        refusal = self._refusal(context)
        await self._serve(ReadStream(self._node, self._faults, self._budget, refusal), context)

    async def _watch_lac(self, _requests: Any, context: CallContext) -> None:
        """Serve one subscription to LACs."""
        await self._serve(LacWatch(self._node, self._faults, self._refusal(context)), context)

    async def _serve(self, stream: Conversation, context: CallContext) -> None:
        if self._ended:
            stream.end()
        self._streams.add(stream)
        try:
            await stream.serve(context)
        finally:
            self._streams.discard(stream)

    async def _list_entries(self, data: bytes, context: CallContext) -> None:
        """Send the ranges of ids that are stored, page by page."""

        async def pages() -> AsyncIterator[bytes]:
            wanted = cold.parse_list_entries_request(data)
            async for ranges in self._node.list_entries(*wanted):
                yield cold.encode_ranges(Reply(Status.OK), ranges)

        await self._send_pages(
            "ListEntries", pages(), context, lambda refusal: cold.encode_ranges(refusal, None)
        )

    async def _list_ledgers(self, data: bytes, context: CallContext) -> None:
        """Send the ledgers that are stored, page by page."""

        async def pages() -> AsyncIterator[bytes]:
            after = cold.parse_list_ledgers_request(data)
            async for rows in self._node.list_ledgers(after):
                yield cold.encode_ledger_rows(Reply(Status.OK), rows)

        await self._send_pages(
            "ListLedgers", pages(), context, lambda refusal: cold.encode_ledger_rows(refusal, ())
        )

    async def _send_pages(
        self,
        rpc: str,
        pages: AsyncIterator[bytes],
        context: CallContext,
        refuse: Callable[[Reply], bytes],
    ) -> None:
        """Write pages as fast as the client takes them; an error is the last page.

        A listing is complete when the call ends with gRPC OK and every page's status was OK.
        """
        status = Status.OK
        try:
            check_instance_id(context.invocation_metadata(), self._node.instance_id)
            async for page in pages:
                await context.write(page)
        except aio.BaseError:
            return  # the client is gone
        except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
            refusal = self._faults.reply(rpc, error)
            status = refusal.status
            await context.write(refuse(refusal))
        self._faults.count(rpc, status)

    def _refusal(self, context: CallContext) -> WrongClusterError | None:
        """The error that answers everything on a stream of another cluster's client."""
        try:
            check_instance_id(context.invocation_metadata(), self._node.instance_id)
        except WrongClusterError as error:
            return error
        return None


def _refuse_lac(refusal: Reply) -> LacReply:
    return LacReply(refusal.status, refusal.message, max_lac=NO_ENTRY)


def _same(refusal: Reply) -> Reply:
    return refusal
