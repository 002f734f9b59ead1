"""The reader that Spark calls for a table about the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bookie.ledger.copies.replica_audit import unreadable
from bookie.ledger.copies.replica_plan import AuditItem, pack_items
from bookie.ledger.metadata import LedgerMetadata
from bookie.log.catalog.logs import LogName
from bookie.spark.tables import rows
from bookie.spark.tables.columns import table_schema
from bookie.spark.tables.options import TableOptions
from bookie.spark.tables.rows import Row

ROWS_OF_A_PARTITION = 20_000
"""The number of rows that one task converts to Arrow; the conversion takes about as long as the
start of a task."""

ITEMS_AT_ONCE = 512
"""The largest number of audit items whose verdicts are sent to Spark in one batch."""


@dataclass
class RowsPartition(InputPartition):
    """The rows that one task returns; the rows were listed when the query was planned."""

    rows: list[Row]


@dataclass
class AuditPartition(InputPartition):
    """The copies of entries that one task of an audit reads and verifies."""

    items: list[AuditItem]
    damaged: list[int]
    """The ids of ledgers whose metadata is damaged."""


class TableReader(DataSourceReader):
    """Lists rows when the query is planned; tasks convert rows to Arrow, or audit copies."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """List the table's rows and divide them into a few parts."""
        if self._options.table == "audit":
            return self._audit_partitions()
        found = list(_LISTINGS[self._options.table](self._options))
        return [RowsPartition(part) for part in rows.in_parts(found, ROWS_OF_A_PARTITION)]

    def _audit_partitions(self) -> list[InputPartition]:
        options = self._options
        damaged: list[int] = []
        items = (
            options.connection.client()
            .maintenance()
            .plan(min(64 << 20, options.bytes_of_a_partition), options.wants, damaged.append)
        )
        bins = pack_items(items, options.bytes_of_a_partition, options.partitions_min)
        parts: list[InputPartition] = [AuditPartition(one, []) for one in bins]
        return [*parts, AuditPartition([], damaged)] if damaged or not parts else parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part as Arrow batches."""
        schema = table_schema(self._options.table)
        if isinstance(partition, RowsPartition):
            yield _batch(partition.rows, schema)
        elif isinstance(partition, AuditPartition):
            maintenance = self._options.connection.client().maintenance()
            yield _batch([rows.verdict_row(unreadable(one)) for one in partition.damaged], schema)
            for start in range(0, len(partition.items), ITEMS_AT_ONCE):
                verdicts = maintenance.audit(partition.items[start : start + ITEMS_AT_ONCE])
                yield _batch(list(map(rows.verdict_row, verdicts)), schema)


def _batch(found: Sequence[Row], schema: StructType) -> pa.RecordBatch:
    arrow = to_arrow_schema(schema, timezone="UTC")
    columns = list(zip(*found, strict=True)) if found else [()] * len(arrow)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _ledgers(options: TableOptions) -> Iterator[Row]:
    damaged: list[int] = []
    for metadata in _listed(options, damaged):
        yield rows.ledger_row(metadata)
    yield from map(rows.unreadable_row, damaged)


def _fragments(options: TableOptions) -> Iterator[Row]:
    for metadata in _listed(options, []):
        yield from rows.fragment_rows(metadata)


def _replicas(options: TableOptions) -> Iterator[Row]:
    states = {row[0]: row[1] for row in _bookies(options)}
    for metadata in _listed(options, []):
        yield from rows.replica_rows(metadata, states)


def _listed(options: TableOptions, damaged: list[int]) -> Iterator[LedgerMetadata]:
    def note(ledger_id: int) -> None:
        if options.wants(ledger_id):
            damaged.append(ledger_id)

    for found in options.connection.client().maintenance().ledgers(note):
        if options.wants(found.value.ledger_id):
            yield found.value


def _bookies(options: TableOptions) -> Iterator[Row]:
    for registration in options.connection.client().bookies().values():
        yield rows.bookie_row(registration, "read-only" if registration.read_only else "writable")


def _logs(options: TableOptions) -> Iterator[Row]:
    yield from map(rows.log_row, options.connection.client().maintenance().partitions())


def _cursors(options: TableOptions) -> Iterator[Row]:
    yield from map(rows.cursor_row, options.connection.client().maintenance().cursors())


def _history(options: TableOptions) -> Iterator[Row]:
    assert options.log is not None
    maintenance = options.connection.client().maintenance()
    name = str(LogName.parse(options.log))  # the form that all other tables use
    yield from rows.history_rows(name, maintenance.history(name))


_LISTINGS: dict[str, Callable[[TableOptions], Iterator[Row]]] = {
    "ledgers": _ledgers,
    "fragments": _fragments,
    "replicas": _replicas,
    "bookies": _bookies,
    "logs": _logs,
    "cursors": _cursors,
    "history": _history,
}
