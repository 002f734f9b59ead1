"""When a bookie counts as lost, and a writer as gone."""

from __future__ import annotations

from bookie.repair.absence import AbsenceVerdict, BookieAbsence, WriterAbsence

FIVE = ["b1", "b2", "b3", "b4", "b5"]


def _look(absence: BookieAbsence, now: float, away: str = "", share: float = 0.5) -> AbsenceVerdict:
    registered = [name for name in FIVE if name not in away.split()]
    return absence.look(now, FIVE, registered, delay_seconds=10, share_max=share)


def test_a_bookie_is_lost_after_the_delay() -> None:
    absence = BookieAbsence(1000)
    assert _look(absence, 0) == AbsenceVerdict()
    first = _look(absence, 5, "b2")
    assert first.away == {"b2"}
    assert not first.lost
    assert not _look(absence, 14.9, "b2").lost
    assert _look(absence, 15, "b2").lost == {"b2"}


def test_a_return_begins_the_delay_anew() -> None:
    absence = BookieAbsence(1000)
    _look(absence, 0, "b2")
    _look(absence, 9)
    assert not _look(absence, 10, "b2").lost
    assert not _look(absence, 19, "b2").lost
    assert _look(absence, 20, "b2").lost == {"b2"}


def test_each_bookie_has_its_own_delay() -> None:
    absence = BookieAbsence(1000)
    _look(absence, 0, "b1")
    assert _look(absence, 10, "b1 b2").lost == {"b1"}
    assert _look(absence, 20, "b1 b2").lost == {"b1", "b2"}


def test_nobody_is_lost_during_a_split() -> None:
    absence = BookieAbsence(1000)
    assert not _look(absence, 0, "b1 b2 b3").is_split  # a cluster that starts, perhaps
    verdict = _look(absence, 100, "b1 b2 b3")
    assert verdict.is_split
    assert not verdict.lost
    assert verdict.away == {"b1", "b2", "b3"}
    # When a split heals, bookies come back one by one: nobody is lost at once.
    assert not _look(absence, 101, "b1 b2").lost
    assert not _look(absence, 109, "b1").lost
    assert _look(absence, 110, "b1").lost == {"b1"}


def test_half_of_the_bookies_is_no_split_by_default() -> None:
    absence = BookieAbsence(1000)
    four = FIVE[:4]
    absence.look(0, four, four[2:], delay_seconds=10, share_max=0.5)
    verdict = absence.look(10, four, four[2:], delay_seconds=10, share_max=0.5)
    assert verdict.lost == {"b1", "b2"}


def test_an_unknown_bookie_is_not_away() -> None:
    verdict = BookieAbsence(1000).look(0, [], ["b9"], delay_seconds=0, share_max=0.5)
    assert verdict == AbsenceVerdict()


def test_a_bookie_without_a_cookie_is_lost_after_the_delay_too() -> None:
    """But strangers say nothing about the network: old ledgers may name many."""
    absence = BookieAbsence(1000)
    strangers = ["c1", "c2", "c3", "c4", "c5", "c6"]
    first = absence.look(0, FIVE, FIVE, strangers, delay_seconds=10, share_max=0.5)
    assert not first.lost
    verdict = absence.look(10, FIVE, [*FIVE, "c6"], strangers, delay_seconds=10, share_max=0.5)
    assert verdict.lost == set(strangers[:5])
    assert not verdict.is_split


def test_a_split_now_and_then_does_not_keep_others_from_being_lost() -> None:
    """Two are gone for good, and a third one crashes again and again: clocks only stand still."""
    absence = BookieAbsence(1000)
    for now in range(0, 30, 3):
        _look(absence, now, "b1 b2")
        _look(absence, now + 1, "b1 b2 b3")
        _look(absence, now + 2, "b1 b2")
    assert _look(absence, 30, "b1 b2").lost == {"b1", "b2"}


def _gone(absence: WriterAbsence, now: float, *present: str) -> set[str]:
    absence.look(now, ("w1", "w2"), present)
    return {name for name in ("w1", "w2", "w3") if absence.is_gone(name, 10)}


def test_a_writer_is_gone_after_the_grace() -> None:
    absence = WriterAbsence(5)
    assert not _gone(absence, 0, "w1")
    assert not _gone(absence, 5, "w1")
    assert _gone(absence, 10, "w1") == {"w2"}
    assert absence.missing == {"w2"}
    assert not _gone(absence, 11, "w1", "w2")
    assert not _gone(absence, 15)
    assert not _gone(absence, 20)
    assert _gone(absence, 25) == {"w1", "w2"}


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The machine may have been suspended, with the writers on it."""
    absence = WriterAbsence(5)
    _gone(absence, 0)
    assert not _gone(absence, 1000)
    assert not _gone(absence, 1004.9)
    assert _gone(absence, 1005) == {"w1", "w2"}


def test_a_bookie_is_not_lost_for_time_in_which_nobody_looked() -> None:
    absence = BookieAbsence(5)
    _look(absence, 0, "b1")
    assert not _look(absence, 1000, "b1 b2").lost
    assert not _look(absence, 1004.9, "b1 b2").lost
    assert _look(absence, 1005, "b1 b2").lost == {"b1"}
    assert _look(absence, 1010, "b1 b2").lost == {"b1", "b2"}


def test_a_split_does_not_age_while_nobody_looks() -> None:
    absence = BookieAbsence(5)
    _look(absence, 0, "b1 b2 b3")
    assert not _look(absence, 1000, "b1 b2 b3").is_split
    assert _look(absence, 1005, "b1 b2 b3").is_split
    # Its clocks stood still all the time.
    assert not _look(absence, 1006, "b1").lost
    assert not _look(absence, 1010, "b1").lost
    assert _look(absence, 1015, "b1").lost == {"b1"}
