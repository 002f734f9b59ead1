"""Reads facts about logs and their owners, for ``bookie log list`` and ``bookie log show``."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from bookie.cli.options import OutputFormat
from bookie.cli.output import Cell, Record, print_record, print_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.api import BookKeeper
    from bookie.log.catalog.log_metadata import LogDefinition, LogHead
    from bookie.log.catalog.logs import LogPartition
    from bookie.log.read.status import LogExtent
    from bookie.metadata.store import MetadataStore


async def list_all(
    store: MetadataStore, namespace: str | None, on_damaged: Callable[[str], object]
) -> list[Record]:
    """Return a record for each log, or only for each log of `namespace`.

    If the metadata of a log is damaged, the function calls `on_damaged` with the log's name.
    """
    from bookie.env.clock import moment_text
    from bookie.errors import FormatError
    from bookie.log.catalog.logs import LogManager

    logs = LogManager(store)
    records: list[Record] = []
    async for name in logs.list_logs(namespace):
        try:
            found = await logs.find(name)
        except FormatError:
            on_damaged(str(name))
            continue
        if found is not None:
            records.append(
                {
                    "log": str(name),
                    "mode": found.value.mode.value,
                    "partitions": found.value.partitions,
                    "created": moment_text(found.value.created_ms),
                    "deleting": found.value.is_deleted,
                }
            )
    return records


async def owners_of(store: MetadataStore, log: str, partition: int | None) -> str:
    """Return the owners of a log's partitions as text; empty if the log has no owner.

    The result includes an owner that has crashed, because metadata cannot distinguish a crashed
    owner from a slow owner.
    """
    from bookie.cli.log_arguments import check_partition
    from bookie.env.clock import moment_text
    from bookie.log.catalog.logs import LogManager, LogName, LogPartition

    logs, name = LogManager(store), LogName.parse(log)
    definition = (await logs.read(name)).value
    check_partition(name, definition, partition)
    owners = {}
    for number in range(definition.partitions) if partition is None else [partition]:
        head = await logs.read_latest_head(LogPartition(name, number), definition.log_id)
        if (owner := head.value.owner) is not None:
            owners[owner.name] = moment_text(owner.since_ms)
    return ", ".join(f"{name} since {since}" for name, since in owners.items())


async def describe_log(bk: BookKeeper, log: str, password: bytes, output: OutputFormat) -> None:
    """Print a log's definition, its effective policy, and the extent of each partition."""
    from bookie.cli.log_access import client_of, partitions_of, unpublished_hint
    from bookie.env.clock import moment_text

    definition, partitions = await partitions_of(bk, log, None)
    name = partitions[0].name
    summary: dict[str, Cell] = {
        "log": str(name),
        "namespace": name.namespace,
        "mode": definition.mode.value,
        "created": moment_text(definition.created_ms),
        "log_id": definition.log_id,
    }
    policy = await _policy(bk, name.namespace, name.log)
    logs = client_of(bk).logs
    details = []
    for one in partitions:
        head = await logs.read_latest_head(one, definition.log_id)
        extent = await _extent(bk, one, definition, password)
        details.append(_describe(one, head.value, extent))
    if output is OutputFormat.JSON:
        whole = {**summary, "policy": policy, "partitions": details}
        print(json.dumps(whole, indent=2))
        return
    print_record(summary, output)
    print()
    print_records(policy, output)
    print()
    print_records(details, output)
    hint = await unpublished_hint(bk, partitions, definition, password)
    if hint:
        print(f"bookie: {hint}", file=sys.stderr)


async def _policy(bk: BookKeeper, namespace: str, log: str) -> list[Record]:
    """Return the values of a log's effective policy, each with its origin.

    The origin of a value is the policy of the log, the policy of its namespace, or the defaults.
    """
    from bookie.cli.log_access import client_of
    from bookie.errors import NoSuchKeyError
    from bookie.log.catalog.logs import LogName

    client = client_of(bk)
    whole = asdict(await client.policy(LogName(namespace, log)))
    decided: dict[str, str] = {}
    with suppress(NoSuchKeyError):  # the default namespace may have no record
        decided |= _origins(asdict((await client.namespaces.read(namespace)).value), "namespace")
    own = await client.namespaces.log_policy(namespace, log)
    if own is not None:
        decided |= _origins(asdict(own.value), "log")
    return [
        {"key": key, "value": value, "decided_by": decided.get(key, "default")}
        for key, value in whole.items()
    ]


def _origins(policy: dict[str, object], origin: str) -> dict[str, str]:
    return {key: origin for key, value in policy.items() if value is not None}


async def _extent(
    bk: BookKeeper, partition: LogPartition, definition: LogDefinition, password: bytes
) -> LogExtent | None:
    """Return the extent of a partition; None if too few bookies answer."""
    from bookie.cli.log_access import client_of
    from bookie.errors import UnavailableError
    from bookie.log.read.status import log_extent

    try:
        return await log_extent(client_of(bk), partition, definition, password)
    except UnavailableError:
        return None


def _describe(partition: LogPartition, head: LogHead, extent: LogExtent | None) -> Record:
    from bookie.env.clock import moment_text
    from bookie.log.head.chain import live_bytes

    return {
        "partition": partition.number,
        "owner": None if head.owner is None else head.owner.name,
        "since": None if head.owner is None else moment_text(head.owner.since_ms),
        "epoch": head.epoch,
        "earliest": head.start_offset,
        "end": None if extent is None else extent.end_offset,
        "ranges": len(head.ranges),
        "chunks": head.next_chunk - head.first_chunk,
        "bytes": live_bytes(head),
        "open_ledgers": [one.ledger_id for one in head.open_ranges],
    }
