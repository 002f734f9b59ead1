"""The ledgers with last copies on a bookie, against the definition, entry by entry."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from bookie.ids import is_vacant
from bookie.ledger.catalog.dependents import has_last_copies
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState

NAMES = (*"abcde", "vacant.2")
BEYOND = 20
"""Entries that an open ledger may get behind the start of its last fragment."""


def ledger(
    sizes: tuple[int, int, int],
    fragments: tuple[Fragment, ...],
    last_entry_id: int | None,
) -> LedgerMetadata:
    """A ledger with (E, Qw, Qa); closed at `last_entry_id`, open if that is None."""
    open_ledger = LedgerMetadata(1, *sizes, LedgerState.OPEN, fragments)
    return open_ledger if last_entry_id is None else open_ledger.closed(last_entry_id, 0)


def loses_an_entry(metadata: LedgerMetadata, bookie_id: str, reliable: set[str]) -> bool:
    """The definition: some choice of Qa copies of some entry has all of them on lost members."""
    last = metadata.last_entry_id
    if not metadata.is_closed:
        last = metadata.last_fragment.first_entry_id + BEYOND
    for entry_id in range(last + 1):
        ensemble = metadata.fragment_of(entry_id).bookies
        write_set = [
            ensemble[(entry_id + i) % metadata.ensemble_size]
            for i in range(metadata.write_quorum_size)
        ]
        write_set = [name for name in write_set if name == bookie_id or not is_vacant(name)]
        if bookie_id not in write_set:
            continue
        for copies in combinations(write_set, metadata.ack_quorum_size):
            if not any(name in reliable and name != bookie_id for name in copies):
                return True
    return False


def test_every_small_ledger_of_one_fragment() -> None:
    """Every E, Qw and Qa up to 4, every set of lost bookies, every end up to 5, and none."""
    seen = set()
    for size in range(1, 5):
        names = NAMES[:size]
        for write, ack in ((w, a) for w in range(1, size + 1) for a in range(1, w + 1)):
            for flags in product((False, True), repeat=size):
                reliable = {name for name, flag in zip(names, flags, strict=True) if flag}
                for last in (None, *range(-1, 6)):
                    metadata = ledger((size, write, ack), (Fragment(0, names),), last)
                    wanted = loses_an_entry(metadata, "a", reliable)
                    assert has_last_copies(metadata, "a", reliable) is wanted, (metadata, reliable)
                    seen.add(wanted)
    assert seen == {False, True}


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    """A ledger with up to three fragments, open, in recovery or closed anywhere."""
    size = draw(st.integers(1, 5))
    write = draw(st.integers(1, size))
    starts = sorted({0, *draw(st.lists(st.integers(1, 12), max_size=2))})
    fragments = tuple(
        Fragment(start, tuple(draw(st.permutations(NAMES))[:size])) for start in starts
    )
    sizes = (size, write, draw(st.integers(1, write)))
    metadata = ledger(sizes, fragments, draw(st.none() | st.integers(-1, 20)))
    is_recovered = not metadata.is_closed and draw(st.booleans())
    return metadata.with_state(LedgerState.IN_RECOVERY) if is_recovered else metadata


@given(ledgers(), st.sets(st.sampled_from(NAMES)))
def test_ledgers_of_several_fragments(metadata: LedgerMetadata, reliable: set[str]) -> None:
    """For every bookie that they may name."""
    for name in NAMES:
        wanted = loses_an_entry(metadata, name, reliable)
        assert has_last_copies(metadata, name, reliable) is wanted


@given(ledgers(), st.sets(st.sampled_from(NAMES)), st.sampled_from(NAMES))
def test_more_lost_bookies_never_save_a_ledger(
    metadata: LedgerMetadata, reliable: set[str], name: str
) -> None:
    """And an ack quorum of one has its last copy on each of its bookies."""
    if has_last_copies(metadata, "a", reliable):
        assert has_last_copies(metadata, "a", reliable - {name})
    lone = replace(metadata, ack_quorum_size=1)
    assert has_last_copies(lone, "a", set(NAMES)) is loses_an_entry(lone, "a", set(NAMES))
