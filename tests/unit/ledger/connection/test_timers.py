"""Timers of a client whose event loop is held up: what arrived meanwhile is looked at first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

import pytest

from bookie.errors import BookieError, NotEnoughBookiesError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.write.handle import WriterHandle
from bookie.metadata.versioned import Versioned
from tests.held_up import Loop, in_virtual_time
from tests.unit.ledger.fake_pool import UNNAMED, fake_pool, metadata_of


async def outcome_of(append: Awaitable[int]) -> int | BookieError:
    try:
        return await append
    except BookieError as error:
        return error


@pytest.mark.parametrize("answered", [False, True])
def test_an_answer_that_came_while_the_loop_stood_still_counts(answered: bool) -> None:
    """The program blocks the loop for longer than the add timeout, with an append under way."""

    async def test(loop: Loop) -> None:
        async with fake_pool() as pool:
            created = Versioned(metadata_of(), 0)
            writer = WriterHandle(created, pool.pool, cast("LedgerManager", None), UNNAMED)
            writer.start()
            append = pool.tasks.create_task(outcome_of(writer.append(b"x")))
            for _ in range(4):  # until it is sent
                await asyncio.sleep(0)
            assert pool.lane(0).sent
            loop.hold_up(60)
            for _ in range(10):  # the turns that an answer needs to come from its socket
                await asyncio.sleep(0)
            if answered:
                for slot in range(3):
                    pool.lane(slot).answer()
                assert await append == 0
            else:
                assert isinstance(await append, NotEnoughBookiesError)

    in_virtual_time(test)
