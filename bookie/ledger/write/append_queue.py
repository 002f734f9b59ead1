"""Queues payloads in id order, with their callers' futures, until the writer takes the payloads.

The queue collects payloads in a *group*, which becomes one batch. A group is complete when it is
full (by entries or bytes), or when the writer takes the group. So one batch carries the appends of
one turn of the event loop, or all appends that were made while earlier batches were in flight.
When the writer takes a group, no work is done for each entry. An append gets its entry id when it
enters the queue.
"""

from __future__ import annotations

from asyncio import Future
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import NamedTuple, Self

from bookie.entry.entry import HEADER_SIZE_BYTES, SharedPrefix
from bookie.errors import BadRequestError, BookieError
from bookie.ids import ENTRY_SIZE_BYTES_MAX
from bookie.ledger.connection.calls import fresh, settle


class NewEntries(NamedTuple):
    """One or more entries to append together; each entry consists of `prefix` and one payload.

    The lists in this object must not change after its creation.
    """

    payloads: list[bytes]
    sizes: list[int]
    """Sizes of the payloads, in bytes."""
    total_bytes: int
    """Total size of all entries in bytes, prefixes included."""
    prefix: bytes = b""

    @classmethod
    def of(cls, payloads: list[bytes], prefix: bytes = b"") -> Self:
        sizes = list(map(len, payloads))
        return cls(payloads, sizes, sum(sizes) + len(prefix) * len(sizes), prefix)

    @property
    def greatest_bytes(self) -> int:
        return max(self.sizes) + len(self.prefix)


class PendingAppends:
    """Consecutive payloads that form one batch."""

    __slots__ = ("entries", "futures", "outcomes", "packed_bytes", "payloads", "shared")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        """The payloads; the list becomes empty when the batch is packed."""
        self.shared: list[SharedPrefix] = []
        """The prefixes that some payloads share, in the order of the payloads."""
        self.entries = 0
        """Number of entries when the group was taken from the queue."""
        self.packed_bytes = 0
        """Size of the batch in bytes, headers and digests included."""
        self.futures: list[Future[int] | Future[range]] = []
        """The futures of the callers. Each future is for one entry, or for several entries of which
        the last is in this group."""
        self.outcomes: list[int | range] = []
        """The result of each future: an entry id, or a range of ids."""

    def add(self, payloads: list[bytes], prefix: bytes) -> None:
        if prefix:
            first = len(self.payloads)
            self.shared.append(SharedPrefix(prefix, first, first + len(payloads)))
        self.payloads += payloads

    def succeed(self) -> None:
        """Set the results of the futures, after the batch was confirmed."""
        for future, outcome in zip(self.futures, self.outcomes, strict=True):
            # A cancelled caller gets no result, but its entry is written.
            if not future.done():
                future.set_result(outcome)  # type: ignore[arg-type]

    def fail(self, error: BookieError) -> None:
        """Fail each future with its own copy of the error; the appends have an unknown outcome."""
        for future in self.futures:
            if not future.done():
                future.set_exception(fresh(error))


class AppendQueue:
    """Appends that are not in a batch yet."""

    def __init__(self, digest_size_bytes: int, entries_max: int, bytes_max: int) -> None:
        self.overhead_bytes = HEADER_SIZE_BYTES + digest_size_bytes
        """Size of an entry's header and digest, in bytes."""
        self.payload_bytes_max = ENTRY_SIZE_BYTES_MAX - self.overhead_bytes
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._full: deque[PendingAppends] = deque()
        self._open = PendingAppends()
        self.next_entry_id = 0

    def __bool__(self) -> bool:
        return bool(self._full) or bool(self._open.payloads)

    @property
    def has_full(self) -> bool:
        return bool(self._full)

    def put(self, payload: bytes, future: Future[int]) -> None:
        """Queue one entry; `future` gets the entry's id when the entry's batch is confirmed."""
        size = len(payload) + self.overhead_bytes
        group = self._open
        if group.packed_bytes + size > self._bytes_max or len(group.payloads) >= self._entries_max:
            group = self._next_group()
        group.payloads.append(payload)
        group.packed_bytes += size
        group.futures.append(future)
        entry_id = self.next_entry_id
        group.outcomes.append(entry_id)
        self.next_entry_id = entry_id + 1

    def put_many(self, new: NewEntries, future: Future[range]) -> None:
        """Queue one or more entries; `future` gets the range of ids when all entries are confirmed.

        Usually all entries fit into the open group. If they do not fit, a bisection finds how many
        entries fit into each group. So no Python code runs for each entry.
        """
        count = len(new.payloads)
        group = self._open
        packed = group.packed_bytes + new.total_bytes + count * self.overhead_bytes
        if packed <= self._bytes_max and len(group.payloads) + count <= self._entries_max:
            group.add(new.payloads, new.prefix)
            group.packed_bytes = packed
        else:
            self._cut(*new)
        first = self.next_entry_id
        self.next_entry_id = first + count
        self._open.futures.append(future)
        self._open.outcomes.append(range(first, self.next_entry_id))

    def _cut(self, payloads: list[bytes], sizes: list[int], _: int, prefix: bytes) -> None:
        """Add the payloads to the open group, and to new groups as soon as a group is full."""
        overhead, count = self.overhead_bytes + len(prefix), len(payloads)
        ends = list(accumulate(sizes, initial=0))
        start = 0
        while start < count:
            group = self._open
            most = min(count - start, self._entries_max - len(group.payloads))
            packed = ends[start] + start * overhead - group.packed_bytes
            fitting = bisect_right(
                range(start + 1, start + most + 1),
                self._bytes_max + packed,
                key=lambda end: ends[end] + end * overhead,
            )
            if not fitting and group.payloads:
                self._next_group()
                continue
            end = start + (fitting or 1)  # an entry larger than a batch forms its own batch
            group.add(payloads[start:end], prefix)
            group.packed_bytes = ends[end] + end * overhead - packed
            start = end

    def take(self) -> PendingAppends:
        """Take the oldest group; the queue must not be empty."""
        if self._full:
            group = self._full.popleft()
        else:
            group, self._open = self._open, PendingAppends()
        group.entries = len(group.payloads)
        assert group.entries
        return group

    def check(self, size_bytes: int) -> None:
        """Raise an error if a payload of this size does not fit into an entry.

        Raises:
            BadRequestError: the payload is too large.
        """
        if size_bytes > self.payload_bytes_max:
            raise BadRequestError(
                f"a payload of {size_bytes} bytes is larger than the {self.payload_bytes_max} "
                f"bytes that fit into an entry"
            )

    def _next_group(self) -> PendingAppends:
        """Close the open group, unless it is empty, and begin another group."""
        if self._open.payloads:
            self._full.append(self._open)
            self._open = PendingAppends()
        return self._open


class ConfirmationWaiters:
    """The callers of `WriterHandle.flush`, in the order of the entries that they wait for."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    def add(self, entry_id: int, waiter: Future[None]) -> None:
        """Add `waiter`; its entry id must not be below the entry ids of earlier waiters."""
        self._waiting.append((entry_id, waiter))

    def confirmed(self, last_entry_id: int) -> None:
        while self._waiting and self._waiting[0][0] <= last_entry_id:
            settle([self._waiting.popleft()[1]], None)

    def fail(self, error: BookieError) -> None:
        """Fail all waiters, each with its own copy of the error, because the writer has ended."""
        waiting, self._waiting = self._waiting, deque()
        settle((waiter for _, waiter in waiting), None, error)


class ForceWaiters:
    """The callers of `WriterHandle.force`.

    A running force may not cover the appends that returned after it began. So a caller that comes
    during a force waits for the next force.
    """

    def __init__(self) -> None:
        self._waiting: list[Future[None]] = []
        self._covered: list[Future[None]] | None = None
        """The callers that the running force covers; None if no force is running."""

    def add(self, waiter: Future[None]) -> None:
        self._waiting.append(waiter)

    def begun(self) -> None:
        """Note that a force has begun, which covers all callers so far."""
        self._covered, self._waiting = self._waiting, []

    def done(self, error: BookieError | None) -> bool:
        """Settle the callers of the force that ended; return True if others need another force.

        If no force was running, then nothing had to be forced, or the writer has ended. In this
        case, settle all callers.
        """
        covered, self._covered = self._covered, None
        if covered is None:
            covered, self._waiting = self._waiting, []
        settle(covered, None, error)
        return bool(self._waiting)

    def fail(self, error: BookieError) -> None:
        """Fail all callers, each with its own copy of the error, because the writer has ended."""
        self.done(error)
        self.done(error)
