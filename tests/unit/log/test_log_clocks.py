"""Wrong clocks and wrong times: what is young stays, and one record does not stand for all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bookie.api import BookKeeper
from bookie.env import SystemClock
from bookie.errors import BadRequestError, ClockError, NotEnoughBookiesError
from bookie.log import clock_check
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.clock_check import ClockCheck
from bookie.log.log_client import LogClient
from bookie.log.tidy.retention import AHEAD_MS_MAX, plausible_end_ms
from bookie.log.tidy.sweep import sweep_logs
from bookie.log.tidy.truncation import apply_retention
from bookie.metadata.store import MetadataStore
from tests.transactional_logs import (
    NOON_MS,
    MetadataLog,
    SetClock,
    TimeTellers,
    metadata_client,
    metadata_log,
    pending,
)
from tests.unit.ledger.real_cluster import until
from tests.unit.log.hand_made_log import ONE_COPY

DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS


def clock_at(ms: int) -> SetClock:
    """A clock that stands."""
    clock = SetClock()
    clock.ms = ms
    return clock


def check(store: MetadataStore, own: SetClock, *bookies: SetClock | None) -> ClockCheck:
    """The clock `own` among those of bookies; None does not answer."""
    return metadata_client(store, own, TimeTellers(*bookies)).clocks


# ---- whose time counts


async def test_the_earliest_clock_deletes(store: MetadataStore) -> None:
    """A record stays if one clock makes it young, even if that clock is wrong."""
    noon, later = clock_at(NOON_MS), clock_at(NOON_MS + 40 * DAY_MS)
    assert await check(store, later, noon, later).deletion_ms() == NOON_MS
    assert await check(store, noon, later, later).deletion_ms() == NOON_MS
    assert await check(store, later, later).deletion_ms() == later.ms, "nobody else is there"


async def test_too_few_bookies_delete_nothing_by_time(store: MetadataStore) -> None:
    """A sweep may run beside a bookie. An older one answers, and does not tell the time."""
    noon = clock_at(NOON_MS)
    for bookies in ((None,), (clock_at(0),), (noon, None), (noon, clock_at(0), None)):
        with pytest.raises(NotEnoughBookiesError, match="tell what time it is"):
            await check(store, noon, *bookies).deletion_ms()


@pytest.mark.parametrize("sign", [-1, 1])
async def test_a_clock_that_contradicts_all_bookies_is_refused(
    store: MetadataStore, sign: int
) -> None:
    wrong = clock_at(NOON_MS + sign * 40 * DAY_MS)
    noon, own = clock_at(NOON_MS), clock_at(NOON_MS + sign * 3_600_000)
    words = "ahead of" if sign > 0 else "behind"
    with pytest.raises(ClockError, match=f"40 days, 0:00:00 {words} the clock of bookie b1"):
        await check(store, wrong, None, noon).require_right()
    await check(store, wrong, noon, wrong).require_right()
    await check(store, own, noon).require_right()
    await check(store, wrong, None).require_right()


async def test_a_clock_is_compared_again(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock extends the answers of bookies, even if the wall clock steps."""
    noon, own = clock_at(NOON_MS), clock_at(NOON_MS)
    compared = check(store, own, noon)
    await compared.require_right()
    monkeypatch.setattr(own, "monotonic", lambda: NOON_MS / 1000 + 10)
    own.ms += DAY_MS
    with pytest.raises(ClockError):
        await compared.require_right()
    assert await compared.deletion_ms() == NOON_MS + 10_000
    seconds = clock_check.KEPT_SECONDS + 1
    monkeypatch.setattr(own, "monotonic", lambda: NOON_MS / 1000 + seconds)
    noon.ms = own.ms
    await compared.require_right()


# ---- what deletes


async def test_a_sweep_on_a_machine_that_is_ahead_deletes_nothing_young(
    store: MetadataStore,
) -> None:
    """160 records of a minute, and a publisher's pending range: all stay."""
    noon = clock_at(NOON_MS)
    log = await metadata_log(metadata_client(store, noon))
    await log.client.namespaces.create("default", LogPolicy(retention_seconds=WEEK_MS // 1000))
    for number in range(16):
        await log.make_ledger(number, entries=10)
        await log.batch(number, pending(number, 0, 9, end_ms=NOON_MS - 60_000))
    await log.make_ledger(99)
    ahead = metadata_client(store, clock_at(NOON_MS + 40 * DAY_MS), TimeTellers(noon))
    swept = await sweep_logs(ahead)
    assert (swept.ledgers, swept.truncated, swept.failures) == ([], {}, {})
    assert await log.ledgers() == [*range(16), 99]
    assert await apply_retention(ahead, log.partition()) == 0
    # The same machine alone in its time would have deleted all of it.
    alone = metadata_client(store, clock_at(NOON_MS + 40 * DAY_MS))
    assert await apply_retention(alone, log.partition()) == 160


def test_ledgers_bound_the_time_of_a_range() -> None:
    assert plausible_end_ms(5, None, None) == 5
    assert plausible_end_ms(5, 7, None) == 7
    assert plausible_end_ms(9, 7, 8) == 9
    assert plausible_end_ms(10**17, 7, 8) == 8 + AHEAD_MS_MAX
    assert plausible_end_ms(10**17, 8, 7) == 8 + AHEAD_MS_MAX, "publishers take turns"
    assert plausible_end_ms(10**17, 7, None) == 10**17, "nothing tells when it ended"


async def retained(
    store: MetadataStore, *ranges: tuple[int, int], is_compared: bool = True
) -> tuple[MetadataLog, SetClock]:
    """A log of a week whose ranges, of ten entries each, have (created, end) in ms."""
    clock = clock_at(NOON_MS)
    log = await metadata_log(metadata_client(store, clock))
    await log.client.namespaces.create("default", LogPolicy(retention_seconds=WEEK_MS // 1000))
    for number, (created_ms, end_ms) in enumerate(ranges):
        await log.make_ledger(number, entries=10, created_ms=created_ms, is_compared=is_compared)
        await log.batch(number, pending(number, 0, 9, end_ms=end_ms))
    return log, clock


async def test_records_of_an_old_time_are_kept_as_long_as_others(store: MetadataStore) -> None:
    """They were imported, or the clock of their writer was behind."""
    log, clock = await retained(store, (NOON_MS, 1000), (NOON_MS, 1000))
    assert await apply_retention(log.client, log.partition()) == 0
    clock.ms += WEEK_MS
    assert await apply_retention(log.client, log.partition()) == 0
    clock.ms += 1
    assert await apply_retention(log.client, log.partition()) == 20


async def test_microseconds_do_not_keep_a_log_for_ever(store: MetadataStore) -> None:
    """Times in a chain do not go back, so every later range has the same end."""
    micros = 1000 * NOON_MS
    log, clock = await retained(store, *((NOON_MS + n * DAY_MS, micros) for n in range(3)))
    clock.ms = NOON_MS + DAY_MS + DAY_MS + WEEK_MS
    assert await apply_retention(log.client, log.partition()) == 0
    clock.ms += 1
    assert await apply_retention(log.client, log.partition()) == 10
    clock.ms += DAY_MS
    assert await apply_retention(log.client, log.partition()) == 20


async def test_a_clock_that_nobody_compared_lets_nothing_go(store: MetadataStore) -> None:
    """An older program made the ledgers, on a machine that was far behind. Records are young."""
    behind = NOON_MS - 40 * DAY_MS
    log, _ = await retained(store, *[(behind, NOON_MS)] * 3, is_compared=False)
    assert await apply_retention(log.client, log.partition()) == 0


# ---- what is appended


async def test_a_time_far_ahead_is_refused(one_bk: BookKeeper) -> None:
    """It leaves no trace, also among others of one call; a policy allows it."""
    await one_bk.create_log("orders", policy=ONE_COPY)
    now = int(datetime.now(tz=UTC).timestamp() * 1000)
    async with await one_bk.open_log("orders") as writer:
        await writer.append(b"a", timestamp=now + DAY_MS - 3_600_000)
        for wrong in (1000 * now, now + DAY_MS + 3_600_000):
            with pytest.raises(BadRequestError, match="ms since 1970"):
                await writer.append(b"b", timestamp=wrong)
        await writer.append(b"c", timestamp=1000)
    await one_bk.create_log("far", policy=replace(ONE_COPY, ahead_seconds=0))
    async with await one_bk.open_log("far") as writer:
        await writer.append(b"a", timestamp=1000 * now)
    assert [one.value async for one in one_bk.read_log("orders")] == [b"a", b"c"]


async def test_a_machine_that_was_suspended_goes_on(one_bk: BookKeeper) -> None:
    """Its monotonic clock stood still. The clock is compared, and the next append is taken."""
    await one_bk.create_log("orders", policy=ONE_COPY)
    asleep = 3 * 24 * 3600
    async with await one_bk.open_log("orders") as log:
        await log.append(b"a")
        encoder = log._partitions[0]._encoder
        encoder.latest._base_ms -= 1000 * asleep
        with pytest.raises(ClockError, match="append again"):
            await log.append(b"b")
        await until(lambda: not encoder.latest.is_in_doubt)
        await log.append(b"c")


async def test_a_writer_with_a_wrong_clock_is_told(one_bk: BookKeeper, logs: LogClient) -> None:
    await one_bk.create_log("orders", policy=ONE_COPY)
    wrong = SetClock()
    wrong.ms = SystemClock().now_ms() - 40 * DAY_MS
    logs.clock = wrong
    logs.clocks = ClockCheck(wrong, logs.ledgers)
    with pytest.raises(ClockError, match="set the clock"):
        await one_bk.open_log("orders", patience_seconds=3600)
