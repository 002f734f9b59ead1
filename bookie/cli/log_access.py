"""What commands need of logs besides the verbs of `BookKeeper`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.cli.log_arguments import check_partition
from bookie.cluster.logs import LogName, LogPartition
from bookie.log.places import checked_place
from bookie.log.reading import LogReading

if TYPE_CHECKING:
    from bookie.api import BookKeeper
    from bookie.formats.log_metadata import LogDefinition
    from bookie.log.log_client import LogClient
    from bookie.log.places import LogStart


def client_of(bk: BookKeeper) -> LogClient:
    """The logs of a connected client."""
    return bk._logs


async def partitions_of(
    bk: BookKeeper, log: str, partition: int | None, *places: LogStart
) -> tuple[LogDefinition, list[LogPartition]]:
    """A log, and the one partition that is named or all of them.

    Raises:
        NoSuchLogError: there is no such log.
        typer.BadParameter: it has no such partition, or one of `places` needs one to be named.
    """
    name = LogName.parse(log)
    definition = await client_of(bk).definition(name)
    check_partition(name, definition, partition, *places)
    numbers = range(definition.partitions) if partition is None else [partition]
    return definition, [LogPartition(name, number) for number in numbers]


async def truncate_partition(
    bk: BookKeeper,
    partition: LogPartition,
    before: LogStart,
    before_ms: int | None,
    password: bytes = b"",
) -> int:
    """Truncate a partition before a place or a time; its first offset then."""
    log, number = str(partition.name), partition.number
    if before_ms is not None:
        return await bk.truncate_log(log, partition=number, before_time=before_ms)
    reading = LogReading(client_of(bk), password)
    offset = await reading.locate(partition, checked_place(before))
    return await bk.truncate_log(log, partition=number, before=offset)
