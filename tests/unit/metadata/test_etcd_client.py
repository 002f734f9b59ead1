"""How many calls to etcd are under way at once, and what becomes of one whose stream breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from grpc import aio

from bookie._pb import etcd_pb2 as pb
from bookie.metadata.etcd_client import KEEP_ALIVE, Endpoint, EtcdClient, LostReplyError, Turns
from bookie.metadata.security import MetadataSecurity


async def _turn(turns: Turns, had: list[int], number: int, end: asyncio.Event) -> None:
    await turns.take()
    try:
        had.append(number)
        await end.wait()
    finally:
        turns.give_back()


async def test_turns_are_had_in_line_and_never_more_than_there_are() -> None:
    turns, had, ends = Turns(2), list[int](), [asyncio.Event() for _ in range(5)]
    async with asyncio.TaskGroup() as tasks:
        for number, end in enumerate(ends):
            tasks.create_task(_turn(turns, had, number, end))
        for number, end in enumerate(ends):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert had == list(range(min(number + 2, 5)))
            end.set()


async def test_a_turn_of_a_cancelled_caller_goes_to_the_next_in_line() -> None:
    """Whether it waited still, or had its turn already and did not know it."""
    turns, had, end = Turns(1), list[int](), asyncio.Event()
    await turns.take()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(_turn(turns, had, number, end)) for number in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        turns.give_back()
        waiting[1].cancel()
        end.set()
    assert had == [2, 3]
    await asyncio.wait_for(turns.take(), 60)


class _BrokenCall:
    """A stream whose connection breaks when its request has been written."""

    async def write(self, request: object) -> None:
        pass

    async def done_writing(self) -> None:
        raise aio.InternalError("Failed execute_batch")

    def cancel(self) -> None:
        pass


class _Channel:
    """A channel that opens such streams only."""

    def stream_stream(self, path: str, **_: object) -> Callable[..., _BrokenCall]:
        return lambda **_: _BrokenCall()


async def test_a_stream_that_breaks_while_it_is_being_closed_was_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC raises an error of its core there; it would end the session's monitor."""
    client = EtcdClient(
        ["h:1"], MetadataSecurity(), scope="/s", attempt_seconds=1, operation_seconds=1
    )
    endpoint = Endpoint("h:1", None)
    await endpoint.close()
    monkeypatch.setattr(endpoint, "_channel", _Channel())
    monkeypatch.setattr(client, "endpoint", lambda: endpoint)
    monkeypatch.setattr(client, "leave", lambda _: None)
    with pytest.raises(LostReplyError, match="without an answer"):
        await client.exchange(KEEP_ALIVE, pb.LeaseKeepAliveRequest(id=1), seconds=1)
    await client.close()
