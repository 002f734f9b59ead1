"""The rule of compaction: it selects small consecutive ranges of a partition to be joined.

================================== ==============================================================
rule                               why
================================== ==============================================================
an open range is not joined        its owner still appends to it
the newest closed range is not     a new owner reads the numbers of producers from its ledger
joined
a truncated range is not joined    its ledger is deleted without a copy
neighbours that continue the same  a reader already reads them as one run, so a copy of them saves
ledger count as one *piece*        no ledger
a piece is joined if it is smaller a copy of a large piece costs much and saves little; so a
than `small_bytes`                 large joined range is not joined again
a joined range has at most         one task copies all its pieces, and retention deletes its
`target_bytes` and `PIECES_MAX`    ledger only as a whole
pieces
the times of its pieces differ by  retention by time deletes a joined range only when its last
at most `span_ms_max`              record is old enough
================================== ==============================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from bookie.errors import BadRequestError
from bookie.ids import MAX_ID
from bookie.log.catalog.log_metadata import LogRange
from bookie.log.catalog.log_policy import LogPolicy

PIECES_MAX = 4096
"""The most pieces that a compaction joins to one range.

A copy opens the pieces' ledgers one by one.
"""

RETENTION_SHARE = 10
"""The divisor for a joined range: it has at most 1/10 of the bytes or time that retention keeps."""


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """The limits of size and time by which a compaction selects the ranges to join."""

    small_bytes: int = 64 * 1024 * 1024
    """Only pieces with fewer payload bytes than this are joined."""
    target_bytes: int = 1024 * 1024 * 1024
    """The most payload bytes of a joined range."""
    span_ms_max: int = MAX_ID
    """The most ms between the end times of the first piece and the last piece of a joined range."""

    def validate(self) -> None:
        """Check the sizes.

        Raises:
            BadRequestError: a size is not positive, or `small_bytes` exceeds `target_bytes`.
        """
        if not 0 < self.small_bytes <= self.target_bytes:
            raise BadRequestError(
                f"ledgers below {self.small_bytes} bytes cannot be joined into ledgers of at most "
                f"{self.target_bytes} bytes: both are positive, and the second is not smaller"
            )

    def within(self, policy: LogPolicy) -> CompactionLimits:
        """Return limits so low that retention keeps at most 10 % more because of joined ranges."""
        limits = self
        if policy.retention_seconds:
            span_ms = int(1000 * policy.retention_seconds) // RETENTION_SHARE
            limits = replace(limits, span_ms_max=min(limits.span_ms_max, span_ms))
        if policy.retention_bytes:
            target = max(1, min(limits.target_bytes, policy.retention_bytes // RETENTION_SHARE))
            small = min(limits.small_bytes, target)
            limits = replace(limits, small_bytes=small, target_bytes=target)
        return limits


def runs_to_join(
    ranges: Sequence[LogRange], start_offset: int, limits: CompactionLimits
) -> list[tuple[LogRange, ...]]:
    """Return the runs of consecutive `ranges` to join, in order; each run becomes one range."""
    runs = [_Run()]
    for piece in list(_pieces(ranges))[:-1]:
        is_live = (piece.last.end_offset or 0) > start_offset
        if not is_live or piece.size_bytes >= limits.small_bytes:
            runs.append(_Run())
            continue
        if not runs[-1].has_room(piece, limits):
            runs.append(_Run())
        runs[-1].add(piece)
    return [
        tuple(one for piece in run.pieces for one in piece.ranges)
        for run in runs
        if len(run.pieces) > 1
    ]


@dataclass(slots=True)
class _Piece:
    """One closed range, or several closed ranges that follow each other in the same ledger."""

    ranges: list[LogRange]
    size_bytes: int

    @property
    def last(self) -> LogRange:
        return self.ranges[-1]

    def is_continued_by(self, one: LogRange) -> bool:
        last = self.last
        return (
            last.ledger_id == one.ledger_id
            and last.last_entry_id is not None
            and last.last_entry_id + 1 == one.first_entry_id
        )


def _pieces(ranges: Sequence[LogRange]) -> Iterator[_Piece]:
    piece: _Piece | None = None
    for one in ranges:
        if one.is_open:
            break
        if piece is not None and piece.is_continued_by(one):
            piece.ranges.append(one)
            piece.size_bytes += one.size_bytes or 0
            continue
        if piece is not None:
            yield piece
        piece = _Piece([one], one.size_bytes or 0)
    if piece is not None:
        yield piece


@dataclass(slots=True)
class _Run:
    """Consecutive pieces that may become one range."""

    pieces: list[_Piece] = field(default_factory=list)
    size_bytes: int = 0

    def has_room(self, piece: _Piece, limits: CompactionLimits) -> bool:
        if not self.pieces:
            return True
        span_ms = (piece.last.end_ms or 0) - (self.pieces[0].last.end_ms or 0)
        return (
            len(self.pieces) < PIECES_MAX
            and self.size_bytes + piece.size_bytes <= limits.target_bytes
            and span_ms <= limits.span_ms_max
        )

    def add(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self.size_bytes += piece.size_bytes
