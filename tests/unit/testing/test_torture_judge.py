"""The judge of ``bookie torture``: a history that keeps all promises, and one break of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie.testing.torture.judge import PartitionHistory, judge
from bookie.testing.torture.writer import sequence_of, value_of


def right() -> PartitionHistory:
    """Four records; a snapshot of producers took offset 0, and an empty ledger none."""
    log = [(1, 0), (2, 1), (3, 2), (4, 3)]
    return PartitionHistory(
        acknowledged={0: {1}, 1: {2}, 2: {3}},  # the last writer was killed before it heard of 3
        log=log,
        readers={"one": list(log), "two": list(log)},
        commits={"billing": [0, 0, 3, 5]},
        consumed={"billing": {1, 2, 3, 4}},
    )


def test_nothing_is_wrong_with_a_right_history() -> None:
    """Records that nobody was told of may be there."""
    assert judge({0: right(), 1: right(), 2: PartitionHistory()}) == []


def _lose(history: PartitionHistory) -> None:
    history.acknowledged[4] = {5}


def _move(history: PartitionHistory) -> None:
    history.acknowledged[1] = {3}


def _tell_twice(history: PartitionHistory) -> None:
    history.acknowledged[1] = {2, 9}


def _repeat(history: PartitionHistory) -> None:
    for seen in (history.log, *history.readers.values()):
        seen.append((5, 3))


def _exchange(history: PartitionHistory) -> None:
    history.acknowledged.clear()
    for seen in (history.log, *history.readers.values()):
        seen[:] = [(1, 0), (2, 2), (3, 1), (4, 3)]


def _miss(history: PartitionHistory) -> None:
    del history.readers["two"][1]


def _read_ahead(history: PartitionHistory) -> None:
    history.readers["two"].append((5, 4))


def _garble(history: PartitionHistory) -> None:
    history.readers["two"][2] = (3, -1)


def _go_back(history: PartitionHistory) -> None:
    history.commits["billing"].insert(2, 4)


def _skip(history: PartitionHistory) -> None:
    history.consumed["billing"].remove(3)


@pytest.mark.parametrize(
    ("corrupt", "rule"),
    [
        (_lose, "lost"),
        (_move, "lost"),
        (_tell_twice, "lost"),
        (_repeat, "twice"),
        (_exchange, "producer"),
        (_miss, "order"),
        (_read_ahead, "order"),
        (_garble, "order"),
        (_go_back, "cursor"),
        (_skip, "consumed"),
    ],
)
def test_each_break_is_found(corrupt: Callable[[PartitionHistory], None], rule: str) -> None:
    """By the rule that it breaks, in the partition where it is."""
    history = right()
    corrupt(history)
    findings = judge({0: right(), 1: history})
    assert any(finding.startswith(f"{rule}: partition 1: ") for finding in findings)
    assert all("partition 1" in finding for finding in findings)


def test_values_tell_their_number() -> None:
    """And any other bytes are recognised."""
    assert [sequence_of(1, value_of(1, number)) for number in (0, 1, 499)] == [0, 1, 499]
    damaged = bytearray(value_of(1, 1))
    damaged[-1] ^= 1
    for wrong in (bytes(damaged), value_of(0, 1), b"", b"1 x ", b"1 7"):
        assert sequence_of(1, wrong) == -1
