"""Every public method of `bookie.sync` with arguments of wrong types: one RequestError each."""

from __future__ import annotations

import inspect
from typing import Any

import bookie.sync
from bookie.sync import SyncBookKeeper
from tests.odd_input import OddCalls, methods_of
from tests.unit.api.test_odd_input import INSIDE, ONE_COPY, RIGHT

CLASSES = {
    "SyncBookKeeper",
    "SyncCursors",
    "SyncGroupMember",
    "SyncLogConsumer",
    "SyncLogPublisher",
    "SyncLogReader",
    "SyncLogSurvey",
    "SyncLogWriter",
    "SyncRangeWriter",
    "SyncReader",
    "SyncWriter",
}


def test_every_public_class_takes_part() -> None:
    """A new class with methods needs a place in one of the tests below."""
    found = {
        name
        for name in bookie.sync.__all__
        if inspect.isclass(kind := getattr(bookie.sync, name)) and list(methods_of(kind, set()))
    }
    assert found == CLASSES


def test_a_client_and_its_ledgers(bk: SyncBookKeeper) -> None:
    """Ledgers and logs are made, opened, listed and deleted by right arguments only."""
    bk.create_log("orders", policy=ONE_COPY)
    writer = bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    writer.append(b"0")
    reader = bk.open_ledger(writer.ledger_id)
    calls = OddCalls(RIGHT)
    for handle in (bk, writer, reader, bk.maintenance()):
        calls.sync_methods(handle, {"copy_group", "publish_compaction"})
    calls.refused()
    assert (list(bk.list_logs()), list(bk.list_ledgers())) == (["orders"], [writer.ledger_id])
    assert writer.last_entry_id == 0
    writer.close()


def test_logs(bk: SyncBookKeeper) -> None:
    """Nothing is appended, moved or committed by a wrong argument."""
    calls = OddCalls(RIGHT)
    bk.create_log("orders", partitions=2, policy=ONE_COPY)
    with (
        bk.open_log("orders") as writer,
        bk.consume("orders", cursor="billing", partition=0) as consumer,
        bk.join_group("workers", logs=["orders"]) as member,
        bk.log_reader("orders") as reader,
    ):
        writer.append(b"0", partition=0)
        handles: list[Any] = [writer, reader, consumer, member]
        for handle in [*handles, bk.cursors("orders"), bk.survey_log("orders")]:
            calls.sync_methods(handle, INSIDE)
        calls.refused()
        assert (writer.next_offset(0), writer.next_offset(1), consumer.committed) == (1, 0, 0)


def test_transactional_logs(bk: SyncBookKeeper) -> None:
    """Nothing is written or published by a wrong argument."""
    calls = OddCalls(RIGHT)
    bk.create_log("orders", transactional=True, policy=ONE_COPY)
    with bk.open_range_writer("orders", "app") as writer:
        publisher = bk.publisher("orders")
        for handle in (writer, publisher):
            calls.sync_methods(handle)
        assert writer.cut() is None
        assert publisher.last_batch("app") == -1
    calls.refused()


def test_functions() -> None:
    """The ways in."""
    calls = OddCalls(RIGHT)
    for function in (bookie.sync.connect, bookie.sync.shared_client):
        for what, arguments in calls.of(function):
            calls.sync_one(what, function, arguments)
    calls.refused()
