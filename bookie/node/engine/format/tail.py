"""Decides if the invalid block after the readable part of a file is torn or corrupt.

Replay reads a file's blocks in order until the block at some offset X is invalid. If the invalid
block was never synced, the bookie acknowledged none of its content: the tail is **torn**, and the
file ends at X. If the invalid block was synced, acknowledged entries or fences are lost: this is
**corruption**. After corruption, the bookie must check a ledger before it may say that an entry of
the ledger does not exist. A wrong verdict loses data or availability.

Three witnesses (facts on disk) can prove that the block at X was synced. Each witness is written
only after the sync that it proves:

- the **mark** in the index, if the mark is above X. A checkpoint syncs the file up to the mark.
- a **later block** of the same file, found at any block boundary. The later block says that the
  file was synced beyond X when this later block was written.
- the **successor**. The first block of the next file says that this file ends above X. A file is
  synced before the next file is started.

A valid block after X proves nothing by itself, because the disk may write two unsynced blocks in
any order.

Two states **cannot come from a crash**: a misplaced block at X, or a file that was cut before its
reserved end. Both states show that the device lost or misplaced a write, so all content of the
device is in doubt.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """The verdict about an invalid block: torn or corrupt."""

    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class TailEvidence:
    """Facts on disk that show if the invalid block at offset X was synced."""

    mark_beyond: bool
    later_block_durable_beyond: bool
    successor_says_ended_beyond: bool
    left_by_no_crash: bool


@dataclass(frozen=True, slots=True)
class TailRule:
    """A row of the decision table; None in a column matches both True and False."""

    mark_beyond: bool | None
    later_block_durable_beyond: bool | None
    successor_says_ended_beyond: bool | None
    left_by_no_crash: bool | None
    verdict: Verdict
    because: str

    def matches(self, evidence: TailEvidence) -> bool:
        pairs = (
            (self.mark_beyond, evidence.mark_beyond),
            (self.later_block_durable_beyond, evidence.later_block_durable_beyond),
            (self.successor_says_ended_beyond, evidence.successor_says_ended_beyond),
            (self.left_by_no_crash, evidence.left_by_no_crash),
        )
        return all(wanted is None or wanted == given for wanted, given in pairs)


TAIL_RULES: tuple[TailRule, ...] = (
    TailRule(
        True,
        None,
        None,
        None,
        Verdict.CORRUPT,
        "a checkpoint ended beyond the block, so it had been synced",
    ),
    TailRule(
        False,
        True,
        None,
        None,
        Verdict.CORRUPT,
        "a later block was written when the file had been synced beyond this one",
    ),
    TailRule(
        False,
        False,
        True,
        None,
        Verdict.CORRUPT,
        "the next file was started after this one had been synced beyond the block",
    ),
    TailRule(
        False,
        False,
        False,
        True,
        Verdict.CORRUPT,
        "a crash tears a write, it neither moves a block nor shortens a file",
    ),
    TailRule(
        False,
        False,
        False,
        False,
        Verdict.TORN,
        "no witness proves that the block had been synced, so nothing in it was acknowledged",
    ),
)
"""The decision table; for any evidence, exactly one row matches."""


def evaluate(evidence: TailEvidence) -> TailRule:
    """Return the row that matches the evidence; the row holds the verdict and the reason."""
    (rule,) = (rule for rule in TAIL_RULES if rule.matches(evidence))
    return rule


def gather_evidence(
    invalid_at: int,
    *,
    mark_offset: int | None,
    later_durable_upto: int | None,
    successor_end: int | None,
    left_by_no_crash: bool,
) -> TailEvidence:
    """Turn offsets into evidence about the invalid block at `invalid_at`.

    Args:
        invalid_at: offset of the first invalid block in its file.
        mark_offset: offset of the index's mark in this file; None if the mark is in an earlier
            file, or if there is no mark. If the mark is in a later file, give any offset above
            this file's size.
        later_durable_upto: the highest `durable_upto` of the valid blocks after `invalid_at`; None
            if there is no such block.
        successor_end: the end of this file in the LINK record of the next file, or None.
        left_by_no_crash: True if a misplaced block is at `invalid_at`, or the file was cut.
    """
    return TailEvidence(
        mark_beyond=mark_offset is not None and mark_offset > invalid_at,
        later_block_durable_beyond=(
            later_durable_upto is not None and later_durable_upto > invalid_at
        ),
        successor_says_ended_beyond=successor_end is not None and successor_end > invalid_at,
        left_by_no_crash=left_by_no_crash,
    )
