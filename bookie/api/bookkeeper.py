"""`BookKeeper`, the client of a cluster, for ledgers and logs.

The methods of `BookKeeper` check arguments, and their docstrings state the guarantees.
`bookie.ledger` and `bookie.log` do the work.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Literal

from bookie.api.connection import ClusterConnection
from bookie.api.maintenance import Maintenance
from bookie.entry.digest import DigestType
from bookie.env import Moment, moment_ms
from bookie.env.checked import checked
from bookie.errors import (
    BadRequestError,
)
from bookie.ledger.ledger_client import LedgerShape
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Quorum
from bookie.ledger.read.handle import ReaderHandle
from bookie.ledger.recover.explain import explain_ledger
from bookie.ledger.recover.explanation import LedgerExplanation
from bookie.ledger.write.creating import creating
from bookie.ledger.write.handle import WriterHandle
from bookie.log.catalog.groups import list_groups
from bookie.log.catalog.log_metadata import LogMode
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.consume.commit import AutoCommit
from bookie.log.consume.consumer import LogConsumer
from bookie.log.consume.cursors import Cursors
from bookie.log.consume.group import GroupMember, GroupStatus, group_status
from bookie.log.publish.publisher import LogPublisher
from bookie.log.publish.range_writer import RangeWriter
from bookie.log.read.partitions_reader import PartitionsReader, open_reader
from bookie.log.read.reader import LogReader, OnTruncated
from bookie.log.read.reading import LogReading
from bookie.log.read.start_position import LogStart
from bookie.log.read.status import LogStatus, log_status
from bookie.log.read.survey import LogSurvey, await_records
from bookie.log.record.log_record import LogPosition, LogRecord
from bookie.log.tidy.deletion import delete_log
from bookie.log.tidy.sweep import OLDER_THAN_SECONDS, LogSweep, sweep_logs
from bookie.log.tidy.truncation import truncate
from bookie.log.write.takeover import WriterOptions
from bookie.log.write.writer import LogWriter, open_writer

DigestName = Literal["crc32c", "crc32", "hmac", "dummy"]


class BookKeeper(ClusterConnection):
    """A client of one cluster: an async context manager, made by `connect`.

    The end of the context, or `aclose`, closes all connections and abandons writers that are still
    open. The ledgers of these writers stay open until a recovery. Appends that still wait raise
    ClientClosedError; their outcome is unknown.
    """

    @creating
    @checked
    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        password: bytes = b"",
        digest_type: DigestName | DigestType = "crc32c",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
        allow_degraded: bool = False,
    ) -> WriterHandle:
        """Create a ledger and return its writer; the ledger never gets another writer.

        Await it, or enter it: ``async with bk.create_ledger() as writer`` closes the ledger
        at the end of the block.

        Args:
            ensemble_size: bookies that the ledger is spread over.
            write_quorum_size: bookies that each entry is written to.
            ack_quorum_size: bookies that must have stored an entry before `append` returns.
            password: readers and recoveries must give it; only a derived key is stored.
            digest_type: ``crc32c``, ``crc32``, ``hmac`` or ``dummy``.
            custom_metadata: kept with the ledger, for the user.
            ledger_id: an id that no ledger ever had; None takes a fresh one.
            deferred_sync: `append` returns before entries are durable; `force` makes them durable.
                A bookie of this ledger that fails is skipped, never replaced.
            allow_degraded: create the ledger even with fewer writable bookies than `ensemble_size`,
                as long as each write set has an ack quorum of writable bookies. Slots without a
                bookie stay vacant (``vacant.2``), as if their bookies had failed. Entries have
                fewer copies until new bookies fill these slots.

        Raises:
            NotEnoughBookiesError: fewer writable bookies than `ensemble_size`, or than
                `allow_degraded` needs, or `placement.enforce` forbids all choices.
            LedgerExistsError: `ledger_id` is taken, or was.
            StoreWentBackError: the metadata store was set back to an older state and would give out
                used ids again.
            BadRequestError: sizes or digest type are wrong.
            WeakDigestError: ``client.digest_least`` refuses the digest type.
            MetadataError: the metadata store failed; a ledger may have been created.
        """
        shape = LedgerShape(
            Quorum(ensemble_size, write_quorum_size, ack_quorum_size),
            _digest_type(digest_type),
            password,
            deferred_sync=deferred_sync,
            allow_degraded=allow_degraded,
        )
        return await self._ledgers_here.create(shape, custom_metadata, ledger_id)

    @creating
    @checked
    async def claim_ledger(self, ledger_id: int, *, password: bytes = b"") -> WriterHandle:
        """Become the writer of a ledger that another client created but did not write to.

        Await it, or enter it, as with `create_ledger`.

        A ledger that can be claimed has the key `UNCLAIMED` in its custom metadata, and no entry.
        If several clients claim the ledger at once, only one succeeds, because a compare-and-set
        removes the key. The same step fills vacant slots (`allow_degraded`) with bookies that have
        become available.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            UnauthorizedError: the password is wrong.
            WeakDigestError: ``client.digest_least`` refuses the ledger's digest type.
            LedgerClosedError: the ledger already has or had its one writer.
            MetadataError: the metadata store failed; unknown whether the ledger was claimed.
        """
        return await self._ledgers_here.claim(ledger_id, password)

    @checked
    async def open_ledger(
        self, ledger_id: int, *, password: bytes = b"", recover: bool = False
    ) -> ReaderHandle:
        """Open a ledger for reading.

        Without `recover` the ledger's writer continues. The reader of an open ledger reads up to
        the last add confirmed, and can follow the ledger. With `recover` the call fences the ledger
        and closes it. The closed ledger has every acknowledged entry, and the writer gets
        LedgerFencedError.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            UnauthorizedError: the password is wrong.
            WeakDigestError: ``client.digest_least`` refuses the ledger's digest type.
            NotEnoughBookiesError: too few bookies answered to tell where the ledger ends.
            LedgerRecoveryError: too few bookies answered the recovery; try again.
            MetadataError: the metadata store failed.
        """
        return await self._ledgers_here.open(ledger_id, password, recover=recover)

    @checked
    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger: nobody can open it again, and bookies free its space later.

        A writer or reader that has the ledger open is not warned. Bookies learn of deletions by
        listing the cluster's ledgers, within seconds or, in a large cluster, minutes. Until then
        appends to the deleted ledger may still be acknowledged. Afterwards bookies refuse appends
        as if the ledger were fenced. The writer's `close` raises NoSuchLedgerError.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            MetadataError: the metadata store failed; unknown whether the ledger was deleted.
        """
        await self._ledgers_here.ledgers.delete(ledger_id)

    @checked
    async def list_ledgers(self, *, after: int = -1) -> AsyncIterator[int]:
        """Yield the ids above `after` of all ledgers, ascending; raise if some cannot be listed.

        Raises:
            MetadataError: the metadata store failed.
        """
        async for ledger_id in self._ledgers_here.ledgers.list_ids(after):
            yield ledger_id

    @checked
    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return the present metadata of a ledger.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            MetadataError: the metadata store failed.
        """
        return (await self._ledgers_here.ledgers.read(ledger_id)).value

    @checked
    async def explain_ledger(self, ledger_id: int) -> LedgerExplanation:
        """Explain what a recovery of the ledger would decide now; fence and write nothing.

        The call asks the bookies of the ledger's last ensemble, and shows each answer.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            MetadataError: the metadata store failed.
        """
        entered = self._ledgers_here
        found = await entered.ledgers.read_latest(ledger_id)
        return await explain_ledger(found, entered.pool, entered.ensembles)

    # -- logs --------------------------------------------------------------------------------------

    @checked
    async def create_log(
        self,
        name: str,
        *,
        partitions: int | None = None,
        transactional: bool = False,
        policy: LogPolicy | None = None,
    ) -> None:
        """Make a log with its partitions.

        Args:
            name: ``log``, or ``namespace/log``.
            partitions: the number of partitions, fixed for ever; None takes the policy's number.
            transactional: records enter the log only by `publish`; the log has no writer.
            policy: the settings of this log; the namespace decides all other settings.

        Raises:
            LogExistsError: the name is taken.
            NoSuchKeyError: there is no such namespace.
            BadRequestError: a name or a number is wrong.
        """
        mode = LogMode.TRANSACTIONAL if transactional else LogMode.WRITER
        await self._logs_here.create(
            LogName.parse(name), mode=mode, partitions=partitions, policy=policy
        )

    @creating
    @checked
    async def open_log(
        self,
        name: str,
        *,
        partition: int | None = None,
        password: bytes = b"",
        owner: str = "",
        patience_seconds: float = 30.0,
        create: bool = True,
    ) -> LogWriter:
        """Become the owner of a log and return its writer; the former owner gets LogTakenOverError.

        Await it, or enter it: ``async with bk.open_log("orders") as log`` closes the log at
        the end of the block.

        Args:
            name: ``log``, or ``namespace/log``.
            partition: own this partition only; with None, own all partitions.
            password: the password of all ledgers of the log.
            owner: the name of this owner in other clients' errors; by default host and process.
            patience_seconds: the longest wait for bookies, the metadata store or another owner that
                opens the log at the same time. A writer that has waited so long ends.
            create: make the log if it does not exist.

        Raises:
            NoSuchLogError: the log does not exist, and `create` is False.
            LogTakenOverError: other clients opened the log again and again meanwhile.
            UnauthorizedError: the password is wrong.
            BadRequestError: the log is transactional, or has no such partition.
            UnavailableError: bookies did not answer.
            MetadataError: the metadata store failed.
        """
        options = WriterOptions(password, owner, patience_seconds)
        return await open_writer(
            self._logs_here,
            LogName.parse(name),
            partition=partition,
            options=options,
            create=create,
        )

    @checked
    async def log_reader(
        self,
        name: str,
        *,
        start: LogStart = None,
        start_time: Moment | None = None,
        end: int | LogPosition | tuple[int, int] | None = None,
        follow: bool = False,
        partition: int | None = None,
        password: bytes = b"",
        on_truncated: OnTruncated = "raise",
    ) -> LogReader | PartitionsReader:
        """Return a reader of a log, to iterate over; it also has `batches`, `seek` and `lag`.

        A reader never fences or writes. A reader of several partitions returns their records as
        they arrive; records of one partition stay in order.

        Args:
            name: ``log``, or ``namespace/log``.
            start: ``earliest`` (or None), ``latest``, an offset, a record's position, or (ledger
                id, entry id).
            start_time: instead of `start`: begin at the first record of this time or later. A time
                is a datetime with a zone, or ms since 1970.
            end: an offset or a position; only records before it are read.
            follow: wait for new records, for ever or up to `end`. Without `follow`, reading ends
                with the last record that is confirmed when the reader gets there.
            partition: read this partition only.
            password: the password of the log's ledgers.
            on_truncated: ``raise`` LogTruncatedError if the next record was truncated, or ``skip``
                to the earliest one.

        Raises:
            NoSuchLogError: the log does not exist.
            BadRequestError: an argument is wrong.
            MetadataError: the metadata store failed.
        """
        return await open_reader(
            self._logs_here,
            LogName.parse(name),
            partition,
            start=start,
            start_time=start_time,
            end=end,
            follow=follow,
            password=password,
            on_truncated=on_truncated,
        )

    @checked
    async def read_log(
        self,
        name: str,
        *,
        start: LogStart = None,
        start_time: Moment | None = None,
        end: int | LogPosition | tuple[int, int] | None = None,
        follow: bool = False,
        partition: int | None = None,
        password: bytes = b"",
        on_truncated: OnTruncated = "raise",
    ) -> AsyncGenerator[LogRecord, None]:
        """Yield the records of a log, one by one, in their order. See `log_reader`.

        To stop reading, leave the loop or close the generator.

        Raises:
            LogTruncatedError: the next record was truncated; the error names the earliest one.
            NoSuchLogError: there is no such log, or it was deleted meanwhile.
            UnavailableError, CorruptionError: a record could not be read from any bookie.
        """
        reader = await self.log_reader(
            name,
            start=start,
            start_time=start_time,
            end=end,
            follow=follow,
            partition=partition,
            password=password,
            on_truncated=on_truncated,
        )
        async with aclosing(reader.records()) as records:
            async for record in records:
                yield record

    @checked
    def consume(
        self,
        name: str,
        *,
        cursor: str,
        partition: int | None = None,
        start: LogStart = None,
        start_time: Moment | None = None,
        create: bool = True,
        auto_commit: AutoCommit | None = None,
        password: bytes = b"",
        on_truncated: OnTruncated = "raise",
    ) -> LogConsumer:
        """Return a consumer of one partition; enter it to hold the cursor, then iterate it.

        ``async with bk.consume("orders", cursor="billing") as consumer`` begins at the cursor.
        `LogConsumer.commit` moves the cursor behind the records that were handed out. Another
        consumer of the same cursor waits until this consumer ends. A consumer that was stopped for
        too long cannot move the cursor: it gets CursorLostError.

        Args:
            name: ``log``, or ``namespace/log``.
            cursor: the name of the cursor.
            partition: the number of the partition; required if the log has several.
            start: where a new cursor begins; see `log_reader`.
            start_time: instead of `start`: a new cursor begins at the first record of this time or
                later.
            create: make the cursor if it does not exist.
            auto_commit: how often finished records are committed automatically; None: never.
            password: the password of the log's ledgers.
            on_truncated: see `log_reader`.

        Raises:
            BadRequestError: a name or the start is wrong.
        """
        reading = LogReading(self._logs, password, on_truncated)
        return LogConsumer(
            self._logs,
            name,
            reading,
            cursor=cursor,
            partition=partition,
            start=start,
            start_time=start_time,
            create=create,
            auto_commit=auto_commit,
        )

    @checked
    def join_group(
        self,
        group: str,
        *,
        logs: Iterable[str] = (),
        pattern: str = "",
        member: str = "",
        start: LogStart = None,
        start_time: Moment | None = None,
        auto_commit: AutoCommit | None = None,
        on_change: Callable[[frozenset[LogPartition]], object] = lambda _: None,
        password: bytes = b"",
        on_truncated: OnTruncated = "raise",
    ) -> GroupMember:
        """Return a member of a group that shares logs; enter it to join the group, then iterate it.

        Each partition has one member at a time. When members join or leave, as few partitions as
        possible change their member. The group's cursors have the group's name.

        Args:
            group: the name of the group.
            logs: the names of logs. The group consumes a missing log as soon as it is created.
            pattern: a pattern for further logs of one namespace: ``orders-*``, ``sales/*``.
            member: a name that no other member has; generated if empty. A member that rejoins under
                its name gets its former partitions, as far as the balance allows.
            start: where the group begins in a partition that is new to it; see `log_reader`.
            start_time: instead of `start`: begin at the first record of this time or later.
            auto_commit: how often finished records are committed automatically; None: never.
            on_change: called with this member's partitions after each change; it must not raise.
            password: the password of the ledgers of all these logs.
            on_truncated: see `log_reader`.

        Raises:
            BadRequestError: a name is wrong, or neither logs nor a pattern are given.
        """
        reading = LogReading(self._logs, password, on_truncated)
        return GroupMember(
            self._logs,
            group,
            reading,
            logs=logs,
            pattern=pattern,
            member=member,
            start=start,
            start_time=start_time,
            auto_commit=auto_commit,
            on_change=on_change,
        )

    @checked
    def cursors(self, name: str, *, password: bytes = b"") -> Cursors:
        """Return the cursors of a log, to create, reset or delete them, or to see their lag."""
        return Cursors(self._logs, LogName.parse(name), LogReading(self._logs, password))

    @checked
    async def group_status(self, group: str, *, password: bytes = b"") -> GroupStatus:
        """Return the state of a group: its members, their partitions and their lag.

        Raises:
            NoSuchKeyError: the group never existed.
            UnavailableError: too few bookies answered to tell where a partition ends.
        """
        return await group_status(self._logs_here, group, LogReading(self._logs_here, password))

    async def list_groups(self) -> Sequence[str]:
        """Return the names of all groups that ever had a member."""
        return await list_groups(self._logs_here.store)

    @checked
    async def list_logs(self, namespace: str | None = None) -> AsyncIterator[str]:
        """Yield the names of all logs, or of the logs of a namespace."""
        async for name in self._logs_here.logs.list_logs(namespace):
            yield str(name)

    # -- transactional logs ------------------------------------------------------------------------

    @checked
    def publisher(self, name: str) -> LogPublisher:
        """Return a publisher, which publishes each batch to a transactional log exactly once."""
        return LogPublisher(self._logs, LogName.parse(name))

    @checked
    async def open_range_writer(
        self, name: str, application: str, *, partition: int = 0, password: bytes = b""
    ) -> RangeWriter:
        """Return a writer for one partition; `publisher.publish` publishes its records later.

        The log must be transactional. Readers see the records after their publication. Enter the
        writer to close its ledger at the end of the block.

        Args:
            name: ``log``, or ``namespace/log``.
            application: the id under which the ranges will be published.
            partition: the number of the partition.
            password: the password of all ledgers of the log.

        Raises:
            NoSuchLogError: there is no such log.
            BadRequestError: the log is not transactional, or has no such partition.
        """
        place = LogPartition(LogName.parse(name), partition)
        return await RangeWriter.open(self._logs_here, place, application, password=password)

    # -- keeping house -----------------------------------------------------------------------------

    def maintenance(self) -> Maintenance:
        """Return the object that lists ledgers and logs, and audits and repairs copies."""
        return Maintenance(self._logs)

    @checked
    async def log_status(self, name: str, *, password: bytes = b"") -> LogStatus:
        """Return a log's definition, and the present ends of its partitions.

        Raises:
            NoSuchLogError: there is no such log.
            NotEnoughBookiesError: too few bookies answered to tell where a partition ends.
        """
        return await log_status(self._logs_here, LogName.parse(name), password)

    @checked
    async def survey_log(self, name: str, *, password: bytes = b"") -> LogSurvey:
        """Return a survey that locates a log's records, for readers that split the work.

        Raises:
            NoSuchLogError: there is no such log.
        """
        return await LogSurvey.open(self._logs_here, LogName.parse(name), password)

    @checked
    async def await_records(
        self,
        offsets: Mapping[tuple[str, int], int],
        *,
        password: bytes = b"",
        timeout_seconds: float,
    ) -> bool:
        """Wait until one of the partitions has a record at or after its offset in `offsets`.

        The call returns True if there is such a record, and False after the timeout. The call
        fences and writes nothing.

        Raises:
            NoSuchLogError: a log does not exist.
        """
        places = {LogPartition(LogName.parse(log), at): n for (log, at), n in offsets.items()}
        return await await_records(
            self._logs_here, places, password=password, timeout_seconds=timeout_seconds
        )

    @checked
    async def truncate_log(
        self,
        name: str,
        *,
        partition: int = 0,
        before: int | LogPosition | None = None,
        before_time: Moment | None = None,
    ) -> int:
        """Truncate a partition before an offset, a position or a time; return its first offset.

        Readers of earlier records get LogTruncatedError. The log's writer continues. `before_time`
        removes whole ledgers from the beginning of the partition. A ledger is removed only if all
        its records are older.

        Raises:
            NoSuchLogError: there is no such log.
            BadRequestError: not exactly one bound is given; or the offset is in the ledger that is
                written now: roll the log first.
            MetadataError: the metadata store failed; truncate again to be sure.
        """
        before_ms = None if before_time is None else moment_ms(before_time)
        place = LogPartition(LogName.parse(name), partition)
        return await truncate(self._logs_here, place, before=before, before_ms=before_ms)

    @checked
    async def delete_log(self, name: str) -> None:
        """Delete a log with all its ledgers and cursors. After an interruption, repeat the call.

        The log's writer and its readers get NoSuchLogError.

        Raises:
            NoSuchLogError: there is no such log.
            MetadataError: the metadata store failed; delete the log again to finish.
        """
        await delete_log(self._logs_here, LogName.parse(name))

    @checked
    async def sweep_logs(
        self, *, older_than_seconds: float = OLDER_THAN_SECONDS, dry_run: bool = False
    ) -> LogSweep:
        """Delete orphaned ledgers of logs, and apply retention to all logs.

        Run the sweep once a day. A ledger is orphaned if it was made for a log and no log names it.
        Ledgers younger than `older_than_seconds` stay, because their writers may be about to add or
        publish them. With `dry_run` nothing is deleted.

        Raises:
            MetadataError: the logs or the ledgers cannot be listed.
            NotEnoughBookiesError: too few bookies told their time; nothing was swept.
        """
        return await sweep_logs(
            self._logs_here, older_than_seconds=older_than_seconds, dry_run=dry_run
        )


def _digest_type(named: str | DigestType) -> DigestType:
    if isinstance(named, DigestType):
        return named
    try:
        return DigestType[str(named).upper()]
    except KeyError:
        names = ", ".join(digest_type.name.lower() for digest_type in DigestType)
        raise BadRequestError(f"{named!r} is not a digest type; use one of {names}") from None
