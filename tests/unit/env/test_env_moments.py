"""Points in time, as callers name them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from bookie.env import moment_ms
from bookie.env.clock import moment_text, parse_moment
from bookie.errors import BadRequestError


def test_moments() -> None:
    """Milliseconds, or a datetime of any time zone; a part of a millisecond is rounded up."""
    assert moment_ms(17) == 17
    assert moment_ms(datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)) == 1500
    assert moment_ms(datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)) == 1
    assert moment_ms(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    assert moment_ms(datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)) == 0


@pytest.mark.parametrize("wrong", [datetime(2024, 1, 1), True, 1.5, "now", None])  # noqa: DTZ001  (the point)
def test_what_is_no_moment(wrong: object) -> None:
    """A datetime without a time zone means another moment on each machine."""
    with pytest.raises(BadRequestError, match="time zone"):
        moment_ms(wrong)


def test_moments_as_text() -> None:
    """The text of `moment_text` is read back; other zones and plain numbers, too."""
    assert parse_moment(moment_text(1_700_000_000_123)) == 1_700_000_000_123
    assert parse_moment("1970-01-01T01:00:01+01:00") == 1000
    assert parse_moment("1500") == 1500


@pytest.mark.parametrize("wrong", ["2026-01-31", "2026-01-31T09:30:00", "-1", "soon", ""])
def test_what_is_no_text_of_a_moment(wrong: str) -> None:
    """Without a time zone it means another moment on each machine."""
    with pytest.raises(BadRequestError):
        parse_moment(wrong)


@pytest.mark.parametrize("naive", ["2026-01-31", "2026-01-31T09:30:00"])
def test_a_time_without_a_zone_is_told_what_to_write(naive: str) -> None:
    """The user's own words, and the same in UTC; nothing of Python."""
    moment = datetime.fromisoformat(naive)
    with pytest.raises(BadRequestError, match="has no time zone") as of_datetime:
        moment_ms(moment)
    with pytest.raises(BadRequestError, match="has no time zone") as told:
        parse_moment(naive)
    assert "datetime." not in f"{of_datetime.value}{told.value}"
    proposed = str(told.value).rpartition("write ")[2]
    assert parse_moment(proposed) == moment_ms(moment.replace(tzinfo=UTC))
