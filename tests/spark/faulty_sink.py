"""The sink with planted faults, for streams: ``format("faulty")`` with the option ``faults``.

The option names a directory. A file in it is one fault: its name is the point at which it happens,
its text is what happens there. It happens once, because its file is deleted first.

==================== =========================================================================
point                when
==================== =========================================================================
``write-B``          in a task of batch B, after its first rows were handed to a ledger
``written-B``        in a task of batch B, when its ranges are durable and nobody knows them
``commit-B``         in the driver's process, before batch B is published
``published-B-N``    there, after N + 1 logs published it
==================== =========================================================================

The text is ``raise``, or ``kill`` and pids; ``kill`` alone kills the process in which it happens.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from bookie.spark.sink_options import SinkSettings
from bookie.spark.sink_publishing import Messages, WrittenRanges
from bookie.spark.sinks import BATCH_PROPERTY, StreamSink, task_context
from bookie.spark.source import BookKeeperSource


class PlantedError(Exception):
    """A fault that a test planted."""


class FaultySink(StreamSink):
    """The product's sink, which meets faults between its steps."""

    def __init__(self, settings: SinkSettings, faults: Path) -> None:
        super().__init__(settings)
        self.faults = faults

    def write(self, iterator: Iterator[Any]) -> WrittenRanges:
        batch = task_context().getLocalProperty(BATCH_PROPERTY)

        def batches() -> Iterator[Any]:
            for one in iterator:
                yield one
                meet(self.faults, f"write-{batch}")

        written = super().write(batches())
        meet(self.faults, f"written-{batch}")
        return written

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803  (Spark's name)
        meet(self.faults, f"commit-{batchId}")
        for number, part in enumerate(by_log(messages)):
            super().commit(part, batchId)
            meet(self.faults, f"published-{batchId}-{number}")


def by_log(messages: Messages) -> list[list[WrittenRanges]]:
    """The messages of the tasks, once for each log, in the order in which logs are published."""
    written = [one for one in messages if isinstance(one, WrittenRanges)]
    logs = sorted({log for one in written for log in one.ranges})
    return [
        [WrittenRanges(one.application, {log: one.ranges.get(log, [])}) for one in written]
        for log in logs
    ]


class FaultySource(BookKeeperSource):
    """``format("faulty")``."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultySink:  # noqa: N802  (Spark's name)
        options = dict(self.options)
        faults = Path(options.pop("faults"))
        return FaultySink(
            BookKeeperSource(options).streamWriter(schema, overwrite).settings, faults
        )


def plant(faults: Path, point: str, action: str = "raise") -> None:
    """Have `action` happen at `point`, once."""
    faults.mkdir(parents=True, exist_ok=True)
    (faults / point).write_text(action)


def meet(faults: Path, point: str) -> None:
    """Bring about the fault that is planted at a point."""
    try:
        action, *pids = (faults / point).read_text().split()
        (faults / point).unlink()
    except FileNotFoundError:  # another process may have met it in this moment
        return
    if action == "raise":
        raise PlantedError(point)
    for pid in [*map(int, pids), os.getpid()]:
        os.kill(pid, signal.SIGKILL)
