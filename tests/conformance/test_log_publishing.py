"""Publications of logs under contention, on every backend: each batch once, whatever is lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bookie.env import gather
from bookie.errors import BadRequestError
from bookie.log.publish import publisher as publisher_module
from bookie.log.publish.publisher import LogPublisher
from bookie.log.tidy.deletion import delete_log
from bookie.log.tidy.sweep import LogSweep, sweep_logs
from bookie.log.tidy.truncation import truncate
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend
from tests.conformance.faulty_store import FaultyStore
from tests.transactional_logs import MetadataLog, SetClock, metadata_client, metadata_log, pending

PUBLISHERS = 8
BATCHES = 12
APPLICATIONS = ("a", "b")


@pytest.fixture(name="log")
async def _log(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> MetadataLog:
    """Two partitions whose heads keep 16 ranges, and an open ledger of each application in each."""
    monkeypatch.setattr(publisher_module, "_HEADS_RANGES_MAX", 1)
    log = await metadata_log(metadata_client(store), partitions=2)
    for number, application in enumerate(APPLICATIONS):
        await log.make_ledger(2 * number, 0, application=application)
        await log.make_ledger(2 * number + 1, 1, application=application)
    return log


async def test_every_batch_is_published_once(backend: Backend, log: MetadataLog) -> None:
    """Eight publishers, each with its session, publish all batches of two applications."""
    published: Counter[tuple[str, int]] = Counter()

    async def publish(store: MetadataStore, seed: int) -> None:
        chance = random.Random(seed)
        faulty = FaultyStore(store)
        publisher = LogPublisher(metadata_client(faulty), log.name)
        for batch in range(BATCHES):
            for number, application in enumerate(APPLICATIONS):
                faulty.lost_replies = chance.random() < 0.3
                faulty.lost_requests = chance.random() < 0.3
                first, second = _entries(batch)
                ranges = [
                    pending(2 * number, *first, end_ms=batch),
                    pending(2 * number + 1, *second, partition=1, end_ms=batch),
                ]
                is_ours = await publisher.publish(application, batch, ranges)
                published[application, batch] += is_ours

    stores = [await backend.open() for _ in range(PUBLISHERS)]
    await gather([publish(store, seed) for seed, store in enumerate(stores)])
    for partition in (0, 1):
        named = await log.named(partition)
        for number, application in enumerate(APPLICATIONS):
            ledger_id = 2 * number + partition
            assert [one[1:] for one in named if one[0] == ledger_id] == [
                _entries(batch)[partition] for batch in range(BATCHES)
            ]
            assert await log.publisher.last_batch(application) == BATCHES - 1
        assert len(named) == BATCHES * len(APPLICATIONS)
    # One publisher at least was told that the batch is its own. With equal ranges, another one
    # whose request was lost cannot tell the difference.
    assert min(published.values()) >= 1
    assert len(published) == BATCHES * len(APPLICATIONS)


async def test_publishers_aborts_and_truncations_meet(backend: Backend, log: MetadataLog) -> None:
    """A ledger is named, or deleted, or neither; no head ever names a deleted one."""
    ledgers = range(10, 26)
    for ledger_id in ledgers:
        await log.make_ledger(ledger_id, entries=1)
    one, two, three = [metadata_client(await backend.open()) for _ in range(3)]
    outcomes: dict[int, bool] = {}

    async def publish() -> None:
        publisher = LogPublisher(one, log.name)
        for batch, ledger_id in enumerate(ledgers):
            try:
                outcomes[ledger_id] = await publisher.publish(
                    "spark-1", batch, [pending(ledger_id, 0, 0)]
                )
            except BadRequestError:
                outcomes[ledger_id] = False

    deleted: list[int] = []

    async def abort() -> None:
        publisher = LogPublisher(two, log.name)
        for ledger_id in reversed(ledgers):
            deleted.extend(await publisher.abort([pending(ledger_id, 0, 0)]))

    async def cut() -> None:
        for offset in (1, 2, 3):
            head = await three.logs.read_latest_head(log.partition(), log.log_id)
            before = min(offset, head.value.start_offset + len(head.value.ranges))
            await truncate(three, log.partition(), before=before)

    await gather([publish(), abort(), cut()])
    head = (await log.client.logs.read_latest_head(log.partition(), log.log_id)).value
    came_through = [ledger_id for ledger_id in ledgers if outcomes[ledger_id]]
    named = [ledger_id for ledger_id, _, _ in await log.named()]
    assert named == came_through[head.start_offset :]
    assert set(deleted) == set(ledgers) - set(came_through)
    assert await log.ledgers() == [0, 1, 2, 3, *named]


async def test_a_sweep_finds_what_is_left(store: MetadataStore, log: MetadataLog) -> None:
    clock = log.client.clock
    assert isinstance(clock, SetClock)
    for batch in range(40):
        entry = (batch, batch)
        assert await log.batch(batch, pending(0, *entry), application="a")
    clock.ms += 2 * 86_400_000
    assert await sweep_logs(log.client) == LogSweep(ledgers=[2, 1, 3])  # by partition
    assert await log.ledgers() == [0]


async def test_a_log_is_deleted_and_made_anew(store: MetadataStore, log: MetadataLog) -> None:
    for batch in range(30):
        ranges = [pending(0, batch, batch), pending(1, batch, batch, partition=1)]
        assert await log.batch(batch, *ranges, application="a")
    await delete_log(log.client, log.name)
    assert await log.ledgers() == [2, 3]  # nothing of them was published
    assert not await store.exists(log.name.key)
    again = await metadata_log(log.client)
    await again.make_ledger(4, entries=10)
    assert await again.batch(0, pending(4, 0, 9))
    assert await again.named() == [(4, 0, 9)]
    await delete_log(log.client, log.name)
    assert await log.ledgers() == [2, 3]


def _entries(batch: int) -> list[tuple[int, int]]:
    """First and last entry of a batch in each of two partitions."""
    return [(3 * batch, 3 * batch + 2), (batch, batch)]
