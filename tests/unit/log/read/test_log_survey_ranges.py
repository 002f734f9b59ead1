"""The spans of a log's records, and waiting for the next record."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from bookie.api import BookKeeper
from bookie.errors import BadRequestError, LogTruncatedError, NoSuchLogError
from bookie.ledger.read.handle import ReaderHandle
from bookie.log.read.ledger_runs import LedgerReaders
from bookie.log.read.survey import LogSpan, LogSurvey, await_records
from tests.unit.log.hand_made_log import ONE_COPY, HandMadeLog


async def survey_of(log: HandMadeLog) -> LogSurvey:
    """A look at it."""
    return await LogSurvey.open(log.client, log.partition.name)


def offsets_of(spans: list[LogSpan]) -> list[tuple[int, int]]:
    """Their begins and ends."""
    return [(one.offset, one.end_offset) for one in spans]


async def test_spans_cover_closed_and_open_ranges(log: HandMadeLog) -> None:
    """Parts of ranges have parts of their bytes; those of an open range are estimated."""
    await log.fill(10, 20, width=100)
    writer = await log.add()
    await log.append(writer, 30, width=100)
    survey = await survey_of(log)
    earliest, end = (await survey.bounds())[0]
    assert earliest == 0
    assert end >= 30
    spans = list(await survey.spans(0, 5, end))
    assert offsets_of(spans)[:2] == [(5, 10), (10, 30)]
    assert spans[-1].end_offset == end
    assert all(one.end_offset == other.offset for one, other in pairwise(spans))
    sizes = {round(one.size_bytes / (one.end_offset - one.offset)) for one in spans}
    (size,) = sizes
    assert 100 < size < 200
    assert list(await survey.spans(0, 7, 7)) == []
    assert offsets_of(list(await survey.spans(0, 12, 15))) == [(12, 15)]


async def test_a_ledger_that_has_ended_while_the_head_does_not_know_it(log: HandMadeLog) -> None:
    """The next ledger has records already. No record is left out."""
    first = await log.add()
    await log.append(first, 3)
    second = await log.add()
    await first.close()
    await log.append(second, 4)
    await second.close()
    survey = await survey_of(log)
    assert (await survey.bounds())[0] == (0, 7)
    spans = list(await survey.spans(0, 0, 7))
    assert spans[0].offset == 0
    assert spans[-1].end_offset == 7
    assert all(one.end_offset == other.offset for one, other in pairwise(spans))


async def test_places_and_what_is_none(log: HandMadeLog) -> None:
    await log.fill(5, 5)
    survey = await survey_of(log)
    assert await survey.locate(0, time=7) == 7
    assert await survey.locate(0, "latest") == 10
    with pytest.raises(BadRequestError, match="no partition 1"):
        await survey.locate(1, "latest")
    await log.truncate(5)
    with pytest.raises(LogTruncatedError, match="the earliest one is 5"):
        await survey.spans(0, 3, 10)


async def test_a_ledger_that_is_truncated_after_the_head_was_read(
    log: HandMadeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean size of an open ledger is read from its entries, which are deleted meanwhile."""
    writer = await log.add()
    await log.append(writer, 4)
    survey = await survey_of(log)
    opening = LedgerReaders.open

    async def late(readers: LedgerReaders, ledger_id: int) -> ReaderHandle:
        if ledger_id == writer.ledger_id and not writer.is_closed:
            await log.close(writer)
            await log.fill(3)
            await log.truncate(4)
        return await opening(readers, ledger_id)

    monkeypatch.setattr(LedgerReaders, "open", late)
    with pytest.raises(LogTruncatedError, match="the earliest one is 4"):
        await survey.spans(0, 0, 4)
    assert offsets_of(list(await survey.spans(0, 4, 7))) == [(4, 7)]


async def test_waiting_for_a_record(log: HandMadeLog) -> None:
    """It ends with the record, at once if there is one, or when the time is over."""
    writer = await log.add()
    await log.append(writer, 3)

    async def wait(offset: int, seconds: float) -> bool:
        return await await_records(log.client, {log.partition: offset}, timeout_seconds=seconds)

    assert await wait(0, 60)
    assert not await wait(3, 0.01)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(wait(3, 60))
        await asyncio.sleep(0)
        await log.append(writer, 1)
    assert waiting.result()


async def test_a_log_that_is_gone(bk: BookKeeper) -> None:
    await bk.create_log("gone", policy=ONE_COPY)
    survey = await bk.survey_log("gone")
    await bk.delete_log("gone")
    with pytest.raises(NoSuchLogError):
        await survey.bounds()
    with pytest.raises(NoSuchLogError):
        await bk.survey_log("gone")
    with pytest.raises(NoSuchLogError):
        await bk.await_records({("gone", 0): 0}, timeout_seconds=60)
