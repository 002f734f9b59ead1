"""Ways in which a good history can be made a bad one, each with the rules that it breaks.

Those of watches and of the end are in `corruption_of_watches`, which registers them here as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from tests.histories.history import (
    Acquisition,
    Drawn,
    Effect,
    Entry,
    History,
    Outcome,
    Read,
    SessionEnd,
    Verb,
    Write,
)

E = TypeVar("E")
Corrupt = Callable[[History, random.Random], History | None]


@dataclass(frozen=True)
class Corruption:
    """`corrupt` returns None where the history lacks a place for the damage."""

    corrupt: Corrupt
    rules: frozenset[str]


CORRUPTIONS: dict[str, Corruption] = {}


def breaks(*rules: str) -> Callable[[Corrupt], Corrupt]:
    """Register a corruption."""

    def register(corrupt: Corrupt) -> Corrupt:
        CORRUPTIONS[corrupt.__name__] = Corruption(corrupt, frozenset(rules))
        return corrupt

    return register


def of(history: History, kind: type[E]) -> list[E]:
    """The entries of one kind."""
    return [entry for entry in history if isinstance(entry, kind)]


def swapped(history: History, *pairs: tuple[Entry, Entry]) -> History:
    """The history with some entries replaced."""
    table = {id(old): new for old, new in pairs}
    return [table.get(id(entry), entry) for entry in history]


def written(history: History) -> list[Write]:
    """Writes that happened and made a state."""
    return [w for w in of(history, Write) if w.outcome is Outcome.OK and w.verb is not Verb.DELETE]


def choose(dice: random.Random, candidates: list[E]) -> E | None:
    """One of them, or None."""
    return dice.choice(candidates) if candidates else None


# ---- writes


@breaks("M1")
def two_writes_get_one_revision(history: History, dice: random.Random) -> History | None:
    first, second = dice.sample(written(history), 2)
    return swapped(history, (first, replace(first, revision=second.revision)))


@breaks("M1", "M2", "M3", "M8")
def two_writes_swap_their_revisions(history: History, dice: random.Random) -> History | None:
    writes = written(history)
    pairs = [(a, b) for a in writes for b in writes if a.returned < b.called]
    a, b = dice.choice(pairs)
    return swapped(
        history, (a, replace(a, revision=b.revision)), (b, replace(b, revision=a.revision))
    )


@breaks("M1", "M2")
def a_refused_replacement_happened(history: History, dice: random.Random) -> History | None:
    refused = [
        w for w in of(history, Write) if w.outcome is Outcome.CONFLICT and w.verb is Verb.REPLACE
    ]
    write = choose(dice, refused)
    if write is None:
        return None
    newest = max(w.revision for w in written(history)) + 1
    done = replace(write, outcome=Outcome.OK, revision=newest, version=newest)
    return swapped(history, (write, done))


@breaks("M1", "M2")
def a_version_was_replaced_twice(history: History, dice: random.Random) -> History | None:
    write = choose(dice, [w for w in written(history) if w.verb is Verb.REPLACE])
    if write is None:
        return None
    revision = max(w.revision for w in written(history)) + 1
    again = replace(write, value="again", revision=revision, version=revision, client="other")
    return [*history, again]


@breaks("M1", "M4")
def a_replacement_did_nothing(history: History, dice: random.Random) -> History | None:
    read = {r.value for r in of(history, Read)}
    write = choose(
        dice, [w for w in written(history) if w.verb is Verb.REPLACE and w.value in read]
    )
    if write is None:
        return None
    return swapped(
        history, (write, replace(write, outcome=Outcome.CONFLICT, revision=-1, version=-1))
    )


@breaks("M1")
def a_version_unheard_of_wasdeleted(history: History, dice: random.Random) -> History | None:
    deletion = choose(
        dice,
        [w for w in of(history, Write) if w.verb is Verb.DELETE and w.outcome is Outcome.OK],
    )
    if deletion is None:
        return None
    return swapped(history, (deletion, replace(deletion, expected=10**9)))


@breaks("M1")
def a_record_was_created_over_another(history: History, dice: random.Random) -> History | None:
    fence = next((w for w in written(history) if w.key.endswith("fence")), None)
    if fence is None:
        return None
    revision = max(w.revision for w in written(history)) + 1
    again = replace(
        fence,
        called=fence.returned + 1,
        returned=fence.returned + 2,
        value="again",
        revision=revision,
        version=revision,
    )
    return [*history, again]


def _deletable(history: History, write: Write) -> bool:
    return any(w.key == write.key and w.verb is Verb.DELETE for w in of(history, Write)) or any(
        w.key == write.key and w.session for w in of(history, Write)
    )


@breaks("M3", "M1")
def a_seen_write_is_forgotten(history: History, dice: random.Random) -> History | None:
    read = {r.value for r in of(history, Read)}
    write = choose(dice, [w for w in written(history) if w.value in read])
    return None if write is None else [entry for entry in history if entry is not write]


@breaks("M4")
def a_creation_failed_although_there_was_none(
    history: History, dice: random.Random
) -> History | None:
    first = min(entry.called for entry in of(history, Write))
    made = Write(
        "other", Verb.CREATE, "/h/a", first - 2, first - 1, Outcome.CONFLICT, value="too early"
    )
    return [made, *history]


@breaks("M4")
def the_newest_version_was_refused(history: History, dice: random.Random) -> History | None:
    writes = of(history, Write)
    for write in written(history):
        others = [
            w for w in writes if w.key == write.key and w is not write and w.returned > write.called
        ]
        ends = [w.called for w in others] + [
            e.called for e in of(history, SessionEnd) if e.returned > write.called
        ]
        free = min(ends, default=write.returned + 1)
        if write.returned < free:
            at = write.returned
            refused = Write(
                "other",
                Verb.REPLACE,
                write.key,
                at + (free - at) / 3,
                at + (free - at) / 2,
                Outcome.CONFLICT,
                value="refused",
                expected=write.version,
            )
            return [*history, refused]
    return None


# ---- reads


@breaks("M3")
def a_read_has_another_value(history: History, dice: random.Random) -> History | None:
    reads = [r for r in of(history, Read) if r.value is not None]
    read = choose(dice, reads)
    others = [r.value for r in reads if read is not None and r.value != read.value]
    if read is None or not others:
        return None
    return swapped(history, (read, replace(read, value=dice.choice(others))))


@breaks("M3")
def a_read_has_a_value_nobody_wrote(history: History, dice: random.Random) -> History | None:
    read = choose(dice, [r for r in of(history, Read) if r.value is not None])
    return None if read is None else swapped(history, (read, replace(read, value="phantom")))


@breaks("M4")
def a_write_that_did_nothing_is_seen(history: History, dice: random.Random) -> History | None:
    nothing = (Outcome.CONFLICT, Outcome.REFUSED)
    writes = [w for w in of(history, Write) if w.outcome in nothing and w.verb is not Verb.DELETE]
    write = choose(dice, writes)
    if write is None:
        return None
    after = write.returned
    seen = Read("other", write.key, after + 0.1, after + 0.2, write.value, 10**9, 10**9)
    return [*history, seen]


@breaks("M2", "M9", "M5")
def a_read_is_stale(history: History, dice: random.Random) -> History | None:
    stale = [
        (read, old)
        for read in of(history, Read)
        for old in written(history)
        for new in written(history)
        if read.key == old.key == new.key
        and read.is_current
        and read.value is not None
        and old.revision < new.revision
        and new.returned < read.called
        and old.value != read.value
    ]
    found = choose(dice, stale)
    if found is None:
        return None
    read, old = found
    return swapped(
        history,
        (read, replace(read, value=old.value, version=old.version, revision=old.revision)),
    )


@breaks("M2")
def a_read_sees_the_future(history: History, dice: random.Random) -> History | None:
    early = [
        (read, write)
        for read in of(history, Read)
        for write in written(history)
        if read.key == write.key and read.returned < write.called
    ]
    found = choose(dice, early)
    if found is None:
        return None
    read, write = found
    return swapped(
        history,
        (read, replace(read, value=write.value, version=write.version, revision=write.revision)),
    )


@breaks("M6")
def a_record_that_nobody_deleted_is_absent(history: History, dice: random.Random) -> History | None:
    reads = [
        read
        for read in of(history, Read)
        for write in written(history)
        if read.key == write.key
        and read.is_current
        and write.returned < read.called
        and read.value is not None
        and not _deletable(history, write)
    ]
    read = choose(dice, reads)
    if read is not None:
        gone = replace(read, value=None, version=-1, revision=-1)
        return swapped(history, (read, gone))
    fence = next((w for w in written(history) if w.key.endswith("fence")), None)
    if fence is None:
        return None
    after = fence.returned
    return [*history, Read("other", fence.key, after + 0.1, after + 0.2, None)]


@breaks("M5")
def a_record_outlives_its_session(history: History, dice: random.Random) -> History | None:
    revision = max(w.revision for w in written(history)) + 1
    last = max(w.returned for w in written(history))
    leased = Write(
        "other",
        Verb.CREATE,
        "/h/leased",
        last + 1,
        last + 2,
        Outcome.OK,
        "leased",
        version=revision,
        revision=revision,
        session=1,
    )
    end = SessionEnd("other", 1, last + 3, last + 4)
    late = Read("third", leased.key, last + 5, last + 6, leased.value, revision, revision)
    return [*history, leased, end, late]


@breaks("M9", "M6")
def a_client_does_not_see_what_it_created(history: History, dice: random.Random) -> History | None:
    alone = [
        write
        for write in written(history)
        if write.verb is Verb.CREATE
        and not any(
            other.called <= write.returned + 1 and other.returned >= write.called
            for other in history
            if isinstance(other, SessionEnd)
            or (isinstance(other, Write) and other.key == write.key and other is not write)
        )
    ]
    write = choose(dice, alone)
    if write is None:
        return None
    at = write.returned
    own = Read(write.client, write.key, at + 0.1, at + 0.2, None, is_current=False)
    return [*history, own]


@breaks("M9", "M2")
def a_client_sees_what_itdeleted(history: History, dice: random.Random) -> History | None:
    found = choose(dice, deleted(history))
    if found is None:
        return None
    deletion, write = found
    at = deletion.returned
    return [*history, _seen(write, deletion.client, at, is_current=False)]


@breaks("M9", "M2")
def a_client_goes_back_by_way_of_another_key(
    history: History, dice: random.Random
) -> History | None:
    """It read or wrote something that came after the state that it sees."""
    pairs = [
        (old, other)
        for old in written(history)
        for new in written(history)
        for other in written(history)
        if old.key == new.key != other.key and old.revision < new.revision < other.revision
    ]
    found = choose(dice, pairs)
    if found is None:
        return None
    old, other = found
    end = max(old.returned, other.returned)
    return [
        *history,
        _seen(other, "traveller", end, is_current=False),
        _seen(old, "traveller", end + 1, is_current=False),
    ]


def _seen(write: Write, client: str, at: float, *, is_current: bool) -> Read:
    return Read(
        client,
        write.key,
        at + 0.1,
        at + 0.2,
        write.value,
        write.version,
        write.revision,
        is_current,
    )


def deleted(history: History) -> list[tuple[Write, Write]]:
    """Deletions that happened, and what they deleted."""
    return [
        (deletion, write)
        for deletion in of(history, Write)
        for write in written(history)
        if deletion.verb is Verb.DELETE
        and deletion.outcome is Outcome.OK
        and deletion.key == write.key
        and deletion.expected == write.version
    ]


@breaks("M9")
def a_client_goes_back(history: History, dice: random.Random) -> History | None:
    reads = [replace(r, is_current=False) for r in of(history, Read) if r.value is not None]
    pairs = [
        (a, b)
        for a in reads
        for b in reads
        if (a.client, a.key) == (b.client, b.key)
        and a.returned < b.called
        and a.revision < b.revision
    ]
    found = choose(dice, pairs)
    if found is None:
        return None
    a, b = found
    late = replace(a, called=b.returned + 0.1, returned=b.returned + 0.2)
    return [*history, late]


# ---- locks and numbers


@breaks("M7")
def a_token_is_given_twice(history: History, dice: random.Random) -> History | None:
    first, second = dice.sample(of(history, Acquisition), 2)
    return swapped(history, (first, replace(first, token=second.token)))


@breaks("M7")
def a_later_holder_has_a_lower_token(history: History, dice: random.Random) -> History | None:
    held = of(history, Acquisition)
    found = choose(dice, [(a, b) for a in held for b in held if a.returned < b.called])
    if found is None:
        return None
    a, b = found
    return swapped(history, (a, replace(a, token=b.token)), (b, replace(b, token=a.token)))


@breaks("M7")
def an_effect_comes_after_the_next_holders(history: History, dice: random.Random) -> History | None:
    effects = [e for e in of(history, Effect) if e.revision >= 0]
    found = choose(dice, [(a, b) for a in effects for b in effects if a.token < b.token])
    if found is None:
        return None
    a, b = found
    return swapped(
        history, (a, replace(a, revision=b.revision)), (b, replace(b, revision=a.revision))
    )


@breaks("M7")
def a_holder_acts_when_another_one_has_the_lock(
    history: History, dice: random.Random
) -> History | None:
    """Nobody else acts after it, so that the order of effects is that of tokens."""
    held = sorted(of(history, Acquisition), key=lambda one: one.token)
    found = choose(dice, [(a, b) for a, b in pairwise(held) if a.client != b.client])
    if found is None:
        return None
    a, b = found
    before = [e for e in of(history, Effect) if e.revision >= 0 and e.token <= a.token]
    last = max((e.revision for e in before), default=b.token)
    late = Effect(a.client, a.lock, a.token, b.returned + 0.1, b.returned + 0.2, last)
    return [entry for entry in history if not isinstance(entry, Effect)] + [*before, late]


@breaks("M7")
def an_effect_has_a_token_of_nobody(history: History, dice: random.Random) -> History | None:
    effect = choose(dice, [e for e in of(history, Effect) if e.revision >= 0])
    return None if effect is None else swapped(history, (effect, replace(effect, client="other")))


@breaks("M10")
def a_number_is_given_twice(history: History, dice: random.Random) -> History | None:
    first, second = dice.sample(of(history, Drawn), 2)
    return swapped(history, (first, replace(first, number=second.number)))


@breaks("M10")
def numbers_go_back(history: History, dice: random.Random) -> History | None:
    drawn = of(history, Drawn)
    found = choose(dice, [(a, b) for a in drawn for b in drawn if a.returned < b.called])
    if found is None:
        return None
    a, b = found
    return swapped(history, (a, replace(a, number=b.number)), (b, replace(b, number=a.number)))
