"""The plan of a rebalance: the differences shrink, and nothing moves that need not."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from bookie.entry.digest import DigestType
from bookie.ids import vacancy
from bookie.ledger.copies.rebalance_plan import (
    BALANCED_SHARE,
    FREE_SHARE,
    Device,
    MayPlace,
    RebalancePlan,
    SlotMove,
    add_sizes,
    slot_sizes,
)
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.ledger.place.policy import Placement, PlacementPolicy
from bookie.repair.rebalance import placed_by

OLD = [f"b{number}" for number in range(6)]


def anywhere(*_: object) -> bool:
    return True


def ledger(
    ledger_id: int,
    *fragments: tuple[int, Sequence[str]],
    write: int = 2,
    last: int = 99,
    length: int = 1000,
    is_open: bool = False,
) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=len(fragments[0][1]),
        write_quorum_size=write,
        ack_quorum_size=1,
        digest_type=DigestType.CRC32C,
        password_key=b"",
        state=LedgerState.OPEN if is_open else LedgerState.CLOSED,
        last_entry_id=-1 if is_open else last,
        length=0 if is_open else length,
        fragments=tuple(Fragment(first, tuple(bookies)) for first, bookies in fragments),
    )


def planned(
    ledgers: Sequence[LedgerMetadata],
    writable: Sequence[str],
    may_place: MayPlace = anywhere,
    devices: Mapping[str, Device] | None = None,
) -> tuple[list[SlotMove], RebalancePlan]:
    sizes = dict.fromkeys(writable, 0)
    for one in ledgers:
        add_sizes(sizes, one)
    plan = RebalancePlan(sizes, writable, may_place, devices)
    moves: list[SlotMove] = []
    for one in ledgers:
        if plan.is_balanced:
            break
        moves += plan.moves_of(one)
    return moves, plan


def test_the_bytes_of_a_slot_are_its_share_of_the_length() -> None:
    striped = ledger(1, (0, ["b0", "b1", "b2", "b3"]), (40, ["b4", "b1", "b2", "b3"]))
    assert [size for _, size in slot_sizes(striped)] == [200, 300]
    assert list(slot_sizes(ledger(1, (0, ["b0", "b1"]), is_open=True))) == []
    assert list(slot_sizes(ledger(1, (0, ["b0", "b1"]), last=-1, length=0))) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_bookie_that_comes_gets_its_share(seed: int) -> None:
    choose = random.Random(seed)
    ledgers = [
        ledger(number, (0, choose.sample(OLD, 3)), length=choose.randrange(1000))
        for number in range(600)
    ]
    moves, plan = planned(ledgers, [*OLD, "new"])
    assert plan.is_balanced
    mean = sum(plan.sizes.values()) / len(plan.sizes)
    for size in plan.sizes.values():
        assert abs(size - mean) <= BALANCED_SHARE * mean
    assert {move.newcomer for move in moves} == {"new"}
    moved = sum(move.size_bytes for move in moves)
    assert moved <= mean, "only so much as the new one lacks"
    assert len({(move.ledger_id, move.newcomer) for move in moves}) == len(moves)


def test_a_larger_device_gets_a_larger_part() -> None:
    """And a plan after the plan moves nothing back."""
    large = {name: Device(4_000_000, 4_000_000) for name in OLD[:2]}
    devices = {name: Device(1_000_000, 1_000_000) for name in [*OLD, "new"]} | large
    ledgers = [ledger(number, (0, [OLD[number % 6]]), write=1) for number in range(600)]
    moves, plan = planned(ledgers, [*OLD, "new"], devices=devices)
    assert plan.is_balanced
    for name, size in plan.sizes.items():
        share = 600_000 * devices[name].total_bytes / 13_000_000
        assert abs(size - share) <= BALANCED_SHARE * share
    at = {move.ledger_id: move.newcomer for move in moves}
    assert len(at) == len(moves)
    after = [
        ledger(one.ledger_id, (0, [at.get(one.ledger_id, one.fragments[0].bookies[0])]), write=1)
        for one in ledgers
    ]
    assert planned(after, [*OLD, "new"], devices=devices)[0] == []


def test_bytes_count_unless_all_devices_are_known() -> None:
    devices = {name: Device(1000 * 2**number, 10**6) for number, name in enumerate(OLD[:2])}
    ledgers = [ledger(number, (0, [OLD[0]]), write=1) for number in range(60)]
    _, plan = planned(ledgers, OLD[:3], devices=devices)
    assert plan.is_balanced
    assert set(plan.sizes.values()) <= {19_000, 20_000, 21_000}


def test_a_plan_leaves_free_bytes() -> None:
    """A small bookie is not filled up, and what is not moved after all is free again."""
    devices = {"b0": Device(100_000, 0), "b1": Device(100_000, 5000)}
    ledgers = [ledger(number, (0, ["b0"]), write=1) for number in range(60)]
    for known in (devices, {"b1": devices["b1"]}):
        moves, plan = planned(ledgers, OLD[:2], devices=known)
        assert len(moves) == FREE_SHARE * 5000 / 1000
        assert not plan.is_balanced
        assert plan.moves_of(ledgers[-1]) == []
        plan.undo(moves[0])
        assert len(plan.moves_of(ledgers[-1])) == 1


def test_a_balanced_cluster_stays() -> None:
    ledgers = [
        ledger(number, (0, [OLD[number % 6], OLD[(number + 1) % 6]])) for number in range(60)
    ]
    moves, plan = planned(ledgers, OLD)
    assert (moves, plan.is_balanced) == ([], True)


def test_a_move_makes_the_difference_smaller() -> None:
    """A single large ledger does not wander from bookie to bookie."""
    assert planned([ledger(1, (0, ["b0"]), write=1)], OLD[:2])[0] == []
    two = [ledger(number, (0, ["b0"]), write=1) for number in (1, 2)]
    (move,), plan = planned(two, OLD[:2])
    assert (move.former, move.newcomer) == ("b0", "b1")
    assert plan.sizes == {"b0": 1000, "b1": 1000}


def test_what_does_not_settle_stays() -> None:
    """Open ledgers belong to their writers, and vacant slots to repair."""
    fragments = (0, ["b0", "b1"])
    ledgers = [
        *[ledger(number, fragments, is_open=True) for number in range(4)],
        *[ledger(number, (0, ["b0", vacancy(1)]), length=500) for number in range(4, 8)],
    ]
    moves, plan = planned(ledgers, OLD[:3])
    assert (moves, plan.is_balanced) == ([], False)


def test_who_may_not_take_copies_gives_them_away() -> None:
    """A read-only bookie gives, one that is gone or leaves does nothing."""
    ledgers = [ledger(number, (0, ["full", "gone"])) for number in range(10)]
    sizes = {"full": 10_000, "b0": 0, "b1": 0}
    plan = RebalancePlan(sizes, ["b0", "b1"], anywhere)
    moves = [move for one in ledgers for move in plan.moves_of(one)]
    assert {move.former for move in moves} == {"full"}
    assert {move.newcomer for move in moves} == {"b0", "b1"}
    assert max(plan.sizes.values()) <= 4000


def test_a_move_that_was_not_made_is_taken_back() -> None:
    (move,), plan = planned([ledger(n, (0, ["b0"]), write=1) for n in (1, 2)], OLD[:2])
    plan.undo(move)
    assert plan.sizes == {"b0": 2000, "b1": 0}


@pytest.mark.parametrize("enforce", [False, True])
def test_placement_is_never_worse_than_before(enforce: bool) -> None:
    labels = {
        "b0": {"rack": "r0"},
        "b1": {"rack": "r1"},
        "near": {"rack": "r1"},
        "far": {"rack": "r2"},
    }
    placement = Placement(PlacementPolicy.RACK, labels, enforce=enforce)
    ledgers = [ledger(number, (0, ["b0", "b1"])) for number in range(40)]
    moves, _ = planned(ledgers, ["b0", "b1", "near", "far"], placed_by(placement))
    formers = {"near": set[str](), "far": set[str]()}
    for move in moves:
        formers[move.newcomer].add(move.former)
    assert formers["near"] == {"b1"}, "b0 would leave two copies in one rack"
    assert "b0" in formers["far"]
