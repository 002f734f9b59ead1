"""Errors of a writer that has ended: the reason and the remedy; never to try it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import cast

import pytest

from bookie.config import ClientSettings
from bookie.errors import (
    BookieError,
    ClientClosedError,
    LedgerFencedError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerState
from bookie.ledger.write.handle import WriterHandle
from bookie.metadata.versioned import Versioned
from tests.unit.ledger.fake_pool import UNNAMED, FakePool, fake_pool, metadata_of

QUICK = ClientSettings(add_timeout_seconds=0.05)


def writer_on(pool: FakePool) -> WriterHandle:
    """A writer that has nothing to do with a metadata store."""
    created = Versioned(metadata_of(), 0)
    writer = WriterHandle(created, pool.pool, cast("LedgerManager", None), UNNAMED)
    writer.start()
    return writer


async def failure_of(call: Awaitable[object]) -> BookieError:
    """The error of a call that must fail."""
    with pytest.raises(BookieError) as caught:
        await call
    return caught.value


async def sent(pool: FakePool, writer: WriterHandle) -> asyncio.Task[BookieError]:
    """An append that the bookies have not answered yet."""
    waiting = pool.tasks.create_task(failure_of(writer.append(b"x")))
    for _ in range(4):
        await asyncio.sleep(0)
    assert pool.lane(0).sent
    return waiting


async def errors_of(writer: WriterHandle) -> list[BookieError]:
    """The errors of a force and of two appends, on a writer that has ended."""
    calls = (writer.force(), writer.append(b"x"), writer.append_many([b"x"]))
    return [await failure_of(call) for call in calls]


@pytest.mark.parametrize(
    ("statuses", "causes"),
    [
        (
            [Status.READ_ONLY, Status.READ_ONLY],
            "b1: the bookie takes no new entries; b2: the bookie takes no new entries",
        ),
        ([Status.READ_ONLY, None], "b1: the bookie takes no new entries; b2 is unreachable"),
        ([None, None], "b1 is unreachable; b2 is unreachable"),
    ],
)
async def test_the_error_names_each_bookie_and_its_reason(
    statuses: list[Status | None], causes: str
) -> None:
    """The append that waited and every later one say the same."""
    async with fake_pool(QUICK) as pool:
        writer = writer_on(pool)
        for slot, status in enumerate(statuses, start=1):
            if status is None:
                pool.lane(slot).users[0].on_down()
        waiting = await sent(pool, writer)
        pool.lane(0).answer()
        for slot, status in enumerate(statuses, start=1):
            if status is not None:
                pool.lane(slot).answer(status, "the bookie takes no new entries")
        for error in [await waiting, *await errors_of(writer)]:
            assert isinstance(error, NotEnoughBookiesError)
            assert not error.retryable
            assert str(error) == (
                f"ledger 9: no ack quorum answered within 0.05 s ({causes}); "
                "the writer of ledger 9 has ended, create another ledger"
            )


async def test_a_silent_bookie_is_named() -> None:
    """Connected, and no answer."""
    async with fake_pool(QUICK) as pool:
        writer = writer_on(pool)
        with pytest.raises(NotEnoughBookiesError, match=r"b0: no answer; b1: no answer"):
            await writer.append(b"x")


async def test_a_refusal_says_what_to_do() -> None:
    """The bookie's own words stay in front."""
    async with fake_pool() as pool:
        writer = writer_on(pool)
        waiting = await sent(pool, writer)
        pool.lane(0).answer(Status.UNAUTHORIZED, "it has another key")
        error = await waiting
        assert isinstance(error, UnauthorizedError)
        assert str(error).startswith("it has another key; ")
        assert not error.retryable


class Ledgers:
    """A metadata store in which another client took the ledger over."""

    async def read_latest(self, _ledger_id: int, _token: int) -> Versioned[object]:
        return Versioned(replace(metadata_of(), state=LedgerState.IN_RECOVERY), 1)


async def test_a_fenced_writer_says_who_took_the_ledger() -> None:
    """Taken over: not retryable, and the same advice."""
    async with fake_pool() as pool:
        created = Versioned(metadata_of(), 0)
        writer = WriterHandle(created, pool.pool, cast("LedgerManager", Ledgers()), UNNAMED)
        writer.start()
        waiting = await sent(pool, writer)
        pool.lane(0).answer(Status.FENCED)
        for error in [await waiting, *await errors_of(writer)]:
            assert isinstance(error, LedgerFencedError)
            assert not error.retryable
            assert str(error).startswith("another client took ledger 9 over: ")
            assert str(error).endswith("create another ledger")


class OpenLedgers:
    """A metadata store in which the ledger is the writer's own."""

    async def read_latest(self, _ledger_id: int, _token: int) -> Versioned[object]:
        return Versioned(metadata_of(), 0)


async def test_a_fence_without_a_recovery_is_called_a_fence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another client fenced two bookies, and took nothing over: no bookie lost its data."""
    async with fake_pool(QUICK) as pool:
        created = Versioned(metadata_of(), 0)
        writer = WriterHandle(created, pool.pool, cast("LedgerManager", OpenLedgers()), UNNAMED)
        writer.start()
        waiting = await sent(pool, writer)
        pool.lane(0).answer()
        for slot in (1, 2):
            pool.lane(slot).answer(Status.FENCED)
        fenced = "it says that another client fenced the ledger"
        for error in [await waiting, *await errors_of(writer)]:
            assert isinstance(error, NotEnoughBookiesError)
            assert f"(b1: {fenced}; b2: {fenced});" in str(error)
        skipped = [str(record.msg) for record in caplog.records if "skipped" in str(record.msg)]
        assert len(skipped) == 2
        assert all(fenced in line for line in skipped)


async def test_a_writer_says_that_it_has_ended() -> None:
    """One look is enough, whatever class its errors have; a refused call ends nothing."""
    async with fake_pool(QUICK) as pool:
        writer = writer_on(pool)
        assert writer.failure is None
        await failure_of(writer.append(cast("bytes", "text")))
        assert writer.failure is None
        waiting = await sent(pool, writer)
        pool.lane(0).answer(Status.UNAUTHORIZED)
        error = await waiting
        assert isinstance(error, UnauthorizedError)
        assert str(writer.failure) == str(error)


async def test_a_writer_whose_client_was_closed_says_so() -> None:
    """It takes no appends either."""
    async with fake_pool(QUICK) as pool:
        writer = writer_on(pool)
        writer.abandon()
        assert isinstance(writer.failure, ClientClosedError)
