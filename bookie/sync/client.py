"""The client for callers without an event loop, and the two functions that return a client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Self, Unpack

from bookie.api import BookKeeper, ClientOptions
from bookie.api import connect as connect_async
from bookie.api.maintenance import Maintenance
from bookie.cluster.registration_record import Registration
from bookie.config import RpcSettings
from bookie.env import Moment
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.recover.explanation import LedgerExplanation
from bookie.log.catalog.logs import LogPartition
from bookie.log.consume.commit import AutoCommit
from bookie.log.read.partitions_reader import ReaderKeywords
from bookie.log.read.reader import OnTruncated
from bookie.log.read.start_position import LogStart
from bookie.log.read.status import LogStatus
from bookie.log.record.log_record import LogRecord
from bookie.metadata.connect import SESSION_TIMEOUT_SECONDS
from bookie.metadata.versioned import Versioned
from bookie.sync.consumers import SyncGroupMember, SyncLogConsumer
from bookie.sync.forwarding import Shown, forwarded, opened, shown
from bookie.sync.handles import BATCHES_AHEAD, SyncHandle, SyncReader, SyncWriter
from bookie.sync.iterator import Batches, SyncIterator
from bookie.sync.log_handles import (
    SyncCursors,
    SyncLogPublisher,
    SyncLogSurvey,
    SyncLogWriter,
    SyncRangeWriter,
)
from bookie.sync.log_reader import SyncLogReader
from bookie.sync.loop_thread import Closing, LoopThread, Resident, check_timeout, this_process


class SyncMaintenance(SyncHandle):
    """The methods of `bookie.api.maintenance.Maintenance` without an event loop."""

    def __init__(self, home: LoopThread, maintenance: Maintenance) -> None:
        super().__init__(home)
        self._handle = maintenance

    def ledgers(
        self, on_damaged: Callable[[int], object]
    ) -> SyncIterator[Versioned[LedgerMetadata]]:
        """Yield the metadata of all ledgers, ordered by id.

        `on_damaged` gets the id of each ledger with damaged metadata, in the thread of the event
        loop.
        """
        return self._iterate(self._handle.ledgers(on_damaged))

    partitions = forwarded(Maintenance.partitions)
    cursors = forwarded(Maintenance.cursors)
    history = forwarded(Maintenance.history)
    applications = forwarded(Maintenance.applications)
    plan_compaction = forwarded(Maintenance.plan_compaction)
    copy_group = forwarded(Maintenance.copy_group)
    publish_compaction = forwarded(Maintenance.publish_compaction)
    plan = forwarded(Maintenance.plan)
    audit = forwarded(Maintenance.audit)
    require_repairs_enabled = forwarded(Maintenance.require_repairs_enabled)
    repair = forwarded(Maintenance.repair)


class SyncBookKeeper(SyncHandle, Closing):
    """The methods of `bookie.api.BookKeeper` without an event loop. `connect` makes a client."""

    def __init__(self, home: LoopThread, client: BookKeeper) -> None:
        super().__init__(home)
        self._handle = client
        self._resident = Resident(home, client)

    def __repr__(self) -> str:
        return f"<SyncBookKeeper {self._handle!r}>"

    @property
    def is_open(self) -> bool:
        """True while the client is connected, in the process that connected it."""
        return self._resident.is_open

    def __enter__(self) -> Self:
        return self.open()

    def open(self, *, timeout: float | None = None) -> Self:
        """Connect, as a `with` statement does; call `close` to end the connection.

        Raises:
            BadRequestError: the client is connected already, or was closed.
            BookieError: the client could not connect; see `bookie.api.connect`.
        """
        self._resident.open(timeout)
        return self

    def close(self, *, timeout: float | None = None) -> None:
        """Close all connections; the ledgers of open writers stay open, see `BookKeeper`.

        A second call does nothing.
        """
        self._resident.close(timeout)

    instance_id: Shown[str] = shown(BookKeeper.instance_id)

    def bookies(self) -> Mapping[str, Registration]:
        """Return the bookies that are registered now, by id; read-only bookies are included."""
        return self._handle.bookies()

    create_ledger = opened(BookKeeper.create_ledger, SyncWriter)
    claim_ledger = opened(BookKeeper.claim_ledger, SyncWriter)

    def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = False,
        timeout: float | None = None,
    ) -> SyncReader:
        """Open a ledger for reading; see `BookKeeper.open_ledger`."""
        opening = self._handle.open_ledger(ledger_id, password=password, recover=recover)
        return SyncReader(self._home, self._run(opening, timeout))

    def delete_ledger(self, ledger_id: int, *, timeout: float | None = None) -> None:
        """Delete a ledger; see `BookKeeper.delete_ledger`."""
        self._run(self._handle.delete_ledger(ledger_id), timeout)

    def list_ledgers(self, *, after: int = -1, timeout: float | None = None) -> SyncIterator[int]:
        """Yield the ids of all ledgers above `after`, ascending; see `BookKeeper.list_ledgers`."""
        return self._iterate(self._handle.list_ledgers(after=after), timeout=timeout)

    def ledger_metadata(self, ledger_id: int, *, timeout: float | None = None) -> LedgerMetadata:
        """Read the present metadata of a ledger; see `BookKeeper.ledger_metadata`."""
        return self._run(self._handle.ledger_metadata(ledger_id), timeout)

    def explain_ledger(self, ledger_id: int, *, timeout: float | None = None) -> LedgerExplanation:
        """Find the end that a recovery would give a ledger now; see `BookKeeper.explain_ledger`."""
        return self._run(self._handle.explain_ledger(ledger_id), timeout)

    # -- logs --------------------------------------------------------------------------------------

    create_log = forwarded(BookKeeper.create_log)
    open_log = opened(BookKeeper.open_log, SyncLogWriter)

    def log_reader(
        self,
        name: str,
        *,
        partition: int | None = None,
        timeout: float | None = None,
        **place: Unpack[ReaderKeywords],
    ) -> SyncLogReader:
        """Return a reader of a log; see `BookKeeper.log_reader`.

        `timeout` limits each wait for records.
        """
        check_timeout(timeout)
        opening = self._handle.log_reader(name, partition=partition, **place)
        return SyncLogReader(self._home, self._run(opening, timeout), timeout)

    def read_log(
        self,
        name: str,
        *,
        partition: int | None = None,
        timeout: float | None = None,
        **place: Unpack[ReaderKeywords],
    ) -> SyncIterator[LogRecord]:
        """Yield the records of a log; see `BookKeeper.read_log`.

        The event loop passes whole batches to the caller's thread. With a `timeout`, `next` raises
        OperationTimeoutError if no record came within this time. The next call of `next` waits
        again.
        """
        pump = self._pump(self._log_batches(name, partition, place), BATCHES_AHEAD, timeout)
        return SyncIterator(pump, Batches(pump).items)

    async def _log_batches(
        self, name: str, partition: int | None, place: ReaderKeywords
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        reader = await self._handle.log_reader(name, partition=partition, **place)
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                yield batch

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
        timeout: float | None = None,
    ) -> SyncLogConsumer:
        """Return a consumer of one partition, to use in a `with` block. See `BookKeeper.consume`.

        `timeout` limits each wait for records.
        """
        handle = self._handle.consume(
            name,
            cursor=cursor,
            partition=partition,
            start=start,
            start_time=start_time,
            create=create,
            auto_commit=auto_commit,
            password=password,
            on_truncated=on_truncated,
        )
        by_record = auto_commit is not None
        return SyncLogConsumer(self._home, handle, by_record=by_record, timeout=timeout)

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
        timeout: float | None = None,
    ) -> SyncGroupMember:
        """Return a member of a group, to use in a `with` block. See `BookKeeper.join_group`.

        The thread of the event loop calls `on_change`, which must not wait. `timeout` limits
        each wait for records.
        """
        handle = self._handle.join_group(
            group,
            logs=logs,
            pattern=pattern,
            member=member,
            start=start,
            start_time=start_time,
            auto_commit=auto_commit,
            on_change=on_change,
            password=password,
            on_truncated=on_truncated,
        )
        by_record = auto_commit is not None
        return SyncGroupMember(self._home, handle, by_record=by_record, timeout=timeout)

    def cursors(self, name: str, *, password: bytes = b"") -> SyncCursors:
        """Return an object that lists, creates, resets and deletes the cursors of a log."""
        return SyncCursors(self._home, self._handle.cursors(name, password=password))

    group_status = forwarded(BookKeeper.group_status)
    list_groups = forwarded(BookKeeper.list_groups)

    def list_logs(
        self, namespace: str | None = None, *, timeout: float | None = None
    ) -> SyncIterator[str]:
        """Yield the names of all logs, or of the logs of one namespace."""
        return self._iterate(self._handle.list_logs(namespace), timeout=timeout)

    def publisher(self, name: str) -> SyncLogPublisher:
        """Return a publisher, which adds batches of records to a transactional log exactly once."""
        return SyncLogPublisher(self._home, self._handle.publisher(name))

    open_range_writer = opened(BookKeeper.open_range_writer, SyncRangeWriter)

    def maintenance(self) -> SyncMaintenance:
        """Return an object that lists, audits, repairs and compacts ledgers and logs."""
        return SyncMaintenance(self._home, self._handle.maintenance())

    def log_status(
        self, name: str, *, password: bytes = b"", timeout: float | None = None
    ) -> LogStatus:
        """Read a log's definition and its partitions' ends; see `BookKeeper.log_status`."""
        return self._run(self._handle.log_status(name, password=password), timeout)

    survey_log = opened(BookKeeper.survey_log, SyncLogSurvey)
    await_records = forwarded(BookKeeper.await_records)
    truncate_log = forwarded(BookKeeper.truncate_log)
    delete_log = forwarded(BookKeeper.delete_log)
    sweep_logs = forwarded(BookKeeper.sweep_logs)


def connect(
    metadata_uri: str,
    *,
    session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    rpc: RpcSettings | None = None,
    **settings: Unpack[ClientOptions],
) -> SyncBookKeeper:
    """Return a client of the cluster whose metadata is at `metadata_uri`; use it in `with`.

    The arguments are those of `bookie.api.connect`.

    Raises:
        ConfigurationError: a setting or the URI is wrong, or the process was forked after its
            parent had opened clients.
    """
    client = connect_async(
        metadata_uri, session_timeout_seconds=session_timeout_seconds, rpc=rpc, **settings
    )
    return SyncBookKeeper(this_process.home(), client)


def shared_client(
    metadata_uri: str,
    *,
    session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    rpc: RpcSettings | None = None,
    **settings: Unpack[ClientOptions],
) -> SyncBookKeeper:
    """Return a connected client. Calls with equal arguments in one process get the same client.

    This function is for Spark's executors. The first call connects the client. The client is closed
    when the process ends, so do not enter or close the client. If the client was closed, the next
    call returns a new client. The arguments are those of `connect`. The errors are the errors of
    `connect` and of `SyncBookKeeper.open`.
    """
    key = repr((metadata_uri, session_timeout_seconds, rpc, sorted(settings.items())))
    with this_process.lock:
        client = this_process.shared.get(key)
        if not isinstance(client, SyncBookKeeper) or not client.is_open:
            client = connect(
                metadata_uri, session_timeout_seconds=session_timeout_seconds, rpc=rpc, **settings
            ).open()
            this_process.shared[key] = client
        return client
