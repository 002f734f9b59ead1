"""The checker of the sink sees what it is for."""

from __future__ import annotations

from tests.spark.sink_checker import Place, row_text, sink_problems

ROWS = [row_text("q", file, row) for file in range(2) for row in range(12)]


def right() -> dict[Place, list[str]]:
    """Rows of two partitions, as they must be."""
    return {("log", 0): ROWS[::2], ("log", 1): ROWS[1::2]}


def test_what_is_right_has_no_problems() -> None:
    assert sink_problems(ROWS, right()) == []


def test_a_planted_lost_row_is_seen() -> None:
    found = right()
    del found["log", 1][3]
    assert sink_problems(ROWS, found) == ["q/0/7 is lost"]


def test_a_planted_doubled_row_is_seen() -> None:
    found = right()
    found["log", 0].insert(2, "q/0/2")
    assert sink_problems(ROWS, found) == ["q/0/2 is doubled"]


def test_a_row_that_is_doubled_in_another_partition_is_seen() -> None:
    found = right()
    found["log", 1].append(ROWS[-2])
    assert "q/1/10 is doubled" in sink_problems(ROWS, found)


def test_a_planted_foreign_row_is_seen() -> None:
    found = right()
    found["log", 0].append("q/9/0")
    assert sink_problems(ROWS, found) == ["q/9/0 was never written"]


def test_rows_in_another_order_are_seen() -> None:
    found = right()
    rows = found["log", 0]
    rows[1], rows[2] = rows[2], rows[1]
    assert sink_problems(ROWS, found) == ["q: (0, 2) comes after (0, 4) in log#0"]
