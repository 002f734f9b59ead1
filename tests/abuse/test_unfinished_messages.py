"""Messages of which everything arrives but the end: gRPC keeps them, and no handler hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from tests.abuse.frames import Answers, data_frames, listen, message
from tests.abuse.target import MIB, Target
from tests.unit.wire.http2_peer import Peer

Tell = Callable[[str, object], None]

ATTACK_SECONDS = 6.0

MESSAGE_BYTES = 8 * MIB - 64
"""What each message announces: almost as much as it may."""

PART_BYTES = 64 * 1024


async def hold_back(peer: Peer, streams: int, sent: list[int]) -> None:
    """On each stream send a message without its end, as far as the windows allow, and go on."""
    answers = Answers()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(listen(peer, answers))
        ids = [peer.open(("AddStream", "ReadStream", "Fence")[n % 3]) for n in range(streams)]
        left = dict.fromkeys(ids, MESSAGE_BYTES)
        await answers.introduced.wait()
        for stream_id in ids:
            peer.writer.write(data_frames(stream_id, message(MESSAGE_BYTES)))
            answers.sent(stream_id, 5)
        while not answers.is_ended:
            size = 0
            for stream_id in ids:
                part = min(PART_BYTES, answers.room(stream_id), left[stream_id] - 1)
                if part <= 0 or answers.is_ended:
                    continue
                peer.writer.write(data_frames(stream_id, bytes(part)))
                await peer.flush()
                answers.sent(stream_id, part)
                left[stream_id] -= part
                size += part
            sent[0] += size
            await asyncio.sleep(0 if size else 0.05)


@pytest.mark.parametrize("connections", [1, 8])
async def test_messages_that_never_end(
    target: Target, record_property: Tell, connections: int
) -> None:
    """128 streams of a connection, each with 8 MB that are almost there."""
    sent = [0]
    async with (
        target.under_attack(f"partial messages, {connections} connections", record_property) as on,
        AsyncExitStack() as stack,
    ):
        peers = [await stack.enter_async_context(target.peer()) for _ in range(connections)]
        async with asyncio.TaskGroup() as tasks:
            holding = [tasks.create_task(hold_back(peer, 128, sent)) for peer in peers]
            await asyncio.sleep(ATTACK_SECONDS)
            for one in holding:
                one.cancel()
        on.note(f"{sent[0] // MIB} MiB sent")
