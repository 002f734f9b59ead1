"""The read budget: a limit on the bytes that all reads of a bookie keep in memory.

Answers stay in memory until their clients have received them. Before a read starts, it reserves the
largest number of bytes that it may return. When the read ends, only the bytes that it returned stay
charged, until gRPC has taken the answer. So a large number of slow readers fills the budget, not
the memory. The same bytes are charged to the shares of the reader's connection and identity, so
that a few readers cannot fill the whole budget. A read that exceeds the budget or a share is
refused at once and may be retried.
"""

from __future__ import annotations

from typing import Final

from bookie.env.budget import ByteBudget
from bookie.errors import TooManyRequestsError
from bookie.telemetry import Metrics
from bookie.wire.commands import ReadCommand, ReadReply
from bookie.wire.server.shares import RETRY_SECONDS
from bookie.wire.server.visits import Visit

READ_OVERHEAD_BYTES: Final = 4096
"""Charged for each read in addition to its entries, so that the number of empty answers is limited,
too."""


class ReadBudget:
    """Limits the bytes of reads in flight to `limit_bytes`; fencing reads may use a quarter more.

    Args:
        limit_bytes: The largest number of bytes for all reads together.
        read_bytes_max: The largest number of bytes that one read returns, whatever it requests.
        metrics: exports the charged bytes.
    """

    def __init__(self, limit_bytes: int, read_bytes_max: int, metrics: Metrics) -> None:
        self._bytes = ByteBudget(limit_bytes)
        self._fencing_bytes = limit_bytes // 4
        self._read_bytes_max = read_bytes_max
        metrics.in_flight_read_bytes.set_function(lambda: self._bytes.used)

    def reserve(self, command: ReadCommand, visit: Visit) -> Charge:
        """Charge a read before it starts; a read is always admitted if no other read is in flight.

        A read needs room in this budget, and in the shares of its connection and its identity.

        Fencing reads of a recovery may use a quarter more than each limit, so they are admitted
        when other reads are refused.

        Raises:
            TooManyRequestsError: Too many bytes are in flight; nothing was charged.
        """
        most = command.max_bytes
        if not 0 < most < self._read_bytes_max:
            most = self._read_bytes_max
        charge = most + READ_OVERHEAD_BYTES
        visit.read(charge, is_urgent=command.fence)
        if not self._bytes.try_take(charge, self._fencing_bytes if command.fence else 0):
            visit.end_read(charge)
            raise TooManyRequestsError(
                "the bookie is answering as many reads as it may", retry_after_seconds=RETRY_SECONDS
            )
        return Charge(self._bytes, charge, visit)


class Charge:
    """The bytes that one read has reserved from the budget and from the shares."""

    __slots__ = ("_budget", "_bytes", "_visit")

    def __init__(self, budget: ByteBudget, charge_bytes: int, visit: Visit) -> None:
        self._budget = budget
        self._bytes = charge_bytes
        self._visit = visit

    def settle(self, reply: ReadReply) -> None:
        """Reduce the charge to the bytes that the read has returned."""
        batch = reply.batch
        charge = READ_OVERHEAD_BYTES + (0 if batch is None else batch.payload_bytes)
        self._give_back(self._bytes - charge)
        self._bytes = charge

    def release(self, _context: object = None) -> None:
        """Return all bytes of the charge to budget and shares; a second call does nothing."""
        if self._bytes:
            self._give_back(self._bytes)
        self._bytes = 0

    def _give_back(self, size: int) -> None:
        self._budget.give_back(size)
        self._visit.end_read(size)
