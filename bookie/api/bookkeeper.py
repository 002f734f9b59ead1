"""`BookKeeper`: the client of a cluster, with methods for ledgers and logs.

The methods of `BookKeeper` check arguments, and their docstrings state the guarantees. The packages
`bookie.ledger` and `bookie.log` implement the methods.
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
from bookie.errors import BadRequestError
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
    open. The ledgers of abandoned writers stay open until a recovery. Appends that are not
    acknowledged yet raise ClientClosedError; the outcome of such appends is unknown.
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

        Await the call, or enter it: ``async with bk.create_ledger() as writer`` closes the ledger
        at the end of the block.

        Args:
            ensemble_size: the number of bookies over which the entries are spread.
            write_quorum_size: the number of bookies to which each entry is written.
            ack_quorum_size: the number of bookies that must store an entry before `append` returns.
            password: readers and recoveries must give this password. The ledger's metadata contains
                only a key that is derived from the password.
            digest_type: ``crc32c``, ``crc32``, ``hmac`` or ``dummy``.
            custom_metadata: values of the user that are stored in the ledger's metadata.
            ledger_id: an id that no ledger ever had; None chooses a new id.
            deferred_sync: `append` returns before entries are durable; `force` makes them durable.
                With `deferred_sync`, the writer skips a failed bookie, and never replaces the
                bookie.
            allow_degraded: create the ledger even with fewer writable bookies than `ensemble_size`,
                if each write set still contains enough writable bookies for the ack quorum. Slots
                of the ensemble without a bookie stay vacant (with ids such as ``vacant.2``), as if
                their bookies had failed. Until new bookies fill vacant slots, entries have fewer
                copies.

        Raises:
            NotEnoughBookiesError: there are fewer writable bookies than `ensemble_size`, or than
                `allow_degraded` needs. NotEnoughBookiesError is also raised if `placement.enforce`
                forbids all choices of bookies.
            LedgerExistsError: a ledger has or had the id `ledger_id`.
            StoreWentBackError: the metadata store was set back to an older state, so it would give
                out used ids again.
            BadRequestError: a size or the digest type is wrong.
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

        Await the call or enter it, as with `create_ledger`.

        A ledger can be claimed only if it has no entries and its custom metadata has the key
        `UNCLAIMED`. If several clients claim the ledger at the same time, only one client succeeds,
        because a compare-and-set removes the key. The compare-and-set that removes the key also
        fills vacant slots (see `allow_degraded`) with bookies that have become available.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            UnauthorizedError: the password is wrong.
            WeakDigestError: ``client.digest_least`` refuses the ledger's digest type.
            LedgerClosedError: the ledger already has or had its only writer.
            MetadataError: the metadata store failed; the ledger may or may not be claimed.
        """
        return await self._ledgers_here.claim(ledger_id, password)

    @checked
    async def open_ledger(
        self, ledger_id: int, *, password: bytes = b"", recover: bool = False
    ) -> ReaderHandle:
        """Open a ledger for reading.

        Without `recover`, a writer of the ledger can continue. The reader of an open ledger reads
        up to the last add confirmed, and can follow the ledger. With `recover`, `open_ledger`
        fences the ledger and closes it. The closed ledger contains every acknowledged entry. The
        ledger's writer gets LedgerFencedError.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            UnauthorizedError: the password is wrong.
            WeakDigestError: ``client.digest_least`` refuses the ledger's digest type.
            NotEnoughBookiesError: too few bookies answered, so the ledger's end is unknown.
            LedgerRecoveryError: too few bookies answered the recovery; try again.
            MetadataError: the metadata store failed.
        """
        return await self._ledgers_here.open(ledger_id, password, recover=recover)

    @checked
    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger: nobody can open it again, and bookies free its space later.

        A writer or reader that has the ledger open gets no notice. Bookies learn of the deletion
        when they list the cluster's ledgers: within seconds, or within minutes in a large cluster.
        Until bookies learn of the deletion, they may acknowledge appends to the deleted ledger.
        Bookies that know of the deletion refuse appends as if the ledger were fenced. The `close`
        of a deleted ledger's writer raises NoSuchLedgerError.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            MetadataError: the metadata store failed; the ledger may or may not be deleted.
        """
        await self._ledgers_here.ledgers.delete(ledger_id)

    @checked
    async def list_ledgers(self, *, after: int = -1) -> AsyncIterator[int]:
        """Yield the ids of all ledgers above `after`, ascending.

        Raises:
            MetadataError: the metadata store failed, so some ids may be missing.
        """
        async for ledger_id in self._ledgers_here.ledgers.list_ids(after):
            yield ledger_id

    @checked
    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return the current metadata of a ledger.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            MetadataError: the metadata store failed.
        """
        return (await self._ledgers_here.ledgers.read(ledger_id)).value

    @checked
    async def explain_ledger(self, ledger_id: int) -> LedgerExplanation:
        """Find the entry at which a recovery would end a ledger now; fence nothing, write nothing.

        The result contains the answers of all bookies in the ledger's last ensemble.

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
        """Create a log with its partitions.

        Args:
            name: ``log``, or ``namespace/log``.
            partitions: the number of partitions, which never changes; None takes the number in the
                policy.
            transactional: records enter the log only by `publish`; the log has no writer.
            policy: the log's own policy. Values that this policy does not set come from the
                namespace's policy.

        Raises:
            LogExistsError: a log with this name exists.
            NoSuchKeyError: the namespace does not exist.
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

        Await the call, or enter it: ``async with bk.open_log("orders") as log`` closes the log at
        the end of the block.

        Args:
            name: ``log``, or ``namespace/log``.
            partition: the only partition to own; with None, own all partitions.
            password: the password of all ledgers of the log.
            owner: the name of this owner in other clients' errors; by default host and process.
            patience_seconds: the longest wait for bookies, for the metadata store, or for another
                client that opens the log at the same time. If one of these waits takes longer, the
                writer fails.
            create: create the log if it does not exist.

        Raises:
            NoSuchLogError: the log does not exist, and `create` is False.
            LogTakenOverError: other clients repeatedly opened the log during the call.
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
        """Return a reader of a log: iterate over it, or use its `batches`, `seek` and `lag`.

        A reader fences nothing and writes nothing. A reader of several partitions returns their
        records as they arrive; the records of each partition stay in order.

        Args:
            name: ``log``, or ``namespace/log``.
            start: ``earliest`` (or None), ``latest``, an offset, a record's position, or (ledger
                id, entry id).
            start_time: an alternative to `start`: begin at the first record of this time or later.
                A time is a datetime with a zone, or ms since 1970.
            end: an offset or a position; only records before this place are read.
            follow: wait for new records, for ever or up to `end`. Without `follow`, reading ends
                when the reader has returned all records that are confirmed by then.
            partition: the only partition to read; with None, read all partitions.
            password: the password of the log's ledgers.
            on_truncated: the reaction if the next record was truncated: ``raise``
                LogTruncatedError, or ``skip`` to the earliest record that still exists.

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
        """Yield the records of a log one by one; the records of each partition are in order.

        To stop reading, leave the loop or close the generator.

        Raises:
            LogTruncatedError: the next record was truncated; the error has the offset of the
                earliest record that still exists.
            NoSuchLogError: the log does not exist, or was deleted during the reading.
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

        ``async with bk.consume("orders", cursor="billing") as consumer`` begins to read at the
        cursor. `LogConsumer.commit` moves the cursor to the end of the records that the iteration
        returned. Another consumer of the same cursor waits until this consumer ends. If a
        consumer's process was stopped for too long, the consumer's commits raise CursorLostError.

        Args:
            name: ``log``, or ``namespace/log``.
            cursor: the name of the cursor.
            partition: the number of the partition; required if the log has several partitions, and
                `start` is no record's position.
            start: the place at which a new cursor begins; see `log_reader`.
            start_time: an alternative to `start`: a new cursor begins at the first record of this
                time or later.
            create: create the cursor if it does not exist.
            auto_commit: commit finished records automatically, by the limits of `AutoCommit`; with
                None, only `LogConsumer.commit` commits records.
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

        Each partition belongs to one member at a time. When members join or leave, as few
        partitions as possible go to another member. The group's cursors have the group's name.

        Args:
            group: the name of the group.
            logs: the names of logs. A log that does not exist yet is consumed as soon as it exists.
            pattern: a pattern for more logs of one namespace: ``orders-*``, ``sales/*``.
            member: a name that no other member has; generated if empty. A member that rejoins under
                its name gets its former partitions, if the members' numbers of partitions stay
                balanced.
            start: the place at which a partition without a cursor begins: ``earliest`` (or None),
                ``latest``, or an offset.
            start_time: an alternative to `start`: begin at the first record of this time or later.
            auto_commit: commit finished records automatically, by the limits of `AutoCommit`; with
                None, only `GroupMember.commit` commits records.
            on_change: called with this member's partitions after each change; it must not raise an
                error.
            password: the password of the ledgers of all consumed logs.
            on_truncated: see `log_reader`.

        Raises:
            BadRequestError: a name or the start is wrong, or both `logs` and `pattern` are empty.
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
        """Return an object that lists, creates, resets and deletes a log's cursors."""
        return Cursors(self._logs, LogName.parse(name), LogReading(self._logs, password))

    @checked
    async def group_status(self, group: str, *, password: bytes = b"") -> GroupStatus:
        """Return the state of a group: its members, their partitions, and the group's lag.

        Raises:
            NoSuchKeyError: the group never had a member.
            UnavailableError: too few bookies answered, so the end of a partition is unknown.
        """
        return await group_status(self._logs_here, group, LogReading(self._logs_here, password))

    async def list_groups(self) -> Sequence[str]:
        """Return the names of all groups that ever had a member."""
        return await list_groups(self._logs_here.store)

    @checked
    async def list_logs(self, namespace: str | None = None) -> AsyncIterator[str]:
        """Yield the names of all logs or of a namespace's logs, even of logs being deleted."""
        async for name in self._logs_here.logs.list_logs(namespace):
            yield str(name)

    # -- transactional logs ------------------------------------------------------------------------

    @checked
    def publisher(self, name: str) -> LogPublisher:
        """Return a publisher, which adds batches of records to a transactional log exactly once."""
        return LogPublisher(self._logs, LogName.parse(name))

    @checked
    async def open_range_writer(
        self, name: str, application: str, *, partition: int = 0, password: bytes = b""
    ) -> RangeWriter:
        """Return a writer of records that `LogPublisher.publish` will add to one partition later.

        The log must be transactional. Readers see the records only after their publication. If you
        enter the writer, the end of the block closes its ledger.

        Args:
            name: ``log``, or ``namespace/log``.
            application: the id of the application that will publish the records.
            partition: the number of the partition.
            password: the password of all ledgers of the log.

        Raises:
            NoSuchLogError: the log does not exist.
            BadRequestError: the log is not transactional, or has no such partition.
        """
        place = LogPartition(LogName.parse(name), partition)
        return await RangeWriter.open(self._logs_here, place, application, password=password)

    # -- keeping house -----------------------------------------------------------------------------

    def maintenance(self) -> Maintenance:
        """Return an object that lists, audits, repairs and compacts ledgers and logs."""
        return Maintenance(self._logs)

    @checked
    async def log_status(self, name: str, *, password: bytes = b"") -> LogStatus:
        """Return a log's definition and policy, and the current state of each partition.

        Raises:
            NoSuchLogError: the log does not exist.
            NotEnoughBookiesError: too few bookies answered, so the end of a partition is unknown.
        """
        return await log_status(self._logs_here, LogName.parse(name), password)

    @checked
    async def survey_log(self, name: str, *, password: bytes = b"") -> LogSurvey:
        """Return a `LogSurvey`, by which several readers can divide a log's records.

        Raises:
            NoSuchLogError: the log does not exist.
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
        """Wait until a partition has a record at or after its offset in `offsets`.

        The keys of `offsets` are pairs of a log's name and a partition's number. The result is True
        if there is such a record, and False after the timeout. The wait fences nothing.

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
        """Remove the records of a partition before an offset, a position or a time.

        A reader whose next record was removed gets LogTruncatedError. The log's writer can continue
        to append. `before_time` removes only whole ranges of a ledger's entries: a range is removed
        if all its records are older than this time.

        Returns:
            the first offset that the partition still has.

        Raises:
            NoSuchLogError: the log does not exist.
            BadRequestError: `before` and `before_time` are both given or both missing, or the
                position is in another partition. BadRequestError is also raised if the offset is in
                the ledger to which the writer appends now: roll the log first.
            MetadataError: the metadata store failed, so the partition may or may not be truncated;
                call `truncate_log` again.
        """
        before_ms = None if before_time is None else moment_ms(before_time)
        place = LogPartition(LogName.parse(name), partition)
        return await truncate(self._logs_here, place, before=before, before_ms=before_ms)

    @checked
    async def delete_log(self, name: str) -> None:
        """Delete a log with all its ledgers and cursors.

        If the deletion is interrupted, call `delete_log` again to finish it. The log's writer and
        its readers get NoSuchLogError.

        Raises:
            NoSuchLogError: the log does not exist.
            MetadataError: the metadata store failed; call `delete_log` again to finish.
        """
        await delete_log(self._logs_here, LogName.parse(name))

    @checked
    async def sweep_logs(
        self, *, older_than_seconds: float = OLDER_THAN_SECONDS, dry_run: bool = False
    ) -> LogSweep:
        """Delete orphaned ledgers of logs, and apply retention to all logs.

        Run the sweep once a day. A ledger is orphaned if it was created for a log, but no log names
        the ledger. Ledgers younger than `older_than_seconds` are not deleted, because writers may
        add such ledgers to a log soon. With `dry_run`, the sweep only reports, and deletes nothing.

        Raises:
            MetadataError: the logs or the ledgers cannot be listed.
            NotEnoughBookiesError: too few bookies answered with their time; nothing was deleted.
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
