"""Become the owner of a partition: claim it, fence and close its open ledgers, add a ledger.

If several processes open a partition at once, each new owner replaces the previous owner. A process
that loses the partition during its takeover pauses and tries again. The pauses double and have
jitter, so that finally one process succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from bookie.errors import (
    BadVersionError,
    BookieError,
    ClockError,
    LedgerError,
    LogTakenOverError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UnavailableError,
)
from bookie.ids import NO_ENTRY
from bookie.ledger.write.handle import WriterHandle
from bookie.log.attempts import patiently
from bookie.log.catalog.log_metadata import LogDefinition, LogHead, LogOwner, LogRange
from bookie.log.catalog.logs import LogPartition
from bookie.log.head.chain import LedgerEnd, end_offset, taken_over
from bookie.log.head.head_keeper import HeadKeeper, adding, closing, taken_over_error
from bookie.log.log_client import LogClient
from bookie.log.record.producers import ProducerWindows
from bookie.log.write.ledger_end import check_last_record, end_of, producers_of
from bookie.metadata.versioned import Versioned
from bookie.telemetry import event_log

T = TypeVar("T")

_log = event_log(__name__)


@dataclass(frozen=True, slots=True)
class Ownership:
    """The state with which a new owner of a partition begins."""

    keeper: HeadKeeper
    writer: WriterHandle
    """The writer of the ledger that was added for the new owner."""
    base_offset: int
    """The offset that the first entry of the new ledger gets."""
    windows: ProducerWindows


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The options of a partition's writer."""

    password: bytes = field(default=b"", repr=False)
    name: str = ""
    """The owner's name in the head. If the name is empty, host and process are used."""
    patience_seconds: float = 30.0
    """The longest time that an operation waits for the store, bookies or another owner."""


async def take_over(
    client: LogClient, partition: LogPartition, definition: LogDefinition, options: WriterOptions
) -> Ownership:
    """Take `partition` from its present owner, if any; return the state for the new owner.

    The call waits for bookies, up to `patience_seconds`. The present owner continues until enough
    bookies have answered.

    Raises:
        LogTakenOverError: in each attempt within `patience_seconds`, another process changed the
            head of the partition first.
        UnauthorizedError: the password is wrong; the present owner continues.
        NoSuchLogError: the log was deleted.
        NoSuchLedgerError: one of the partition's last ledgers does not exist.
        FormatError: this program cannot read the last records.
        NotEnoughBookiesError: for `patience_seconds`, too few bookies for a new ledger answered.
        LedgerRecoveryError: for `patience_seconds`, too few bookies answered a ledger's recovery.
        ClockError: the clock of this machine contradicts the clocks of all bookies.
        MetadataError: the metadata store failed.
    """
    deadline = asyncio.get_running_loop().time() + options.patience_seconds
    return await patiently(
        lambda: _Takeover(client, partition, definition, options, deadline).run(),
        deadline=deadline,
        retried=LogTakenOverError,
    )


class _Takeover:
    """One attempt to take a partition over."""

    def __init__(
        self,
        client: LogClient,
        partition: LogPartition,
        definition: LogDefinition,
        options: WriterOptions,
        deadline: float,
    ) -> None:
        self._client = client
        self._partition = partition
        self._log_id = definition.log_id
        self._options = options
        self._deadline = deadline
        self._is_waiting = False

    async def run(self) -> Ownership:
        """Perform the steps of the takeover in order.

        Raises:
            LogTakenOverError: another process became the owner first. The ledger that this attempt
                created was deleted, or the new owner closes the ledger.
        """
        found = await self._client.logs.read_latest_head(self._partition, self._log_id)
        for one in found.value.ranges[-1:]:
            await self._check_password(found, one)
        await self._check_records(found.value)
        # The takeover ends the present owner only if enough bookies answer to create a new ledger
        # and to recover the open ledgers.
        writer = await self._patiently(lambda: self._prepare(found.value), UnavailableError)
        keeper: HeadKeeper | None = None
        try:
            # A roll by the owner may have changed the head meanwhile.
            found = await self._client.logs.read_latest_head(self._partition, self._log_id)
            keeper = await self._begin_epoch(found)
            ownership = await self._begin(keeper, writer)
        except BookieError:
            await discard(self._client, writer, keeper)
            raise
        except BaseException:
            writer.abandon()  # do not delete the ledger: the head may name it
            raise
        _log.info(
            "log_opened",
            log=str(self._partition),
            epoch=ownership.keeper.head.epoch,
            ledger_id=writer.ledger_id,
        )
        return ownership

    async def _check_password(self, found: Versioned[LogHead], last: LogRange) -> None:
        """Check the password first, so that a wrong password does not end the present owner."""
        try:
            await self._client.ledgers.check_password(last.ledger_id, self._options.password)
        except NoSuchLedgerError:
            # The owner may have removed the ledger because it was empty. If the last range is
            # closed, the takeover does not need its ledger.
            latest = await self._client.logs.read_latest_head(self._partition, self._log_id)
            if latest.version != found.version:
                raise taken_over_error(self._partition, latest.value) from None
            if last.is_open:
                raise

    async def _check_records(self, head: LogHead) -> None:
        """Check that this program can read the newest records, before it ends the present owner."""
        for one in reversed(head.ranges[-2:]):
            # If bookies do not answer, a later step of the takeover waits for them or fails.
            with suppress(UnavailableError, LedgerError):
                base = (one.base_offset or 0) - one.first_entry_id
                password = self._options.password
                if await check_last_record(self._client.ledgers, one.ledger_id, base, password):
                    return

    async def _begin(self, keeper: HeadKeeper, writer: WriterHandle) -> Ownership:
        before = keeper.head
        try:
            ends = [await self._close(one) for one in before.open_ranges]
        except NoSuchLedgerError as error:
            # Another owner may have removed the ledger because it was empty.
            await keeper.refresh()
            raise NoSuchLedgerError(f"the last ledgers of {self._partition}: {error}") from error
        windows = await self._windows(before, ends)
        add, close = adding(writer.ledger_id), closing(ends)
        head = await keeper.change(
            lambda head: add(close(head)),
            # A sweep may delete a ledger that no head has named for a day. It rewrites the head in
            # the same step, so after such a change `check` reads the ledger.
            check=lambda: self._client.ledgers.ledgers.read(writer.ledger_id),
        )
        await remove_empty(self._client, ends)
        return Ownership(keeper, writer, end_offset(head), windows)

    async def _begin_epoch(self, found: Versioned[LogHead]) -> HeadKeeper:
        """Make this process the owner, by a compare-and-set of the head."""
        logs, partition = self._client.logs, self._partition
        clock = self._client.clock
        name = self._options.name or self._client.identity
        # If the reply is lost, the owner's random `claim` in the head shows who wrote the head.
        owner = LogOwner(name, clock.now_ms(), clock.nonce().hex())
        # A deleted log of this name may have had epochs. Each epoch began with a write, so no epoch
        # exceeds the revision of the write that created the new log.
        first = 1 if found.value.epoch else max(1, await logs.revision(partition.name))
        claimed = taken_over(found.value, owner, first_epoch=first)
        try:
            written = await logs.write_head(partition, claimed, found.version)
        except (BadVersionError, MetadataUnavailableError) as error:
            latest = await logs.read_latest_head(partition, self._log_id)
            if latest.value != claimed:
                if isinstance(error, BadVersionError):
                    raise taken_over_error(partition, latest.value) from error
                raise
            written = latest
        patience = self._options.patience_seconds
        return HeadKeeper(logs, partition, written, patience_seconds=patience)

    async def _close(self, one: LogRange) -> LedgerEnd:
        password = self._options.password

        async def close() -> LedgerEnd:
            metadata = await self._client.ledgers.recover(one.ledger_id, password)
            return await end_of(self._client.ledgers, metadata, password)

        return await self._patiently(close, UnavailableError)

    async def _patiently(
        self, attempt: Callable[[], Awaitable[T]], retried: type[BookieError]
    ) -> T:
        """Repeat `attempt` while it raises `retried`, until the deadline of the takeover."""

        async def tell(error: BookieError) -> None:
            if isinstance(error, ClockError):
                raise error  # another attempt does not correct a clock
            if not self._is_waiting:
                self._is_waiting = True
                _log.warning("log_waits_for_bookies", log=str(self._partition), reason=str(error))

        return await patiently(attempt, deadline=self._deadline, retried=retried, on_failure=tell)

    async def _windows(self, head: LogHead, ends: list[LedgerEnd]) -> ProducerWindows:
        """Read the known producers from the newest ledger that has an entry."""
        newest = None
        base = head.open_ranges[0].base_offset or 0 if ends else 0
        for end in ends:
            if end.last_entry_id != NO_ENTRY:
                newest = end, base
            base += end.last_entry_id + 1
        closed = [one for one in head.ranges if not one.is_open]
        if newest is None and closed:
            last = closed[-1]
            end = LedgerEnd(last.ledger_id, last.last_entry_id or 0, None, 0)
            newest = end, (last.base_offset or 0) - last.first_entry_id
        if newest is None:
            return ProducerWindows()
        try:
            return await producers_of(self._client.ledgers, *newest, self._options.password)
        except NoSuchLedgerError:
            return ProducerWindows()  # a truncation has just deleted the ledger

    async def _prepare(self, head: LogHead) -> WriterHandle:
        """Check that enough bookies answer, then create a ledger for the new owner."""
        policy = await self._client.policy(self._partition.name)
        shape = self._client.shape(policy, self._options.password)
        await self._client.require_answers(shape)
        for one in head.open_ranges:
            with suppress(NoSuchLedgerError):
                await self._client.require_recoverable(one.ledger_id)
        tags = self._client.tags(self._partition, self._log_id)
        return await self._client.create_ledger(shape, tags)


async def discard(client: LogClient, writer: WriterHandle, keeper: HeadKeeper | None) -> None:
    """Delete a new ledger that nobody uses, because its creator lost the partition or failed.

    If the head may name the ledger, the ledger stays, and the new owner closes it. If the deletion
    fails, a later sweep deletes the ledger.
    """
    writer.abandon()
    if keeper is not None and keeper.may_name(writer.ledger_id):
        return
    await _delete(client, writer.ledger_id)


async def remove_empty(client: LogClient, ends: list[LedgerEnd]) -> None:
    """Delete the empty ledgers in `ends`, which the chain must no longer name."""
    for end in ends:
        if end.last_entry_id == NO_ENTRY:
            await _delete(client, end.ledger_id)


async def _delete(client: LogClient, ledger_id: int) -> None:
    try:
        await client.ledgers.ledgers.delete(ledger_id)
    except NoSuchLedgerError:
        return
    except BookieError as error:
        _log.warning("log_ledger_left_over", ledger_id=ledger_id, reason=str(error))
