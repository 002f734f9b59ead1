"""Write quorums that a ledger cannot have, and the layout of those that it can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.errors import BadRequestError
from bookie.ids import vacancy
from bookie.ledger.copies.quorum_plan import check_write_quorum, slot_duties, with_write_quorum
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState

LEDGER = LedgerMetadata(
    7,
    3,
    2,
    2,
    LedgerState.CLOSED,
    (Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b1", "b4", "b3"))),
    last_entry_id=9,
    length=10,
)


def test_a_write_quorum_within_the_ensemble_keeps_the_bookies() -> None:
    new = with_write_quorum(LEDGER, 3, {})
    assert new == replace(LEDGER, write_quorum_size=3)
    added = [(one.bookie_id, one.added(0, 9)) for one in slot_duties(LEDGER, new)][:3]
    assert added == [
        ("b1", [(1, 1), (4, 4), (7, 7)]),
        ("b2", [(2, 2), (5, 5), (8, 8)]),
        ("b3", [(0, 0), (3, 3), (6, 6), (9, 9)]),
    ]


def test_a_larger_write_quorum_makes_each_ensemble_larger() -> None:
    new = with_write_quorum(LEDGER, 4, {0: ["b4"], 5: ["b2"]})
    assert (new.ensemble_size, new.write_quorum_size, new.ack_quorum_size) == (4, 4, 2)
    assert [one.bookies for one in new.fragments] == [
        ("b1", "b2", "b3", "b4"),
        ("b1", "b4", "b3", "b2"),
    ]
    newcomer = list(slot_duties(LEDGER, new))[3]
    assert (newcomer.bookie_id, newcomer.old) == ("b4", None)
    assert newcomer.added(0, 4) == [(0, 4)]


def test_a_smaller_write_quorum_gives_nothing_to_anybody() -> None:
    old = replace(LEDGER, write_quorum_size=3)
    for duty in slot_duties(old, with_write_quorum(old, 2, {})):
        assert duty.added(duty.first_entry_id, duty.last_entry_id) == []


@pytest.mark.parametrize(
    ("ledger", "write_quorum", "sentence"),
    [
        (replace(LEDGER, state=LedgerState.OPEN), 3, "ledger 7 is not closed"),
        (replace(LEDGER, state=LedgerState.IN_RECOVERY), 3, "ledger 7 is not closed"),
        (LEDGER, 1, "cannot be 1, because its ack quorum is 2"),
        (replace(LEDGER, ack_quorum_size=0), 0, "cannot be 0, because its ack quorum is 1"),
        (LEDGER, 65, "must satisfy 64 >= ensemble"),
        (
            replace(LEDGER, fragments=(Fragment(0, ("b1", vacancy(1), "b3")),)),
            3,
            "has a vacant slot in the fragment from entry 0 on: repair it first",
        ),
    ],
)
def test_what_a_ledger_cannot_have(
    ledger: LedgerMetadata, write_quorum: int, sentence: str
) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        check_write_quorum(ledger, write_quorum)
