"""The objects that Spark calls to write a frame or the micro-batches of a stream.

A frame that is written twice with the same options `txnAppId` and `txnVersion` is published only
once. The two options are for `foreachBatch`, and for jobs that somebody may start again. A stream
publishes each micro-batch once, under the id of the query. Spark does not pass the batch number to
`write`, so `write` reads the number from the task's properties.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from bookie.errors import BadRequestError
from bookie.spark.sink_options import SinkSettings
from bookie.spark.sink_publishing import (
    Messages,
    WrittenRanges,
    abort_batch,
    forget_application,
    publish_batch,
)
from bookie.spark.sink_task import SinkTask, write_rows
from bookie.spark.task_writers import task_writers

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


class BatchSink(DataSourceArrowWriter):
    """Writes one frame.

    Spark sends pickled copies of the object to the tasks and to the commit.
    """

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings
        self.application = settings.application or f"write-{uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> WrittenRanges:
        """Write the rows of a task; Spark calls this method on an executor."""
        turn = task_context().partitionId() + (self.settings.version or 0)
        client = self.settings.connection.client()
        task = SinkTask(self.settings, self.application, task_writers(), client, turn)
        return WrittenRanges(self.application, write_rows(task, iterator))

    def commit(self, messages: Messages) -> None:
        """Publish the rows of all tasks; Spark calls this method in a process of the driver."""
        published = publish_batch(self.settings, self.settings.version or 0, messages)
        if self.settings.application is None:  # no other write has this id
            forget_application(self.settings, self.application, published)

    def abort(self, messages: Messages) -> None:
        abort_batch(self.settings, messages)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query; each process of Spark makes its own object."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings

    def write(self, iterator: Iterator[Any]) -> WrittenRanges:
        """Write the rows of a task; Spark calls this method on an executor."""
        context = task_context()
        application = self.settings.application or _property(context, QUERY_PROPERTY)
        turn = context.partitionId() + int(_property(context, BATCH_PROPERTY))
        client = self.settings.connection.client()
        task = SinkTask(self.settings, application, task_writers(), client, turn)
        return WrittenRanges(application, write_rows(task, iterator))

    def commit(self, messages: Messages, batchId: int) -> None:
        """Publish a micro-batch; Spark calls this method in the driver, and again after a crash."""
        publish_batch(self.settings, batchId, messages)

    def abort(self, messages: Messages, batchId: int) -> None:
        abort_batch(self.settings, messages)


def task_context() -> TaskContext:
    """Return the context of the running task."""
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    return context


def _property(context: TaskContext, name: str) -> str:
    found = context.getLocalProperty(name)
    if found is None:
        raise BadRequestError(
            f"this version of Spark does not tell tasks their {name}; use PySpark 4.3"
        )
    return str(found)
