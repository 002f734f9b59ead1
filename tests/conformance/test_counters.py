"""Counters: no number twice, whatever happens in between."""

from __future__ import annotations

import asyncio

import pytest

from bookie.coordination.counters import ATTEMPTS_MAX, Counter
from bookie.coordination.participant import Participant
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    FormatError,
    MetadataUnavailableError,
)
from tests.conformance.backends import Backend
from tests.conformance.clients import Client, NewClient


async def test_numbers_differ_and_grow(new_client: NewClient) -> None:
    """Case 41."""
    clients = [await new_client() for _ in range(3)]
    numbers: list[list[int]] = []

    async def draw(client: Client, block: int) -> None:
        counter = Counter(client.participant, "/counter", block=block)
        numbers.append([await counter.next() for _ in range(20)])

    async with asyncio.TaskGroup() as group:
        for client, block in zip(clients, (1, 3, 100), strict=True):
            group.create_task(draw(client, block))
    drawn = [number for some in numbers for number in some]
    assert len(set(drawn)) == 60
    assert all(some == sorted(some) for some in numbers)


async def test_numbers_go_on_after_everything_was_closed(backend: Backend) -> None:
    """Case 42."""
    drawn: list[int] = []
    for _ in range(3):
        async with backend.session() as session, Participant(session) as participant:
            counter = Counter(participant, "/counters/a", block=5)
            drawn += [await counter.next() for _ in range(3)]
    assert drawn == sorted(set(drawn))


async def test_a_reservation_is_tried_again_but_not_for_ever(client: Client) -> None:
    """Case 43."""
    counter = Counter(client.participant, "/counter")
    failures = 3

    def interfere() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise BadVersionError("as the test wants it")

    client.store.before_write = interfere
    assert await counter.next() == 0
    failures = ATTEMPTS_MAX
    with pytest.raises(MetadataUnavailableError, match="others were faster 30 times"):
        await counter.next()
    assert await counter.next() == 1


async def test_a_lost_reply_skips_numbers(client: Client) -> None:
    counter = Counter(client.participant, "/counter", block=10)
    client.store.lost_replies = 1
    with pytest.raises(MetadataUnavailableError):
        await counter.next()
    assert await counter.next() == 10
    assert await counter.reserve(2) == range(20, 22)


async def test_what_is_no_counter_is_left_alone(client: Client) -> None:
    await client.session.put("/counter", b"seven")
    with pytest.raises(FormatError, match="/counter"):
        await Counter(client.participant, "/counter").next()
    record = await client.session.get("/counter")
    assert record is not None
    assert record.value == b"seven"


@pytest.mark.parametrize("count", [0, -3])
async def test_no_less_than_one_number_is_reserved(client: Client, count: int) -> None:
    with pytest.raises(BadRequestError, match="cannot be reserved"):
        await Counter(client.participant, "/counter").reserve(count)
    with pytest.raises(BadRequestError, match="cannot be reserved"):
        await Counter(client.participant, "/counter", block=count).next()
    assert await client.session.get("/counter") is None
