"""One attempt of a task that writes rows into ranges, which no reader can see yet.

Each attempt writes only into its own ranges. The ranges of a failed attempt are never published, so
a second attempt duplicates no record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bookie.env import SystemClock
from bookie.env.clock import moment_text
from bookie.errors import BadRequestError, LogExistsError, NoSuchLogError
from bookie.log.catalog.log_metadata import NO_TIME_MS, LogDefinition
from bookie.log.catalog.logs import LogName
from bookie.log.publish.publisher import RecordBounds
from bookie.log.publish.range_writer import PendingRange
from bookie.log.record.log_record import greatest_timestamp_ms
from bookie.spark.sink_options import SinkSettings, check_log
from bookie.spark.sink_rows import (
    SinkRows,
    by_log,
    choose_partitions,
    encode_rows,
    latest_row,
    read_rows,
)
from bookie.spark.task_writers import TaskWriters, WriterKey, close_quietly
from bookie.sync import SyncBookKeeper, SyncRangeWriter

UNDER_WAY_BYTES_MAX = 16 << 20
"""The largest number of unconfirmed bytes of a task, enough to keep all bookies busy."""

PIECE_ROWS = 4096
"""The most rows that are encoded and sent at once, so that encoding and sending overlap."""

PIECE_BYTES = 900 << 10
"""The approximate number of value bytes in a piece of rows. With the record headers, most pieces
then fit into one batch."""

TASK_RANGES_MAX = 256
"""The most ranges that a task writes at the same time. Each range has an open ledger."""

LogRanges = dict[str, list[PendingRange]]


def find_log(
    client: SyncBookKeeper, name: str, *, creates: bool, partitions: int | None = None
) -> LogDefinition:
    """Return the definition of a transactional log; if `creates` is set, create a missing log.

    `partitions` is the number of partitions of a created log; if None, the log's policy decides the
    number.

    Raises:
        NoSuchLogError: the log does not exist, and `creates` is not set.
        BadRequestError: the log is not transactional, or has too many partitions.
    """
    publisher = client.publisher(name)
    try:
        found = publisher.definition()
    except NoSuchLogError:
        if not creates:
            raise NoSuchLogError(
                f"there is no log {name}; make one with bookie log create {name} --transactional, "
                'or set .option("createLog", "true") and .option("partitions", N)'
            ) from None
        with suppress(LogExistsError):  # another task has created the log
            client.create_log(name, transactional=True, partitions=partitions)
        found = publisher.definition()
    check_log(name, found)
    return found


@dataclass(slots=True)
class _OpenRange:
    """The range to which the task writes the rows of one partition."""

    key: WriterKey
    writer: SyncRangeWriter
    greatest_ms: int = NO_TIME_MS


class SinkTask:
    """Writes the rows of one attempt; call `finish` at the end, or `fail` after an error."""

    def __init__(
        self,
        settings: SinkSettings,
        application: str,
        writers: TaskWriters,
        client: SyncBookKeeper,
        turn: int,
    ) -> None:
        """`turn` chooses the partition of rows without a key, and differs by task and batch."""
        self._settings = settings
        self._application = application
        self._writers = writers
        self._client = client
        self._turn = turn
        self._logs: dict[str, LogDefinition] = {}
        self._bounds: dict[str, RecordBounds] = {}
        self._rows = 0
        """The number of rows in the batches before the current batch."""
        self._ranges: dict[tuple[str, int], _OpenRange] = {}
        self._under_way: deque[tuple[Future[None], int]] = deque()
        self._under_way_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Begin to write the rows of an Arrow batch; `finish` waits until the rows are durable."""
        if not batch.num_rows:
            return
        rows = read_rows(batch, self._settings.columns)
        named = by_log(rows) if self._settings.log is None else [(self._settings.log, rows)]
        for given, some in named:
            # `orders` and `default/orders` are one log, which takes each batch only once.
            log = str(LogName.parse(given))
            partitions = self._definition(log).partitions
            turn = self._turn % partitions
            for partition, those in some.groups(choose_partitions(some, partitions, turn)):
                self._append(self._open(log, partition), those, log)
        # All rows without a key in one Arrow batch go to one partition, so ranges are few and long.
        self._turn += 1
        self._rows += batch.num_rows

    def finish(self) -> LogRanges:
        """Wait until all records are durable, then return the ranges."""
        while self._under_way:
            self._settle()
        cut: LogRanges = {}
        for (log, _), one in sorted(self._ranges.items()):
            if pending := one.writer.cut():
                cut.setdefault(log, []).append(pending)
        for one in self._ranges.values():
            self._writers.give_back(one.key, one.writer)
        self._ranges.clear()
        return cut

    def fail(self) -> None:
        """Drop the attempt's records and close its ledgers, so no later task uses the ledgers."""
        for one in self._ranges.values():
            close_quietly(one.writer)
        self._ranges.clear()

    def _definition(self, log: str) -> LogDefinition:
        if log not in self._logs:
            settings = self._settings
            self._logs[log] = find_log(
                self._client, log, creates=settings.creates_logs, partitions=settings.partitions
            )
            self._bounds[log] = self._client.publisher(log).bounds()
        return self._logs[log]

    def _open(self, log: str, partition: int) -> _OpenRange:
        found = self._ranges.get((log, partition))
        if found is None:
            if len(self._ranges) >= TASK_RANGES_MAX:
                raise BadRequestError(
                    f"one task writes to more than {TASK_RANGES_MAX} partitions of logs; "
                    'repartition by the log before the write: df.repartition("log")'
                )
            uri = self._settings.connection.metadata_uri
            key = WriterKey(uri, self._application, self._logs[log].log_id, partition)
            writer = self._writers.take(key) or self._client.open_range_writer(
                log,
                self._application,
                partition=partition,
                password=self._settings.connection.password(),
            )
            found = self._ranges[log, partition] = _OpenRange(key, writer)
        return found

    def _append(self, to: _OpenRange, rows: SinkRows, log: str) -> None:
        now_ms = SystemClock().now_ms()
        fitting = PIECE_BYTES * len(rows.value) // max(1, rows.value.nbytes)
        for piece in rows.pieces(max(1, min(PIECE_ROWS, fitting))):
            payloads, to.greatest_ms = encode_rows(piece, now_ms, to.greatest_ms)
            size_bytes = sum(map(len, payloads))
            self._check(piece, payloads, to, log, now_ms)
            while self._under_way and self._under_way_bytes + size_bytes > UNDER_WAY_BYTES_MAX:
                self._settle()
            sent = to.writer.append_encoded(payloads, to.greatest_ms)
            self._under_way.append((sent, size_bytes))
            self._under_way_bytes += size_bytes

    def _check(
        self, rows: SinkRows, payloads: list[bytes], to: _OpenRange, log: str, now_ms: int
    ) -> None:
        """Raise an error that names the row, if a row cannot become a record of the log.

        Raises:
            BadRequestError: the row is too large, or its timestamp is too far in the future.
        """
        bounds = self._bounds[log]
        sizes = list(map(len, payloads))
        if (largest := max(sizes)) > bounds.size_bytes_max:
            raise BadRequestError(
                f"{self._named(rows, sizes.index(largest), to, log)} has {largest} bytes with key "
                f"and headers, and a record has at most {bounds.size_bytes_max}; filter such rows "
                "out before the write, or split them"
            )
        latest_ms = now_ms + 1000 * bounds.ahead_seconds
        if not bounds.ahead_seconds or to.greatest_ms <= latest_ms:
            return
        latest = latest_row(rows)
        if latest is not None:
            at_ms = greatest_timestamp_ms(payloads[latest])
            raise BadRequestError(
                f"{self._named(rows, latest, to, log)} has the time {at_ms} ms "
                f"({moment_text(at_ms)}), more than {bounds.ahead_seconds} s ahead; correct the "
                "column timestamp, or allow it by ahead_seconds in the log's policy"
            )

    def _named(self, rows: SinkRows, place: int, to: _OpenRange, log: str) -> str:
        """Return the description of a row for error messages; a task counts its rows from 1."""
        assert rows.place is not None
        number = self._rows + rows.place[place].as_py() + 1
        key = None if rows.key is None else rows.key[place].as_py()
        with_key = "" if key is None else f", key {key[:40]!r}"
        return f"the row {number} of its task (log {log}, partition {to.key.partition}{with_key})"

    def _settle(self) -> None:
        """Wait for the oldest write, and raise its error if it failed."""
        sent, size_bytes = self._under_way.popleft()
        self._under_way_bytes -= size_bytes
        sent.result()


def write_rows(task: SinkTask, batches: Iterator[Any]) -> LogRanges:
    """Write all rows of an attempt and return the ranges; after an error, drop the records."""
    try:
        for batch in batches:
            task.add(batch)
        return task.finish()
    except BaseException:
        task.fail()
        raise
