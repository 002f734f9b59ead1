"""Read-ahead divides a long range into short spans, and reads several spans at a time.

While one span is verified, the bookie sends the next span. Each span, a range of ids, is read by
its own `RangeRead`, with its own choice of replicas and its own failures. Entries are delivered in
the order of ids. The entries of a span fit into about one answer. The sizes of earlier entries show
how many ids fill an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bookie.entry.digest import Digester
from bookie.entry.entry import HEADER_SIZE_BYTES, Entry
from bookie.errors import TooManyRequestsError
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Quorum
from bookie.ledger.read.range_read import READ_ENTRIES_MAX, SPAN_BYTES, RangeRead
from bookie.ledger.read.reader import LedgerRead, ReaderLimits

SPANS_MAX = 3
"""The largest number of concurrent spans: one for the consumer, one being verified, one in
flight."""

FIRST_SPAN_ENTRIES = 64
"""The number of ids in each first span of an open ledger, whose entry sizes are unknown."""


class ReadAhead:
    """One read of the entries ``first_entry_id … last_entry_id``, in the order of ids."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        first_entry_id: int,
        last_entry_id: int,
        pool: BookiePool,
        digester: Digester,
        replica: int,
        limits: ReaderLimits,
    ) -> None:
        self._metadata = metadata
        self._position = first_entry_id
        self._last_entry_id = last_entry_id
        self._pool = pool
        self._digester = digester
        self._limits = limits
        self._replica = replica
        self._quorum: Quorum | None = None
        self._suspects = 0
        self.spans_max = SPANS_MAX
        """The largest number of concurrent spans; 1 after a bookie refused several answers at
        once."""
        self._spans: deque[RangeRead] = deque()
        self._span_entries = _first_guess(metadata)

    async def next(self) -> Sequence[Entry]:
        """Return the next entries, at least one; return nothing at the end of the range.

        Raises:
            NoSuchEntryError: every replica denies the next entry.
            BookieError: no replica could return the next entry; one replica failed with this error.
        """
        while True:
            self._fill()
            if not self._spans:
                return ()
            span = self._spans[0]
            try:
                entries = await span.next()
            except TooManyRequestsError:
                if self.spans_max == 1:
                    raise
                # The bookie refuses several answers at once for this reader, so read one span at a
                # time.
                self.spans_max = 1
                self._position = span.machine.position
                await self.close()
                continue
            if span.is_complete:
                self._spans.popleft()
                self._learn(span)
                await span.close()
                self._fill()
            return entries

    async def close(self) -> None:
        while self._spans:
            await self._spans.popleft().close()

    def _fill(self) -> None:
        while self._position <= self._last_entry_id and len(self._spans) < self.spans_max:
            first = self._position
            last = min(first + self._span_entries - 1, self._last_entry_id)
            machine = LedgerRead(
                self._metadata,
                first,
                last,
                replica=self._replica,
                suspects=self._suspects,
                limits=self._limits,
                quorum=self._quorum,
            )
            self._quorum = machine.quorum
            self._position = last + 1
            span = RangeRead(machine, self._pool, self._digester)
            self._spans.append(span)
            span.start()

    def _learn(self, span: RangeRead) -> None:
        """Plan the next spans with the entry size and the replica of a finished span."""
        self._span_entries = _span_of(self._metadata, span.bytes_read // span.entries_read)
        self._replica, self._suspects = span.machine.replica, span.machine.suspects


def _first_guess(metadata: LedgerMetadata) -> int:
    """Guess the number of ids in the first spans; for a closed ledger, use its mean entry size."""
    if metadata.is_closed and metadata.last_entry_id >= 0:
        mean = metadata.length // (metadata.last_entry_id + 1)
        return _span_of(metadata, mean + HEADER_SIZE_BYTES)
    return FIRST_SPAN_ENTRIES


def _span_of(metadata: LedgerMetadata, packet_bytes: int) -> int:
    """Return the number of ids in a span: about one full answer for each class of entries."""
    classes = metadata.ensemble_size if metadata.ensemble_size > metadata.write_quorum_size else 1
    return max(1, min(SPAN_BYTES // packet_bytes, READ_ENTRIES_MAX)) * classes
