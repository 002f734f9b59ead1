"""Rates of callers and namespaces: who may go on, who comes back when, and what is remembered."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from bookie.config import NodeSettings
from bookie.errors import MetadataUnavailableError, TooManyRequestsError
from bookie.security.grants import ANONYMOUS
from bookie.security.permissions import LOOK_UPS_EACH_MAX, LOOK_UPS_LATER_MAX, LedgerLogs
from bookie.security.rates import (
    ACCOUNTS_MAX,
    ASK_AGAIN_SECONDS,
    ASKED_MAX,
    LogDirectory,
    RateAccounts,
    RateLimits,
    Rates,
    TokenBucket,
    Traffic,
    account_name,
)
from tests.unit.wire.fake_node import until


class Logs(LogDirectory):
    """Logs that the test names."""

    def __init__(self, known: dict[int, str] | None = None) -> None:
        self.logs = known or {}
        self.asked: list[int] = []

    def known(self, ledger_id: int) -> str | None:
        return self.logs.get(ledger_id)

    def learn_later(self, ledger_id: int) -> None:
        self.asked.append(ledger_id)


class Room:
    """Rates with a clock that stands still."""

    def __init__(self, settings: NodeSettings, logs: Logs | None = None) -> None:
        self.settings, self.now = settings, 100.0
        self.limited: Counter[str] = Counter()
        self.logs = logs or Logs()
        self.rates = Rates(
            lambda: self.settings,
            lambda: self.now,
            lambda kind: self.limited.update([kind]),
            self.logs,
        )

    def add(self, who: str, size: int, ledger_id: int = 1) -> float:
        """The time after which the caller comes back; 0 if the add went on."""
        assert self.rates.is_on
        try:
            self.rates.admit(who, ledger_id, Traffic.ADD, size)
        except TooManyRequestsError as error:
            return error.retry_after_seconds or -1.0
        return 0.0


def test_a_bucket_holds_a_second_and_may_owe() -> None:
    """A message larger than a bucket passes; nothing else does until it is paid."""
    bucket = TokenBucket(100, now=5)
    assert bucket.wait_seconds(5) == 0
    bucket.charge(250, 5)
    assert bucket.wait_seconds(5) == pytest.approx(1.5, abs=0.11)
    assert bucket.wait_seconds(6) == pytest.approx(0.5, abs=0.11)
    assert bucket.wait_seconds(6.6) == 0
    assert not bucket.is_full(7)
    assert bucket.is_full(60)
    bucket.charge(99, 60)
    assert bucket.wait_seconds(60) == 0, "an hour of silence is worth a second"
    bucket.charge(2, 60)
    assert bucket.wait_seconds(60) > 0
    assert bucket.wait_seconds(59) > 0, "a clock that went back changes nothing"


def test_without_limits_nothing_is_on() -> None:
    room = Room(NodeSettings())
    assert not room.rates.is_on


def test_one_caller_is_held_to_his_rate_and_others_are_not() -> None:
    room = Room(NodeSettings(identity_bytes_per_second=1000))
    admitted = 0
    for _ in range(100):  # ten seconds
        while not room.add("greedy", 50):
            admitted += 50
        assert not room.add("modest", 50)
        room.now += 0.1
    assert 10_000 <= admitted <= 11_100
    assert set(room.limited) == {"identity"}


def test_a_caller_comes_back_when_he_was_told() -> None:
    """Neither earlier nor later, whatever the size."""
    room = Room(NodeSettings(identity_bytes_per_second=1000))
    assert not room.add("a", 3000)
    wait = room.add("a", 1)
    assert wait == pytest.approx(2.0, abs=0.11)
    room.now += wait - 0.1
    assert room.add("a", 1) > 0
    room.now += 0.11
    assert not room.add("a", 5000)


def test_requests_count_besides_bytes() -> None:
    room = Room(NodeSettings(identity_requests_per_second=3))
    assert [room.add("a", 10**9) > 0 for _ in range(4)] == [False, False, False, True]
    room.now += 0.4
    assert not room.add("a", 1)


def test_adds_and_reads_have_buckets_of_their_own() -> None:
    """A reader that catches up does not hold back the writer of the same name."""
    room = Room(NodeSettings(identity_bytes_per_second=100))
    assert room.rates.is_on
    room.rates.admit("a", 1, Traffic.READ)
    room.rates.charge("a", 1, Traffic.READ, 1000)
    with pytest.raises(TooManyRequestsError):
        room.rates.admit("a", 1, Traffic.READ)
    assert not room.add("a", 50)


def test_what_is_refused_is_not_charged() -> None:
    """So whoever comes back early does not wait longer."""
    room = Room(
        NodeSettings(identity_bytes_per_second=1000, namespace_bytes_per_second=100),
        Logs({1: "shop/orders", 2: "bank/accounts"}),
    )
    assert not room.add("a", 300, ledger_id=1)
    for _ in range(50):
        assert room.add("a", 300, ledger_id=1) > 0
    assert not room.add("a", 300, ledger_id=2), "the identity was not charged for refusals"
    assert room.limited == {"namespace": 50}


def test_a_namespace_has_one_rate_for_all_its_callers_and_logs() -> None:
    room = Room(
        NodeSettings(namespace_bytes_per_second=100),
        Logs({1: "shop/orders", 2: "shop/bills", 3: "bank/accounts", 4: ""}),
    )
    assert not room.add("a", 150, ledger_id=1)
    assert room.add("b", 1, ledger_id=2) == pytest.approx(0.5, abs=0.11)
    assert not room.add("a", 1, ledger_id=3)
    for _ in range(3):
        assert not room.add("a", 150, ledger_id=4), "a ledger of no log has no namespace"


def test_the_longer_wait_is_named() -> None:
    room = Room(
        NodeSettings(identity_bytes_per_second=100, namespace_bytes_per_second=10),
        Logs({1: "shop/orders"}),
    )
    assert not room.add("a", 200)
    assert room.add("a", 1) == pytest.approx(19.0, abs=0.2)
    assert room.limited == {"namespace": 1}


def test_the_log_of_a_ledger_is_learnt_in_the_background() -> None:
    """Until then the identity's rate counts alone; the store is not asked for each request."""
    logs = Logs()
    room = Room(NodeSettings(namespace_bytes_per_second=100), logs)
    for _ in range(5):
        assert not room.add("a", 1000, ledger_id=7)
    assert logs.asked == [7]
    room.now += ASK_AGAIN_SECONDS + 0.1
    assert not room.add("a", 1000, ledger_id=7)
    assert logs.asked == [7, 7]
    logs.logs[7] = "shop/orders"
    assert not room.add("a", 1000, ledger_id=7)
    assert room.add("a", 1, ledger_id=7) > 0


def test_other_rates_count_at_once_and_the_rest_is_kept() -> None:
    room = Room(NodeSettings(identity_bytes_per_second=100))
    assert not room.add("a", 1000)
    assert room.add("a", 1) > 0
    room.settings = NodeSettings(identity_bytes_per_second=100, disk_usage_max=0.99)
    assert room.add("a", 1) > 0, "another setting has changed"
    room.settings = NodeSettings(identity_bytes_per_second=200)
    assert not room.add("a", 1)
    room.settings = NodeSettings()
    assert not room.rates.is_on


def test_a_million_callers_are_forgotten_once_their_buckets_are_full() -> None:
    accounts = RateAccounts(RateLimits(bytes_per_second=100))
    for number in range(20_000):
        accounts.charge(f"caller {number}", Traffic.ADD, 50, 1, now=number / 100)
    assert len(accounts) <= 200, "each owes for half a second"


def test_memory_is_bounded_though_nobody_pays() -> None:
    accounts = RateAccounts(RateLimits(bytes_per_second=1), accounts_max=100)
    for number in range(1000):
        accounts.charge(f"caller {number}", Traffic.ADD, 10**6, 1, now=0.0)
    assert len(accounts) == 100
    assert accounts.wait_seconds("caller 999", Traffic.ADD, 0.0) > 0
    room = Room(NodeSettings(namespace_bytes_per_second=1))
    for ledger_id in range(ASKED_MAX + 100):
        room.add("a", 1, ledger_id)
    assert len(room.rates._asked) == ASKED_MAX
    assert ACCOUNTS_MAX <= 2**16


@pytest.mark.parametrize(
    ("principal", "address", "identity"),
    [
        ("shop", "ipv4:10.0.0.1:4711", "principal shop"),
        (ANONYMOUS, "ipv4:10.0.0.1:4711", "address ipv4:10.0.0.1"),
        (ANONYMOUS, "ipv6:%5B::1%5D:4711", "address ipv6:%5B::1%5D"),
        (ANONYMOUS, "unix:/run/x", "address unix:/run/x"),
        ("address ipv4:10.0.0.1", "ipv4:10.0.0.2:1", "principal address ipv4:10.0.0.1"),
    ],
)
def test_a_caller_is_his_name_or_his_host(principal: str, address: str, identity: str) -> None:
    assert account_name(principal, address) == identity


class Store:
    """A metadata store that answers when the test says so."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.answers = asyncio.Event()
        self.error: Exception | None = None
        self.logs = LedgerLogs(self.find)

    async def find(self, ledger_id: int) -> str | None:
        self.begun.append(ledger_id)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return f"shop/log{ledger_id}"


async def test_look_ups_in_the_background_are_bounded() -> None:
    """Nobody floods the store by adding to many ledgers, or holds up who asks for a right."""
    store = Store()
    for ledger_id in range(2 * LOOK_UPS_LATER_MAX):
        store.logs.learn_later(ledger_id)
        store.logs.learn_later(ledger_id)
    await asyncio.sleep(0.05)
    assert store.begun == [*range(LOOK_UPS_EACH_MAX)]
    store.answers.set()
    assert await store.logs.learn(5000) == "shop/log5000"
    await until(lambda: store.logs.known(LOOK_UPS_LATER_MAX - 1) is not None)
    assert sorted(store.begun) == [*range(LOOK_UPS_LATER_MAX), 5000]
    assert store.logs.known(LOOK_UPS_LATER_MAX) is None
    store.logs.learn_later(LOOK_UPS_LATER_MAX)
    await until(lambda: store.logs.known(LOOK_UPS_LATER_MAX) is not None)


async def test_a_look_up_in_the_background_that_fails_is_forgotten() -> None:
    """The next request may ask again, and nothing is left of the first."""
    store = Store()
    store.error = MetadataUnavailableError("the store is away")
    store.answers.set()
    store.logs.learn_later(7)
    await until(lambda: store.begun == [7] and not store.logs._later)
    store.error = None
    store.logs.learn_later(7)
    await until(lambda: store.logs.known(7) == "shop/log7")
