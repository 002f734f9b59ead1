"""Surveys: where the records are, how large they are, and when there are more."""

from __future__ import annotations

import asyncio

import pytest

from bookie.api import LogPolicy, LogPosition, LogWriter, connect
from bookie.errors import BadRequestError, LogTruncatedError, NoSuchLogError
from tests.unit.ledger.real_cluster import RealCluster

ONE_COPY = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


async def test_spans_of_closed_and_open_ledgers(one_bookie: RealCluster) -> None:
    """Closed ones by their sizes, the open one by a sample; cut at both ends."""
    async with connect(one_bookie.uri) as bk:
        await bk.create_log("orders", policy=ONE_COPY)
        async with bk.open_log("orders") as log:
            await log.append_many([b"x" * 84] * 10)
            await log.roll()
            await log.append_many([b"y" * 184] * 10)
            survey = await bk.survey_log("orders")
            assert await survey.bounds() == [(0, 20)]
            whole = await survey.spans(0, 0, 20)
            assert [(one.offset, one.end_offset, one.size_bytes) for one in whole] == [
                (0, 10, 1000),
                (10, 20, 2000),
            ]
            part = await survey.spans(0, 5, 12)
            assert [(one.offset, one.end_offset, one.size_bytes) for one in part] == [
                (5, 10, 500),
                (10, 12, 400),
            ]
            assert await survey.spans(0, 20, 20) == []
            assert await survey.locate(0, "latest") == 20
            with pytest.raises(BadRequestError, match="is in partition 1, not in partition 0"):
                await survey.locate(0, LogPosition(1, 1, 1, 1))
            with pytest.raises(BadRequestError, match="no partition 1"):
                await survey.spans(1, 0, 1)
        await bk.truncate_log("orders", before=3)
        assert await survey.bounds() == [(3, 20)]
        with pytest.raises(LogTruncatedError):
            await survey.spans(0, 0, 20)


async def test_waiting_for_records(one_bookie: RealCluster) -> None:
    """Of any partition; what is there already counts, and a log that is missing is an error."""
    async with connect(one_bookie.uri) as bk:
        await bk.create_log("orders", partitions=2, policy=ONE_COPY)
        async with bk.open_log("orders") as log:
            await log.append(b"a", partition=0)
            ends = {("orders", 0): 1, ("orders", 1): 0}
            assert await bk.await_records({**ends, ("orders", 0): 0}, timeout_seconds=60)
            assert not await bk.await_records(ends, timeout_seconds=0.05)
            async with asyncio.TaskGroup() as tasks:
                news = tasks.create_task(bk.await_records(ends, timeout_seconds=60))
                tasks.create_task(_append_later(log))
            assert news.result()
        with pytest.raises(NoSuchLogError):
            await bk.await_records({("no-such-log", 0): 0}, timeout_seconds=60)
        with pytest.raises(NoSuchLogError):
            await bk.survey_log("no-such-log")


async def _append_later(log: LogWriter) -> None:
    await asyncio.sleep(0.05)
    await log.append(b"b", partition=1)
