"""One client's stream of adds on the bookie; answers leave in the order of the requests.

The reader and the writer (`StreamHandler`) share a queue of requests that are not yet answered. The
reader charges each message to the shares of the connection and of the identity, and waits until
both have room. The charge ends when the message is answered. After it has charged a message, the
reader parses each request of the message, and waits until the node admits the request's bytes.
While the reader waits, it reads no message, so gRPC's flow control slows the client down. The
reader passes an admitted request to the node, which answers with a future. The writer sleeps until
the oldest future is done, and then writes its result to the client. A single coroutine that reads
and writes alternately is half as fast: 370 instead of 700 messages of 1 MiB a second. Two
coroutines are faster, because gRPC receives more from the socket while a coroutine waits in `read`.

When the stream breaks, both coroutines end and the queue is dropped. The futures in the queue are
not cancelled, so the adds continue. The shares stay charged until the last of these adds is done.
The client of a broken stream does not know the outcome of its unanswered adds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from bookie.env import Outcome
from bookie.errors import BadRequestError, BookieError
from bookie.ids import (
    BOOKIE_ID_METADATA_KEY,
    INCARNATION_METADATA_KEY,
    JOINED_MESSAGES_METADATA,
    LIFE_METADATA_KEY,
)
from bookie.security.gatekeeper import Caller
from bookie.security.rights import Right
from bookie.wire.coalesce import COALESCED_MAX, join_messages, split_message
from bookie.wire.codec import encode_add_response, parse_add_request, request_id_of
from bookie.wire.commands import AddCommand, Reply
from bookie.wire.interfaces import BookieNode, BrokenCallError, CallContext
from bookie.wire.server.error_mapper import ErrorMapper
from bookie.wire.server.rate_meter import RateMeter
from bookie.wire.server.shares import ADD_OVERHEAD_BYTES
from bookie.wire.server.stream_handler import StreamHandler
from bookie.wire.server.visits import Visit

PENDING_MAX: Final = 4096
"""The largest number of unanswered requests; a client that reads no answers must wait."""

RPC: Final = "AddStream"

REQUESTS_PER_UNIT: Final = 8
BYTES_PER_UNIT: Final = 64 * 1024
"""A message takes one unit of a turn, plus one unit for every `REQUESTS_PER_UNIT` requests, plus
one unit for every `BYTES_PER_UNIT` bytes."""

RECOVERED_MAX: Final = 4096
"""The most ledgers with recovery adds that a stream remembers, so that it writes each ledger to the
audit log only once."""


class AddStreamHandler(StreamHandler):
    """Serves one AddStream call.

    If `refusal` is set, the stream refuses every request with this error. For each request, the
    handler checks the roles of `caller`; without a `caller` everything is permitted. The `meter`
    charges each add to the caller's rate. `is_named` is True if the caller named the bookie's
    incarnation. The initial metadata contains the incarnation, the process's `life` and the
    bookie's id.
    """

    _rpc = RPC

    def __init__(
        self,
        node: BookieNode,
        errors: ErrorMapper,
        refusal: BookieError | None,
        caller: Caller | None = None,
        *,
        visit: Visit,
        is_named: bool = False,
        life: str = "",
        meter: RateMeter | None = None,
    ) -> None:
        super().__init__(visit, errors, refusal)
        self._meter = meter
        self._node = node
        self._add = node.add if is_named else node.add_unnamed
        self._offers = (JOINED_MESSAGES_METADATA, (BOOKIE_ID_METADATA_KEY, node.bookie_id))
        if node.incarnation:
            self._offers += ((INCARNATION_METADATA_KEY, node.incarnation),)
        if life:
            self._offers += ((LIFE_METADATA_KEY, life),)
        self._caller = caller
        self._unknown: tuple[Right, int] | None = None
        """The needed right and the ledger of the last request, if the log of this ledger must be
        looked up first."""
        self._recovered: set[int] = set()
        """Ledgers for which the audit log already says that this stream sends recovery adds."""
        self._pending: deque[tuple[int, Outcome[Reply]]] = deque()
        self._held: deque[tuple[int, int]] = deque()
        """For each unanswered message: the number of its last request, and the bytes that it
        charges to the shares."""
        self._accepted = self._sent = 0
        """The number of requests that were accepted, and of answers that were sent."""
        self._joins = False
        """True once the client has sent a joined message; such a client accepts joined answers,
        too."""

    async def _read(self, context: CallContext) -> None:
        """Turn messages into pending answers until the client or the bookie ends the stream.

        This is one coroutine, because each extra call would slow down every add of one entry.
        """
        pending, busy = self._pending, self.arrived.busy
        while not self._ended:
            try:
                data = await context.read()
            except BrokenCallError:
                break
            if data is None:
                break
            self.arrived.message(len(data))
            busy.add(self)
            requests = self._split(data)
            self._joins = self._joins or len(requests) > 1
            await self._hold(len(data), len(requests))
            for request in requests:
                owed = self._accept(request) or await self._accept_later(request)
                pending.append(owed)
                owed[1].then(self._settled)
                while len(pending) >= PENDING_MAX:
                    self._answered.clear()
                    await self._answered.wait()
            if len(pending) == 1:
                # Let a single add reach the journal's thread before the next message is handled.
                await asyncio.sleep(0)
            busy.discard(self)
            if self.is_brief:
                break
        self.end()

    async def _hold(self, size: int, requests: int) -> None:
        """Wait until a message gets a turn and room in the shares, and charge its size to them."""
        visit, is_urgent = self._visit, self._is_urgent
        units = 1 + requests // REQUESTS_PER_UNIT + size // BYTES_PER_UNIT
        if not (is_urgent or visit.try_turn(units)):
            await visit.turn(units)
        size += requests * ADD_OVERHEAD_BYTES
        if not visit.try_add(size, is_urgent=is_urgent):
            await visit.add(size)
        self._is_urgent = False
        self._accepted += requests
        self._held.append((self._accepted, size))

    def _split(self, data: bytes) -> Sequence[bytes | memoryview]:
        try:
            return split_message(data)
        except BadRequestError:
            # Pass the bytes on: `_accept` refuses them as an empty request without an id.
            return (data,)

    def _accept(
        self, data: bytes | memoryview, *, permitted: bool = False, admitted: bool = False
    ) -> tuple[int, Outcome[Reply]] | None:
        """Pass one request to the node, or refuse it; return None if the request must wait.

        A request must wait if the node has no room for its bytes, or if the log of its ledger must
        be looked up first. In the second case, `_unknown` is set.
        """
        if self._refusal is not None:
            self._untold = None
            return request_id_of(data), self._refused(self._refusal)
        try:
            request_id, command = parse_add_request(data)
        except BadRequestError as error:
            return request_id_of(data), self._refused(error)
        try:
            if self._caller is not None and not permitted:
                right, ledger_id = _right(command), command.ledger_id
                is_permitted = self._caller.decide(right, ledger_id)
                if is_permitted is None:
                    self._unknown = right, ledger_id
                    return None
                if not is_permitted:
                    return request_id, self._refused(self._caller.refuse(RPC, right, ledger_id))
            if self._caller is not None and command.recovery:
                self._note_recovery(command.ledger_id)
            self._is_urgent = command.recovery
            size = len(data)
            if self._meter is not None and not admitted:
                self._meter.add(command, size)
            if not (admitted or self._node.try_admit_add(size, command.recovery)):
                return None
            return request_id, self._add(command, size)
        except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
            return request_id, self._refused(error)

    async def _accept_later(self, data: bytes | memoryview) -> tuple[int, Outcome[Reply]]:
        """Pass one request to the node once the caller's rights are known and the node has room."""
        if self._unknown is not None:
            assert self._caller is not None
            (right, ledger_id), self._unknown = self._unknown, None
            try:
                await self._caller.require(RPC, right, ledger_id)
            except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
                return request_id_of(data), self._refused(error)
            owed = self._accept(data, permitted=True)
            if owed is not None:
                return owed
        await self._node.admit_add(len(data))
        owed = self._accept(data, permitted=True, admitted=True)
        assert owed is not None, "what is admitted does not wait"
        return owed

    def _note_recovery(self, ledger_id: int) -> None:
        """Write to the audit log, once for each ledger, that this stream sends recovery adds."""
        assert self._caller is not None
        if ledger_id not in self._recovered:
            if len(self._recovered) >= RECOVERED_MAX:
                self._recovered.clear()
            self._recovered.add(ledger_id)
            self._caller.did("recovery adds", ledger_id)

    async def _write(self, context: CallContext) -> None:
        """Write answers in request order."""
        pending, loop = self._pending, asyncio.get_running_loop()
        while not self._ended or pending:
            if not pending or not pending[0][1].done():
                self._sleep = loop.create_future()
                await self._sleep
                continue
            answers = []
            for request_id, outcome in islice(pending, COALESCED_MAX if self._joins else 1):
                if not outcome.done():
                    break
                reply = outcome.result()
                self._errors.count(RPC, reply.status)
                answers.append(encode_add_response(request_id, *reply))
            await self._send(context, join_messages(answers))
            for _ in answers:
                pending.popleft()
            self._sent += len(answers)
            self._give_back()
            self._answered.set()

    def _give_back(self) -> None:
        """End the charges of the answered messages to the shares."""
        held = self._held
        while held and held[0][0] <= self._sent:
            self._visit.end_add(held.popleft()[1])

    def _forget(self) -> None:
        """End the charges to the shares when the last add is done; at once if no add is left."""
        rest = sum(size for _, size in self._held)
        self._held.clear()
        left = len(self._pending)

        def settled(_: Reply) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._visit.end_add(rest)

        if not left:
            self._visit.end_add(rest)
        for _, outcome in list(self._pending):
            outcome.then(settled)
        self._pending.clear()

    def _refused(self, error: Exception) -> Outcome[Reply]:
        return Outcome.of(self._errors.reply(RPC, error))

    def _settled(self, _: Reply) -> None:
        """Wake the writer if the oldest unanswered add is done."""
        if self._pending and self._pending[0][1].done():
            self._wake()


def _right(command: AddCommand) -> Right:
    return Right.RECOVER if command.recovery else Right.WRITE
