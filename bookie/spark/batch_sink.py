"""The sink of plain writes.

With `txnAppId` and `txnVersion` a write happens once, however often it is repeated. This is for
`foreachBatch` and for jobs that may run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter

from bookie.spark.sink_options import SinkSettings
from bookie.spark.sink_publishing import (
    Messages,
    WrittenRanges,
    abort_batch,
    forget_application,
    publish_batch,
)
from bookie.spark.sink_task import SinkTask, write_rows
from bookie.spark.stream_sink import task_context
from bookie.spark.task_writers import task_writers


class BatchSink(DataSourceArrowWriter):
    """Writes one frame. The same object, pickled, serves tasks and commit."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings
        self.application = settings.application or f"write-{uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> WrittenRanges:
        """Write the rows of a task, on an executor."""
        turn = task_context().partitionId() + (self.settings.version or 0)
        client = self.settings.connection.client()
        task = SinkTask(self.settings, self.application, task_writers(), client, turn)
        return WrittenRanges(self.application, write_rows(task, iterator))

    def commit(self, messages: Messages) -> None:
        """Publish the write, in a process of the driver."""
        published = publish_batch(self.settings, self.settings.version or 0, messages)
        if self.settings.application is None:  # nobody else has this id, and nobody will
            forget_application(self.settings, self.application, published)

    def abort(self, messages: Messages) -> None:
        abort_batch(self.settings, messages)
