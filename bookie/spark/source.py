"""The source that Spark finds under the name ``bookkeeper``.

For each phase of a query, Spark starts a process that imports this module. In the phase in which
Spark looks for sources, it needs only the class. So each method imports the modules that it uses,
which saves one second of processor time in that phase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from bookie.spark.sink_options import SinkSettings
    from bookie.spark.sinks import BatchSink, StreamSink
    from bookie.spark.stream_source import LogStreamReader


class BookKeeperSource(DataSource):
    """The source ``format("bookkeeper")``.

    The constructor only stores the options, because Spark creates several objects.
    """

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> StructType:
        """Return the schema of the frame, which the options decide.

        Spark calls this method when the frame is made, so a missing log or ledger raises an error
        at that time.
        """
        from bookie.spark.batch_source import check_exists
        from bookie.spark.catalog import carrying, options_at_creation
        from bookie.spark.options import SparkOptions
        from bookie.spark.source_options import take_source
        from bookie.spark.tables.columns import table_schema
        from bookie.spark.tables.options import take_table

        kept = options_at_creation(self.options)
        options = self.options if kept is None else kept
        if (table := take_table(SparkOptions(options))) is not None:
            columns = table_schema(table.table)
        else:
            source = take_source(SparkOptions(options), is_stream=False)
            check_exists(source)
            columns = source.columns.schema()
        return columns if kept is None else carrying(columns, kept)

    def reader(self, schema: StructType) -> DataSourceReader:
        from bookie.spark.batch_source import LedgerBatchReader, LogBatchReader
        from bookie.spark.catalog import options_of_read
        from bookie.spark.options import SparkOptions
        from bookie.spark.source_options import LedgerSource, take_source
        from bookie.spark.tables.options import take_table

        options = options_of_read(self.options, schema)
        if (table := take_table(SparkOptions(options))) is not None:
            from bookie.spark.tables.reading import TableReader

            return TableReader(table)
        source = take_source(SparkOptions(options), is_stream=False)
        if isinstance(source, LedgerSource):
            return LedgerBatchReader(source)
        return LogBatchReader(source)

    def streamReader(self, schema: StructType) -> LogStreamReader:
        from bookie.spark.catalog import options_of_read
        from bookie.spark.options import SparkOptions
        from bookie.spark.source_options import LogSource, take_source
        from bookie.spark.stream_source import LogStreamReader

        options = options_of_read(self.options, schema)
        source = take_source(SparkOptions(options), is_stream=True)
        assert isinstance(source, LogSource), "a stream reads logs"
        return LogStreamReader(source)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        from bookie.spark.sinks import BatchSink

        return BatchSink(self._sink(schema, overwrite=overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        from bookie.spark.sinks import StreamSink

        return StreamSink(self._sink(schema, overwrite=overwrite, is_stream=True))

    def _sink(self, schema: StructType, *, overwrite: bool, is_stream: bool) -> SinkSettings:
        from bookie.spark.catalog import POSITIONS, options_of_write
        from bookie.spark.options import SparkOptions
        from bookie.spark.sink_options import take_sink
        from bookie.spark.sink_task import find_log

        columns = [(one.name, one.dataType.simpleString()) for one in schema.fields]
        options, is_insert = options_of_write(self.options, schema)
        settings = take_sink(
            SparkOptions(options),
            columns,
            overwrite=overwrite,
            is_stream=is_stream,
            filled_by_log=POSITIONS if is_insert else (),
        )
        if settings.log is not None:
            client = settings.connection.client()
            find_log(
                client,
                settings.log,
                creates=settings.creates_logs,
                partitions=settings.partitions,
            )
        return settings
