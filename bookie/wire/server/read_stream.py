"""One client's stream of reads on the bookie; each answer is sent as soon as it is known.

The stream's reader (`StreamHandler`) answers a request at once if the answer is in memory. A read
that waits for a device or a fence gets its own task, and later requests overtake it.

All reads of the bookie share one budget of bytes. Each read reserves bytes from it until gRPC has
taken the answer. If a read still waits when its client's timeout has passed, the bookie cancels the
read and sends no answer. When the stream breaks, the bookie drops the stream's answers and cancels
all its waiting reads. A read that a thread has already begun cannot be cancelled. Its bytes stay in
memory until the device answers, and stay charged until then. But if the stream breaks after the
timeout of such a read, the bytes are no longer charged. Each thread has at most one such read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Final

from bookie.errors import BadRequestError, BookieError, ShuttingDownError, TooManyRequestsError
from bookie.security.gatekeeper import Caller
from bookie.security.rights import Right
from bookie.wire.codec import encode_read_response, parse_streamed_read, read_id_of
from bookie.wire.commands import ReadCommand, ReadReply, refused_read
from bookie.wire.deadlines import Deadlines
from bookie.wire.interfaces import CallContext, EntryNode
from bookie.wire.server.error_mapper import ErrorMapper
from bookie.wire.server.rate_meter import RateMeter
from bookie.wire.server.read_budget import Charge, ReadBudget
from bookie.wire.server.stream_handler import StreamHandler
from bookie.wire.server.visits import Visit

PENDING_MAX: Final = 1024
"""The largest number of unanswered requests; a client that reads no answers must wait."""

WAITING_MAX: Final = 128
"""The most reads of one stream that wait for a device; each waiting read reserves bytes."""

RPC: Final = "ReadStream"

TOO_LATE: Final = "the bookie could not answer in time; it does not wait any longer"


class ReadStreamHandler(StreamHandler):
    """Serves one ReadStream call; if `refusal` is set, every request is refused with this error.

    For each request, the handler checks the roles of `caller`; without a `caller` everything is
    permitted. The `meter` charges each read to the caller's rate.
    """

    _rpc = RPC

    def __init__(
        self,
        node: EntryNode,
        errors: ErrorMapper,
        budget: ReadBudget,
        refusal: BookieError | None,
        caller: Caller | None = None,
        meter: RateMeter | None = None,
        *,
        visit: Visit,
    ) -> None:
        super().__init__(visit, errors, refusal)
        self._meter = meter
        self._node = node
        self._budget = budget
        self._caller = caller
        self._answers: deque[tuple[bytes, Charge | None]] = deque()
        self._under_way: set[asyncio.Task[ReadReply]] = set()
        """Tasks of reads that wait for a device or a fence."""
        self._deadlines: Deadlines[asyncio.Task[ReadReply]] = Deadlines()
        self._broken = False

    @property
    def _is_full(self) -> bool:
        waiting = len(self._under_way)
        return waiting >= WAITING_MAX or waiting + len(self._answers) >= PENDING_MAX

    def _take(self, data: bytes) -> None:
        request_id, charge = 0, None
        try:
            if self._refusal is not None:
                self._untold = None
                self._refuse(read_id_of(data), self._refusal, None)
                return
            request_id, timeout_ms, command = parse_streamed_read(data)
            if timeout_ms > 1000 * self._visit.seconds_max:
                timeout_ms = 0  # the bookie gives up before the client does
            must_learn = self._must_learn(command)
            self._is_urgent = command.fence and not must_learn
            if self._meter is not None:
                self._meter.read(command)
            charge = self._budget.reserve(command, self._visit)
            reply = None if must_learn else self._node.try_read(command)
        except BadRequestError as error:
            self._refuse(request_id or read_id_of(data), error, charge)
        except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
            self._refuse(request_id, error, charge)
        else:
            if reply is not None:
                self._answer(request_id, reply, charge)
                return
            reading = self._tasks.create_task(
                self._read_later(command, must_learn=must_learn), name="read of a stream"
            )
            self._under_way.add(reading)
            reading.add_done_callback(partial(self._has_read, request_id, timeout_ms, charge))
            self._deadlines.start(reading, timeout_ms / 1000 or self._visit.seconds_max)

    def _must_learn(self, command: ReadCommand) -> bool:
        """True if the read's permission depends on the ledger's log, which must be looked up first.

        Raises:
            NotPermittedError: the caller's roles do not permit the read.
        """
        if self._caller is None:
            return False
        right, ledger_id = _right(command), command.ledger_id
        decided = self._caller.decide(right, ledger_id)
        if decided is False:
            raise self._caller.refuse(RPC, right, ledger_id)
        if command.fence and decided:
            self._caller.did("fencing read", ledger_id)
        return decided is None

    async def _read_later(self, command: ReadCommand, *, must_learn: bool) -> ReadReply:
        try:
            if must_learn:
                assert self._caller is not None
                await self._caller.require(RPC, _right(command), command.ledger_id)
                if command.fence:
                    self._caller.did("fencing read", command.ledger_id)
                    self._is_urgent = True
            return await self._node.read(command)
        except Exception as error:  # noqa: BLE001  (the servicer's error mapping)
            return refused_read(self._errors.reply(RPC, error))

    def _has_read(
        self, request_id: int, timeout_ms: int, charge: Charge, reading: asyncio.Task[ReadReply]
    ) -> None:
        """Answer a read that had to wait; if its client has given up, only release its bytes.

        With a `timeout_ms` of 0, the client waits longer than the bookie. If such a read times out,
        the bookie sends a refusal.

        The event loop also calls this method for a read that was cancelled before it began.
        """
        self._under_way.remove(reading)
        in_time = self._deadlines.stop(reading)
        if not in_time and not self._broken and timeout_ms == 0:
            # The bookie gave up the read, but the client still waits for its answer.
            self._errors.given_up()
            self._refuse(request_id, TooManyRequestsError(TOO_LATE), charge)
        elif self._broken or not in_time:
            charge.release()
            self._answered.set()
            self._wake()
            if not in_time:
                self._errors.given_up()
        elif reading.cancelled():
            self._refuse(request_id, ShuttingDownError("the bookie is stopping"), charge)
        else:
            self._answer(request_id, reading.result(), charge)

    def _refuse(self, request_id: int, error: BaseException, charge: Charge | None) -> None:
        self._answer(request_id, refused_read(self._errors.reply(RPC, error)), charge)

    def _answer(self, request_id: int, reply: ReadReply, charge: Charge | None) -> None:
        """Encode and queue an answer; a queued `ReadReply` could keep a large buffer in memory."""
        if charge is not None:
            charge.settle(reply)
        if self._meter is not None:
            self._meter.has_read(reply)
        self._errors.count(RPC, reply.status)
        self._answers.append((encode_read_response(reply, request_id), charge))
        self._wake()

    async def _write(self, context: CallContext) -> None:
        """Write answers in the order in which they became known."""
        answers, loop = self._answers, asyncio.get_running_loop()
        while True:
            while answers:
                data, charge = answers[0]
                await self._send(context, data)
                answers.popleft()
                if charge is not None:
                    charge.release()
                self._answered.set()
            if self._ended and not self._under_way:
                return
            self._sleep = loop.create_future()
            await self._sleep

    def _stop(self) -> None:
        self._broken = True
        self._deadlines.abandon()
        for reading in self._under_way:
            reading.cancel()

    def _forget(self) -> None:
        for _, charge in self._answers:
            if charge is not None:
                charge.release()
        self._answers.clear()


def _right(command: ReadCommand) -> Right:
    return Right.RECOVER if command.fence else Right.READ
