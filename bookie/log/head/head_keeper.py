"""The head of a partition, as its owner changes it: one change at a time, each with one outcome.

============================ =====================================================================
what a write comes to        what follows
============================ =====================================================================
written                      the change is made
another version is there     it is read; the owner's own change: made. The same epoch: the change is
                             made on the new head. Another epoch: LogTakenOverError; the change may
                             have been made before (`may_name`)
unknown                      it is read until the store answers, then as above. If the old version
                             is still there, the *same* head is written again: the first write may
                             arrive late, and must not meet a different second one
============================ =====================================================================

A write may be made and not answered, and somebody may then truncate the partition. So the change is
asked for again although it is in the head. The steps here leave such a head as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from bookie.env import Backoff, jitter
from bookie.env.backoff import AROUND
from bookie.env.clock import moment_text
from bookie.errors import (
    BadVersionError,
    BookieError,
    LogTakenOverError,
    MetadataUnavailableError,
    NoSuchLogError,
    SessionLostError,
)
from bookie.log.catalog.log_metadata import LogChunk, LogHead
from bookie.log.catalog.logs import LogManager, LogPartition
from bookie.log.head.chain import LedgerEnd, seal, with_closed, with_ledger
from bookie.metadata.versioned import Versioned

HeadStep = Callable[[LogHead], LogHead]
"""A pure step of :mod:`bookie.log.head.chain`."""

HeadCheck = Callable[[], Awaitable[object]]
"""Raises if a step must not be taken any more."""


def adding(ledger_id: int) -> HeadStep:
    """A step after which a ledger is the last, open range."""

    def step(head: LogHead) -> LogHead:
        is_there = any(one.ledger_id == ledger_id for one in head.open_ranges)
        return head if is_there else with_ledger(head, ledger_id)

    return step


def closing(ends: Sequence[LedgerEnd]) -> HeadStep:
    """A step after which the ranges of some ledgers, the oldest one first, are closed."""

    def step(head: LogHead) -> LogHead:
        for end in ends:
            if any(one.ledger_id == end.ledger_id for one in head.open_ranges):
                head = with_closed(head, end)
        return head

    return step


PAUSE_SECONDS_MIN = 0.02
PAUSE_SECONDS_MAX = 2.0
"""Pauses between questions to a store that does not answer; they double, and vary."""


class HeadKeeper:
    """The head of one epoch. Use it from one task at a time."""

    def __init__(
        self,
        logs: LogManager,
        partition: LogPartition,
        found: Versioned[LogHead],
        *,
        patience_seconds: float,
    ) -> None:
        """`found` is the head in which the owner's epoch began.

        After `patience_seconds` without an answer of the store, an operation gives up.
        """
        self._logs = logs
        self._partition = partition
        self._found = found
        self._patience_seconds = patience_seconds
        self._latest = found.value
        """As read last, also if it is of another epoch."""

    @property
    def head(self) -> LogHead:
        """The head as of the last change or look."""
        return self._found.value

    @property
    def log_id(self) -> str:
        """The id of the log."""
        return self.head.log_id

    def may_name(self, ledger_id: int) -> bool:
        """Whether the head as read last names a ledger.

        A change may have been made although the partition was then taken over: the head of the new
        owner names the ledger, until that owner has closed it.
        """
        return any(one.ledger_id == ledger_id for one in self._latest.ranges)

    async def change(self, step: HeadStep, *, check: HeadCheck | None = None) -> LogHead:
        """Take `step`, on the newest head; returns the head after it.

        If somebody else changed the head, `check` runs before the step is taken on the new one.

        Raises:
            LogTakenOverError: another owner has the partition; the step was not taken.
            NoSuchLogError: the log was deleted.
            MetadataUnavailableError: unknown whether it was taken.
        """
        while True:
            head, sealed = seal(step(self.head))
            written = await self._write(head, sealed)
            if written is not None:
                self._found = written
                return written.value
            if check is not None:
                await check()

    async def refresh(self) -> LogHead:
        """Read the head as of now, and check that this owner still has the partition.

        Raises:
            LogTakenOverError, NoSuchLogError, MetadataUnavailableError: as `change`.
        """
        found = await self._read()
        self._adopt(found)
        return found.value

    async def _write(
        self, head: LogHead, sealed: tuple[LogChunk, ...]
    ) -> Versioned[LogHead] | None:
        """Write a head; None if somebody else's change came first, which is adopted then."""
        version = self._found.version
        deadline = _now() + self._patience_seconds
        while True:
            try:
                return await self._logs.write_head(self._partition, head, version, sealed=sealed)
            except BadVersionError:
                found = await self._read()
            except (MetadataUnavailableError, SessionLostError):
                found = await self._read()
                if found.version == version and _now() < deadline:
                    continue
                if found.version == version:
                    raise
            if found.value == head:
                return found
            self._adopt(found)
            return None

    async def _read(self) -> Versioned[LogHead]:
        """The head as of now, however long the store takes to answer, within the patience."""
        deadline = _now() + self._patience_seconds
        pauses = Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, jitter, AROUND)
        while True:
            try:
                return await self._logs.read_latest_head(self._partition, self.log_id)
            except (MetadataUnavailableError, SessionLostError):
                if _now() >= deadline:
                    raise
            await asyncio.sleep(pauses.next())

    def _adopt(self, found: Versioned[LogHead]) -> None:
        self._latest = found.value
        if found.value.epoch != self.head.epoch:
            if not found.value.epoch:
                raise NoSuchLogError(f"the log {self._partition.name} was deleted")
            raise taken_over_error(self._partition, found.value)
        self._found = found


def taken_over_error(partition: LogPartition, head: LogHead) -> LogTakenOverError:
    """The error of a former owner."""
    owner = head.owner
    if owner is None:
        return LogTakenOverError(f"another process has owned {partition} meanwhile")
    since = moment_text(owner.since_ms)
    return LogTakenOverError(
        f"{owner.name} took {partition} over at {since}",
        owner=owner.name,
        since_ms=owner.since_ms,
    )


def is_unanswered(error: BookieError) -> bool:
    """Whether the store may answer later."""
    return isinstance(error, MetadataUnavailableError | SessionLostError)


def _now() -> float:
    return asyncio.get_running_loop().time()
