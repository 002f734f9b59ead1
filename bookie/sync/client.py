"""The client without an event loop, and the two ways to get one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from types import TracebackType
from typing import Self, Unpack

from bookie.api import BookKeeper, ClientOptions, DigestName
from bookie.api import connect as connect_async
from bookie.cluster.registration_record import Registration
from bookie.config import RpcSettings
from bookie.entry.digest import DigestType
from bookie.env import Moment
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.recover.explanation import LedgerExplanation
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogPartition
from bookie.log.consume.consumer import AutoCommit
from bookie.log.consume.group import GroupStatus
from bookie.log.read.partitions_reader import ReaderKeywords
from bookie.log.read.places import LogStart
from bookie.log.read.reader import OnTruncated
from bookie.log.read.status import LogStatus
from bookie.log.record.log_record import LogPosition, LogRecord
from bookie.log.tidy.sweep import OLDER_THAN_SECONDS, LogSweep
from bookie.metadata.connect import SESSION_TIMEOUT_SECONDS
from bookie.sync.consumers import SyncGroupMember, SyncLogConsumer
from bookie.sync.handles import BATCHES_AHEAD, SyncHandle, SyncReader, SyncWriter
from bookie.sync.iterator import SyncIterator
from bookie.sync.log_handles import (
    SyncCursors,
    SyncLogPublisher,
    SyncLogWriter,
    SyncRangeWriter,
)
from bookie.sync.log_reader import SyncLogReader
from bookie.sync.log_survey import SyncLogSurvey
from bookie.sync.loop_thread import LoopThread, Resident, check_timeout, this_process
from bookie.sync.maintenance import SyncMaintenance


class SyncBookKeeper(SyncHandle):
    """`bookie.api.BookKeeper` without an event loop; made by `connect`."""

    def __init__(self, home: LoopThread, client: BookKeeper) -> None:
        super().__init__(home)
        self._client = client
        self._resident = Resident(home, client)

    def __repr__(self) -> str:
        return f"<SyncBookKeeper {self._client!r}>"

    @property
    def is_open(self) -> bool:
        """Whether it is connected, in this process."""
        return self._resident.is_open

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self, *, timeout: float | None = None) -> Self:
        """Connect, as `with` does; to be followed by `close`.

        Raises:
            BadRequestError: the client is connected already, or was closed.
            BookieError: what entering `bookie.api.connect` raises.
        """
        self._resident.open(timeout)
        return self

    def close(self, *, timeout: float | None = None) -> None:
        """Close all connections and abandon open writers; see `BookKeeper`. Twice is no error."""
        self._resident.close(timeout)

    @property
    def instance_id(self) -> str:
        """The id of the cluster."""
        return self._client.instance_id

    def bookies(self) -> Mapping[str, Registration]:
        """The registered bookies by id, read-only ones included, as of now."""
        return self._client.bookies()

    def create_ledger(
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
    ) -> SyncWriter:
        """Create a ledger and return its writer; see `BookKeeper.create_ledger`."""
        creating = self._client.create_ledger(
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            password=password,
            digest_type=digest_type,
            custom_metadata=custom_metadata,
            ledger_id=ledger_id,
            deferred_sync=deferred_sync,
            allow_degraded=allow_degraded,
        )
        return SyncWriter(self._home, self._run(creating))

    def claim_ledger(self, ledger_id: int, *, password: bytes = b"") -> SyncWriter:
        """Become the writer of an unclaimed ledger; see `BookKeeper.claim_ledger`."""
        claiming = self._client.claim_ledger(ledger_id, password=password)
        return SyncWriter(self._home, self._run(claiming))

    def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = False,
        timeout: float | None = None,
    ) -> SyncReader:
        """Open a ledger for reading; see `BookKeeper.open_ledger`."""
        opening = self._client.open_ledger(ledger_id, password=password, recover=recover)
        return SyncReader(self._home, self._run(opening, timeout))

    def delete_ledger(self, ledger_id: int, *, timeout: float | None = None) -> None:
        """Delete a ledger; see `BookKeeper.delete_ledger`."""
        self._run(self._client.delete_ledger(ledger_id), timeout)

    def list_ledgers(self, *, after: int = -1, timeout: float | None = None) -> SyncIterator[int]:
        """The ids above `after` of all ledgers, ascending; see `BookKeeper.list_ledgers`."""
        return self._iterate(self._client.list_ledgers(after=after), timeout=timeout)

    def ledger_metadata(self, ledger_id: int, *, timeout: float | None = None) -> LedgerMetadata:
        """The metadata of a ledger as of now; see `BookKeeper.ledger_metadata`."""
        return self._run(self._client.ledger_metadata(ledger_id), timeout)

    def explain_ledger(self, ledger_id: int, *, timeout: float | None = None) -> LedgerExplanation:
        """What a recovery would decide now; see `BookKeeper.explain_ledger`."""
        return self._run(self._client.explain_ledger(ledger_id), timeout)

    # -- logs --------------------------------------------------------------------------------------

    def create_log(
        self,
        name: str,
        *,
        partitions: int | None = None,
        transactional: bool = False,
        policy: LogPolicy | None = None,
    ) -> None:
        """Make a log; see `BookKeeper.create_log`."""
        creating = self._client.create_log(
            name, partitions=partitions, transactional=transactional, policy=policy
        )
        self._run(creating)

    def open_log(
        self,
        name: str,
        *,
        partition: int | None = None,
        password: bytes = b"",
        owner: str = "",
        patience_seconds: float = 30.0,
        create: bool = True,
    ) -> SyncLogWriter:
        """Own a log, and return its writer; see `BookKeeper.open_log`."""
        opening = self._client.open_log(
            name,
            partition=partition,
            password=password,
            owner=owner,
            patience_seconds=patience_seconds,
            create=create,
        )
        return SyncLogWriter(self._home, self._run(opening))

    def log_reader(
        self,
        name: str,
        *,
        partition: int | None = None,
        timeout: float | None = None,
        **place: Unpack[ReaderKeywords],
    ) -> SyncLogReader:
        """A reader of a log; see `BookKeeper.log_reader`. `timeout` bounds each wait of it."""
        check_timeout(timeout)
        opening = self._client.log_reader(name, partition=partition, **place)
        return SyncLogReader(self._home, self._run(opening, timeout), timeout)

    def read_log(
        self,
        name: str,
        *,
        partition: int | None = None,
        timeout: float | None = None,
        **place: Unpack[ReaderKeywords],
    ) -> SyncIterator[LogRecord]:
        """The records of a log; see `BookKeeper.read_log`. They cross the threads in batches.

        With a timeout, OperationTimeoutError says that no record came for so long. The next call
        waits again.
        """
        pump = self._pump(self._log_batches(name, partition, place), BATCHES_AHEAD, timeout)
        return SyncIterator(pump, chain.from_iterable(pump))

    async def _log_batches(
        self, name: str, partition: int | None, place: ReaderKeywords
    ) -> AsyncGenerator[Sequence[LogRecord], None]:
        reader = await self._client.log_reader(name, partition=partition, **place)
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
        """A consumer of one partition, to be entered; see `BookKeeper.consume`.

        `timeout` bounds each wait for records.
        """
        handle = self._client.consume(
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
        """A member of a group, to be entered; see `BookKeeper.join_group`.

        `on_change` is called in the thread of the loop, and must not wait. `timeout` bounds each
        wait for records.
        """
        handle = self._client.join_group(
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
        """The cursors of a log: create, reset, delete them, see their lag."""
        return SyncCursors(self._home, self._client.cursors(name, password=password))

    def group_status(self, group: str, *, password: bytes = b"") -> GroupStatus:
        """What a group does now; see `BookKeeper.group_status`."""
        return self._run(self._client.group_status(group, password=password))

    def list_groups(self) -> Sequence[str]:
        """The names of all groups that ever had a member."""
        return self._run(self._client.list_groups())

    def list_logs(
        self, namespace: str | None = None, *, timeout: float | None = None
    ) -> SyncIterator[str]:
        """The names of all logs, or of those of a namespace."""
        return self._iterate(self._client.list_logs(namespace), timeout=timeout)

    def publisher(self, name: str) -> SyncLogPublisher:
        """Publishes batches of ranges to a transactional log, each once."""
        return SyncLogPublisher(self._home, self._client.publisher(name))

    def open_range_writer(
        self, name: str, application: str, *, partition: int = 0, password: bytes = b""
    ) -> SyncRangeWriter:
        """Writes records for a later publication; see `BookKeeper.open_range_writer`."""
        opening = self._client.open_range_writer(
            name, application, partition=partition, password=password
        )
        return SyncRangeWriter(self._home, self._run(opening))

    def maintenance(self) -> SyncMaintenance:
        """Listings of all that the cluster has, audits and repairs of copies."""
        return SyncMaintenance(self._home, self._client.maintenance())

    def log_status(
        self, name: str, *, password: bytes = b"", timeout: float | None = None
    ) -> LogStatus:
        """What a log is, and how far each of its partitions goes; see `BookKeeper.log_status`."""
        return self._run(self._client.log_status(name, password=password), timeout)

    def survey_log(self, name: str, *, password: bytes = b"") -> SyncLogSurvey:
        """Where the records of a log are; see `BookKeeper.survey_log`."""
        surveying = self._client.survey_log(name, password=password)
        return SyncLogSurvey(self._home, self._run(surveying))

    def await_records(
        self,
        offsets: Mapping[tuple[str, int], int],
        *,
        password: bytes = b"",
        timeout_seconds: float,
    ) -> bool:
        """Wait for a record at one of the offsets; see `BookKeeper.await_records`."""
        return self._run(
            self._client.await_records(offsets, password=password, timeout_seconds=timeout_seconds)
        )

    def truncate_log(
        self,
        name: str,
        *,
        partition: int = 0,
        before: int | LogPosition | None = None,
        before_time: Moment | None = None,
    ) -> int:
        """Truncate a partition; returns its first offset. See `BookKeeper.truncate_log`."""
        truncating = self._client.truncate_log(
            name, partition=partition, before=before, before_time=before_time
        )
        return self._run(truncating)

    def delete_log(self, name: str) -> None:
        """Delete a log with all its ledgers and cursors; see `BookKeeper.delete_log`."""
        self._run(self._client.delete_log(name))

    def sweep_logs(
        self, *, older_than_seconds: float = OLDER_THAN_SECONDS, dry_run: bool = False
    ) -> LogSweep:
        """Delete ledgers that no log names, and apply retention; see `BookKeeper.sweep_logs`."""
        return self._run(
            self._client.sweep_logs(older_than_seconds=older_than_seconds, dry_run=dry_run)
        )


def connect(
    metadata_uri: str,
    *,
    session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    rpc: RpcSettings | None = None,
    **settings: Unpack[ClientOptions],
) -> SyncBookKeeper:
    """A client of the cluster whose metadata is at `metadata_uri`; enter it with `with`.

    Arguments are those of `bookie.api.connect`.

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
    """The connected client that this process shares for these arguments, for executors.

    The first call connects. The end of the process closes it; do not enter or close it otherwise.
    One that was closed all the same is replaced at the next call. Arguments and errors are those
    of `connect`, and of its `with`.
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
