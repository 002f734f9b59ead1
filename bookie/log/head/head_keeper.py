"""The owner's changes of a partition's head: one at a time, each made once or not at all.

============================ =====================================================================
outcome of a write           reaction
============================ =====================================================================
written                      the change is made
another version is stored    read the stored head. If it equals the head to write, the change is
                             made. Otherwise, if the epoch is the same, make the change on the
                             stored head. If the epoch is another one, raise LogTakenOverError: the
                             change may have been made before the takeover (`may_name`)
unknown                      read until the store answers, then react as above. If the old version
                             is still stored, write the *same* head again. Then the result is the
                             same if both writes take effect
============================ =====================================================================

The store may make a write whose answer is lost. If another process then truncates the partition,
the owner does not find its own head in the store, and applies its step again. So a step must change
nothing if the head already has the change of this step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from bookie.env.clock import moment_text
from bookie.errors import BadVersionError, LogTakenOverError, NoSuchLogError
from bookie.log.attempts import UNANSWERED, patiently
from bookie.log.catalog.log_metadata import LogChunk, LogHead
from bookie.log.catalog.logs import LogManager, LogPartition
from bookie.log.head.chain import LedgerEnd, seal, with_closed, with_ledger
from bookie.metadata.versioned import Versioned

HeadStep = Callable[[LogHead], LogHead]
"""A function that takes a head and returns the changed head (:mod:`bookie.log.head.chain`)."""

HeadCheck = Callable[[], Awaitable[object]]
"""A function that raises an error if the owner must no longer apply its step."""


def adding(ledger_id: int) -> HeadStep:
    """Return a step that adds a ledger as the last range. The new range is open."""

    def step(head: LogHead) -> LogHead:
        is_there = any(one.ledger_id == ledger_id for one in head.open_ranges)
        return head if is_there else with_ledger(head, ledger_id)

    return step


def closing(ends: Sequence[LedgerEnd]) -> HeadStep:
    """Return a step that closes the ranges of the ledgers in `ends`, oldest first."""

    def step(head: LogHead) -> LogHead:
        for end in ends:
            if any(one.ledger_id == end.ledger_id for one in head.open_ranges):
                head = with_closed(head, end)
        return head

    return step


class HeadKeeper:
    """Reads and changes a partition's head for one owner, during this owner's epoch.

    The head is the metadata record of the partition's newest ranges and its owner. Use a keeper
    from one task at a time.
    """

    def __init__(
        self,
        logs: LogManager,
        partition: LogPartition,
        found: Versioned[LogHead],
        *,
        patience_seconds: float,
    ) -> None:
        """`found` is the head with which the owner's epoch began.

        A call fails if the store does not answer for `patience_seconds`.
        """
        self._logs = logs
        self._partition = partition
        self._found = found
        self._patience_seconds = patience_seconds
        self._latest = found.value
        """The head that was read last; this head may belong to another owner's epoch."""

    @property
    def head(self) -> LogHead:
        return self._found.value

    @property
    def log_id(self) -> str:
        return self.head.log_id

    def may_name(self, ledger_id: int) -> bool:
        """True if the head that was read last names the ledger.

        After LogTakenOverError, this head belongs to the new owner. If this owner's ledger was
        added before the takeover, the head names the ledger at least until the new owner closes it.
        """
        return any(one.ledger_id == ledger_id for one in self._latest.ranges)

    async def change(self, step: HeadStep, *, check: HeadCheck | None = None) -> LogHead:
        """Apply `step` to the newest head, write the result, and return the new head.

        If another process has changed the head, `check` runs before `step` is applied again.

        Raises:
            LogTakenOverError: another owner has the partition. If an earlier write got no answer,
                the change may have been made before the takeover (`may_name`).
            NoSuchLogError: the log was deleted.
            MetadataUnavailableError, SessionLostError: the store did not answer; the change may
                have been made.
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
        """Read the head, and check that this owner still has the partition.

        Raises:
            LogTakenOverError: another owner has the partition.
            NoSuchLogError: the log was deleted.
            MetadataUnavailableError, SessionLostError: the store did not answer.
        """
        found = await self._read()
        self._adopt(found)
        return found.value

    async def _write(
        self, head: LogHead, sealed: tuple[LogChunk, ...]
    ) -> Versioned[LogHead] | None:
        """Write a head. If another process wrote a head first, adopt that head and return None."""
        version = self._found.version
        deadline = _now() + self._patience_seconds
        while True:
            try:
                return await self._logs.write_head(self._partition, head, version, sealed=sealed)
            except BadVersionError:
                found = await self._read()
            except UNANSWERED:
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
        """Read the head. If the store does not answer, try again for `patience_seconds`."""
        return await patiently(
            lambda: self._logs.read_latest_head(self._partition, self.log_id),
            deadline=_now() + self._patience_seconds,
            retried=UNANSWERED,
        )

    def _adopt(self, found: Versioned[LogHead]) -> None:
        self._latest = found.value
        if found.value.epoch != self.head.epoch:
            if not found.value.epoch:
                raise NoSuchLogError(f"the log {self._partition.name} was deleted")
            raise taken_over_error(self._partition, found.value)
        self._found = found


def taken_over_error(partition: LogPartition, head: LogHead) -> LogTakenOverError:
    """Return the error for a former owner. The error names the owner in `head`, if there is one."""
    owner = head.owner
    if owner is None:
        return LogTakenOverError(f"another process has owned {partition} meanwhile")
    since = moment_text(owner.since_ms)
    return LogTakenOverError(
        f"{owner.name} took {partition} over at {since}",
        owner=owner.name,
        since_ms=owner.since_ms,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
