"""Rows of the tables, without Spark's JVM."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.api.maintenance import ListedCursor, ListedPartition
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.errors import BadRequestError
from bookie.ids import LOG_TAG
from bookie.ledger.copies.replica_audit import ReplicaVerdict, unreadable
from bookie.ledger.copies.replica_plan import count_of, stripe_ranges
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.ledger.quorum import Quorum
from bookie.log.catalog.log_cursor import LogCursor
from bookie.log.catalog.log_metadata import LogDefinition, LogHead, LogOwner, LogRange
from bookie.spark.options import SparkOptions
from bookie.spark.tables import rows
from bookie.spark.tables.columns import TABLES, table_schema
from bookie.spark.tables.options import take_table

URI = "local:///somewhere"
LEDGER = LedgerMetadata(
    7,
    3,
    2,
    2,
    LedgerState.OPEN,
    (Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "b", "d"))),
    ctime_ms=1000,
    custom_metadata={LOG_TAG: b"default/orders 0123"},
)
CLOSED = LEDGER.closed(29, 3000)
HEAD = LogHead(
    "0123",
    3,
    LogOwner("me", 5),
    (LogRange(1, 0, 9, 0, 77, 900), LogRange(2, 0, None, 10)),
    chunk_bytes=100,
)


def _record(table: str, row: rows.Row) -> dict[str, object]:
    return dict(zip(table_schema(table).names, row, strict=True))


def test_every_row_has_the_columns_of_its_table() -> None:
    listed = ListedPartition("orders", LogDefinition("0123", created_ms=9), 0, HEAD)
    registration = Registration("a", (Endpoint("bookie", "h", 1, "grpc"),), {"rack": "r1"})
    assert _record("ledgers", rows.ledger_row(CLOSED))["log"] == "orders"
    assert _record("ledgers", rows.ledger_row(LEDGER))["lastEntryId"] is None
    assert _record("ledgers", rows.unreadable_row(3))["state"] == rows.UNREADABLE
    assert _record("bookies", rows.bookie_row(registration, "writable"))["rack"] == "r1"
    log = _record("logs", rows.log_row(listed))
    assert (log["bytes"], log["endOffset"], log["openLedgers"]) == (1000, None, [2])
    cursor = ListedCursor("orders", 0, "billing", LogCursor(4, committed_ms=2))
    assert _record("cursors", rows.cursor_row(cursor))["committedAt"] == 2000
    history = [_record("history", row) for row in rows.history_rows("o", [(0, HEAD.ranges[0])])]
    assert history[0]["endOffset"] == 10
    assert _record("audit", rows.verdict_row(unreadable(3)))["verdict"] == "unreadable"


def test_verdicts_keep_their_ranges() -> None:
    verdict = ReplicaVerdict(1, 0, "a", 0, 9, "missing", 3, ranges=((1, 2), (5, 5)))
    row = _record("audit", rows.verdict_row(verdict))
    assert row["ranges"] == [{"first": 1, "last": 2}, {"first": 5, "last": 5}]


def test_replicas_share_the_bytes_of_their_ledger() -> None:
    found = [_record("replicas", row) for row in rows.replica_rows(CLOSED, {"a": "writable"})]
    assert len(found) == 6
    assert sum(row["entries"] for row in found) == 60  # type: ignore[misc]
    assert sum(row["estimatedBytes"] for row in found) == 6000  # type: ignore[misc]
    assert {row["bookieState"] for row in found if row["bookie"] != "a"} == {"lost"}


def test_fragments_of_an_open_ledger_end_openly() -> None:
    found = [_record("fragments", row) for row in rows.fragment_rows(LEDGER)]
    assert [(row["fragment"], row["lastEntryId"]) for row in found] == [(0, 9), (10, None)]


@given(st.integers(1, 6), st.data(), st.integers(0, 50), st.integers(-1, 60))
def test_a_stripe_is_counted_as_it_is_listed(
    ensemble: int, data: st.DataObject, first: int, span: int
) -> None:
    write = data.draw(st.integers(1, ensemble))
    slot = data.draw(st.integers(0, ensemble - 1))
    stripe = Quorum(ensemble, write, 1).stripe_of(slot)
    listed = count_of(stripe_ranges(stripe, first, first + span))
    assert rows.stripe_count(stripe, first, first + span) == listed


@given(st.integers(0, 50), st.integers(1, 20))
def test_rows_travel_in_parts(count: int, size: int) -> None:
    found: list[rows.Row] = [(number,) for number in range(count)]
    parts = rows.in_parts(found, size)
    assert [row for part in parts for row in part] == found
    assert parts
    assert all(len(part) <= size for part in parts)


@pytest.mark.parametrize("table", list(TABLES))
def test_every_table_has_distinct_columns(table: str) -> None:
    names = table_schema(table).names
    assert len(names) == len(set(names)) > 3


def _take(**options: str) -> object:
    return take_table(SparkOptions({"metadata": URI, **options}))


def test_options_are_checked_when_the_frame_is_made() -> None:
    assert _take() is None
    assert _take(log="orders") is None
    assert _take(table="LEDGERS", ledgers="1,5-9") is not None
    for wrong, sentence in (
        ({"table": "tables"}, "the option table is one of ledgers"),
        ({"table": "history"}, "needs the option log"),
        ({"table": "audit", "ledgers": "9-5"}, "ids and ranges such as"),
        ({"table": "bookies", "ledgers": "1"}, "there is no option ledgers"),
        ({"table": "audit", "maxBytesPerPartition": "many"}, "is a size such as"),
    ):
        with pytest.raises(BadRequestError, match=sentence):
            _take(**wrong)


def test_only_wanted_ledgers_are_wanted() -> None:
    found = take_table(SparkOptions({"metadata": URI, "table": "audit", "ledgers": "1,5-9"}))
    assert found is not None
    assert [one for one in range(12) if found.wants(one)] == [1, 5, 6, 7, 8, 9]
    assert replace(found, ledgers=None).wants(12)
