"""Operations on logs that only commands need, and that `BookKeeper` therefore does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.cli.log_arguments import check_partition
from bookie.errors import BookieError
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.read.reading import LogReading
from bookie.log.read.start_position import checked_place
from bookie.log.read.status import unpublished_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bookie.api import BookKeeper
    from bookie.log.catalog.log_metadata import LogDefinition
    from bookie.log.log_client import LogClient
    from bookie.log.read.start_position import LogStart


def client_of(bk: BookKeeper) -> LogClient:
    """Return the log client inside a connected `BookKeeper`."""
    return bk._logs


async def partitions_of(
    bk: BookKeeper, log: str, partition: int | None, *places: LogStart
) -> tuple[LogDefinition, list[LogPartition]]:
    """Return a log's definition and all its partitions, or only the given `partition`.

    Raises:
        NoSuchLogError: the log does not exist.
        typer.BadParameter: the partition does not exist, or one of `places` needs a partition.
    """
    name = LogName.parse(log)
    definition = await client_of(bk).definition(name)
    check_partition(name, definition, partition, *places)
    numbers = range(definition.partitions) if partition is None else [partition]
    return definition, [LogPartition(name, number) for number in numbers]


async def unpublished_hint(
    bk: BookKeeper, partitions: Sequence[LogPartition], definition: LogDefinition, password: bytes
) -> str:
    """Return a hint if bookies store entries after the end of a partition; else an empty text.

    The hint names the command that makes entries after the end readable. The function skips a
    partition that it cannot read, because a command that has done its work must not fail.
    """
    client = client_of(bk)
    for partition in partitions:
        try:
            found = await unpublished_entries(client, partition, definition, password)
            head = (await client.logs.read_head(partition, definition.log_id)).value
        except BookieError:
            continue
        if found:
            owner = "" if head.owner is None else f" {head.owner.name}"
            return (
                f"bookies store {found} entries behind the end of {partition}; "
                f"if the writer{owner} is gone, make them readable by: "
                f"bookie log roll {partition.name}"
            )
    return ""


async def truncate_partition(
    bk: BookKeeper,
    partition: LogPartition,
    before: LogStart,
    before_ms: int | None,
    password: bytes = b"",
) -> int:
    """Truncate a partition before a place or a time; return the partition's new first offset."""
    log, number = str(partition.name), partition.number
    if before_ms is not None:
        return await bk.truncate_log(log, partition=number, before_time=before_ms)
    reading = LogReading(client_of(bk), password)
    offset = await reading.locate(partition, checked_place(before))
    return await bk.truncate_log(log, partition=number, before=offset)
