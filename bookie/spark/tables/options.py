"""The options of a read of a table about the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from bookie.errors import BadRequestError
from bookie.spark.connecting import SparkConnection, take_connection
from bookie.spark.options import SparkOptions
from bookie.spark.tables.columns import TABLES

BYTES_OF_A_PARTITION = 256 * 1024 * 1024
"""The bytes that one task of an audit reads, in all copies together."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The table of a read, and its options."""

    connection: SparkConnection
    table: str
    log: str | None
    ledgers: tuple[tuple[int, int], ...] | None
    """The ranges of ledger ids to read; None for all ledgers."""
    bytes_of_a_partition: int
    partitions_min: int

    def wants(self, ledger_id: int) -> bool:
        if self.ledgers is None:
            return True
        return any(first <= ledger_id <= last for first, last in self.ledgers)


def take_table(options: SparkOptions) -> TableOptions | None:
    """Parse the options of a read of a table; None if the options name no table.

    Raises:
        BadRequestError: an option is wrong.
    """
    table = options.take_choice("table", tuple(TABLES), "")
    if not table:
        return None
    connection = take_connection(options)
    log = options.take("log") if table == "history" else None
    if table == "history" and log is None:
        raise BadRequestError("the table history needs the option log: the name of a log")
    ledgers = None
    if table in ("ledgers", "fragments", "replicas", "audit"):
        text = options.take_names("ledgers", "ledgerId")
        ledgers = None if text is None else tuple(map(_ids, text))
    size, least = BYTES_OF_A_PARTITION, 1
    if table == "audit":
        size = options.take_bytes("maxBytesPerPartition") or size
        least = options.take_count("minPartitions") or least
    options.refuse_others()
    return TableOptions(connection, table, log, ledgers, size, least)


def _ids(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise BadRequestError(f"the option ledgers is ids and ranges such as 1,2,10-20, not {text}")
    return int(first), int(last)
