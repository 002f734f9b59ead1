"""Ways to make a good history a bad one: watches, last listings, take-overs. See `corruption`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.histories.corruption import (
    CORRUPTIONS,
    breaks,
    choose,
    deleted,
    of,
    swapped,
    written,
)
from tests.histories.history import (
    Entry,
    Gap,
    History,
    Notice,
    Outcome,
    Read,
    Seen,
    SessionEnd,
    Verb,
    Watched,
    Write,
)

__all__ = ["CORRUPTIONS"]

# ---- watches


def _with_notices(
    history: History,
    dice: random.Random,
    change: Callable[[list[Notice | Gap], int], list[Notice | Gap] | None],
    suits: Callable[[Watched, list[Notice | Gap], int], bool] = lambda *_: True,
) -> History | None:
    places = [
        (watched, index)
        for watched in of(history, Watched)
        for index, notice in enumerate(watched.notices)
        if isinstance(notice, Notice) and suits(watched, list(watched.notices), index)
    ]
    found = choose(dice, places)
    if found is None:
        return None
    watched, index = found
    notices = change(list(watched.notices), index)
    if notices is None:
        return None
    return swapped(history, (watched, replace(watched, notices=tuple(notices))))


def _has_no_gap(watched: Watched, notices: list[Notice | Gap], index: int) -> bool:
    return not any(isinstance(notice, Gap) for notice in notices)


@breaks("M8")
def a_watch_misses_a_write(history: History, dice: random.Random) -> History | None:
    known = {(w.key, w.revision): w for w in written(history)}

    def suits(watched: Watched, notices: list[Notice | Gap], index: int) -> bool:
        notice = notices[index]
        if not isinstance(notice, Notice) or not _has_no_gap(watched, notices, index):
            return False
        write = known.get((notice.key, notice.revision))
        return write is not None and watched.since < write.called < write.returned < watched.until

    return _with_notices(history, dice, lambda notices, i: notices[:i] + notices[i + 1 :], suits)


@breaks("M8")
def a_watch_says_it_twice(history: History, dice: random.Random) -> History | None:
    return _with_notices(history, dice, lambda notices, i: [*notices[:i], notices[i], *notices[i:]])


@breaks("M8")
def a_watch_turns_the_order(history: History, dice: random.Random) -> History | None:
    def suits(watched: Watched, notices: list[Notice | Gap], i: int) -> bool:
        later = notices[i + 1] if i + 1 < len(notices) else None
        here = notices[i]
        return (
            isinstance(here, Notice)
            and isinstance(later, Notice)
            and here.revision < later.revision
        )

    return _with_notices(
        history,
        dice,
        lambda notices, i: [*notices[:i], notices[i + 1], notices[i], *notices[i + 2 :]],
        suits,
    )


@breaks("M8")
def a_watch_tears_a_commit(history: History, dice: random.Random) -> History | None:
    def tear(notices: list[Notice | Gap], i: int) -> list[Notice | Gap]:
        here = notices[i]
        assert isinstance(here, Notice)
        return [*notices[:i], here, replace(here, key="/h/torn", batch=-7), *notices[i + 1 :]]

    return _with_notices(history, dice, tear)


@breaks("M8")
def a_watch_tells_of_a_write_that_nobody_made(
    history: History, dice: random.Random
) -> History | None:
    def invent(notices: list[Notice | Gap], i: int) -> list[Notice | Gap]:
        return [*notices, Notice(Seen.CREATED, "/h/nobody", 10**9, 10**9)]

    return _with_notices(history, dice, invent)


@breaks("M8")
def a_watch_mistakes_the_kind(history: History, dice: random.Random) -> History | None:
    def suits(watched: Watched, notices: list[Notice | Gap], i: int) -> bool:
        here = notices[i]
        before = [n for n in notices[:i] if isinstance(n, Notice) and isinstance(here, Notice)]
        return (
            isinstance(here, Notice)
            and here.kind is Seen.MODIFIED
            and any(n.key == here.key for n in before)
            and _has_no_gap(watched, notices, i)
        )

    def mistake(notices: list[Notice | Gap], i: int) -> list[Notice | Gap]:
        here = notices[i]
        assert isinstance(here, Notice)
        return [*notices[:i], replace(here, kind=Seen.CREATED), *notices[i + 1 :]]

    return _with_notices(history, dice, mistake, suits)


@breaks("M8")
def a_mirror_is_not_what_there_is(history: History, dice: random.Random) -> History | None:
    watched = choose(dice, of(history, Watched))
    if watched is None:
        return None
    mirror = {**watched.mirror, "/h/a": watched.mirror.get("/h/a", 0) + 1}
    return swapped(history, (watched, replace(watched, mirror=mirror)))


# ---- the end


def _ending(history: History, key: str, write: Write | None) -> History:
    """The history whose last listings have this state of the key, or none; all watches agree."""
    end = min(watched.until for watched in of(history, Watched))
    changed: list[Entry] = []
    for entry in history:
        if isinstance(entry, Watched):
            changed.append(_watched_to_the_end(entry, key, write))
        elif isinstance(entry, Read) and entry.key == key and entry.called > end:
            gone = replace(entry, value=None, version=-1, revision=-1)
            changed.append(
                gone
                if write is None
                else replace(
                    gone, value=write.value, version=write.version, revision=write.revision
                )
            )
        else:
            changed.append(entry)
    return changed


def _watched_to_the_end(watched: Watched, key: str, write: Write | None) -> Watched:
    final = {name: revision for name, revision in watched.final.items() if name != key}
    notices = list(watched.notices)
    if write is None:
        notices.append(Notice(Seen.DELETED, key, 10**9, 10**9))
    else:
        final[key] = write.revision
        notices = [
            notice
            for notice in notices
            if not isinstance(notice, Notice)
            or notice.kind is not Seen.DELETED
            or notice.key != key
            or notice.revision < write.revision
        ]
    return replace(watched, notices=tuple(notices), mirror=final, final=final)


def _was_last(history: History, write: Write) -> bool:
    """True if this was the last state of the key, and the key is gone in the end."""
    later = [w for w in written(history) if w.key == write.key and w.revision > write.revision]
    lost = [w for w in of(history, Write) if w.key == write.key and w.outcome is Outcome.UNKNOWN]
    return not (later or lost or any(write.key in w.final for w in of(history, Watched)))


@breaks("M6")
def what_nobody_deleted_is_gone_at_the_end(history: History, dice: random.Random) -> History | None:
    present = [
        write.key
        for write in written(history)
        if all(write.key in watched.final for watched in of(history, Watched))
        and not any(
            w.key == write.key and (w.session or (w.verb is Verb.DELETE and w.returned > 1e9))
            for w in of(history, Write)
        )
    ]
    key = choose(dice, present)
    return None if key is None else _ending(history, key, None)


@breaks("M2")
def what_was_deleted_is_there_at_the_end(history: History, dice: random.Random) -> History | None:
    last = [write for _, write in deleted(history) if _was_last(history, write)]
    write = choose(dice, last)
    return None if write is None else _ending(history, write.key, write)


@breaks("M5")
def what_was_leased_is_there_at_the_end(history: History, dice: random.Random) -> History | None:
    first = min(written(history), key=lambda write: write.revision)
    start = min(entry.called for entry in of(history, Write)) - 10
    revision = first.revision - 1
    leased = Write(
        "lessee",
        Verb.CREATE,
        "/h/z",
        start,
        start + 1,
        Outcome.OK,
        value="leased",
        version=revision,
        revision=revision,
        session=1,
    )
    end = SessionEnd("lessee", 1, start + 2, start + 3)
    return [leased, end, *_ending(history, leased.key, leased)]


@breaks("M6")
def a_watch_tells_of_a_deletion_that_nobody_made(
    history: History, dice: random.Random
) -> History | None:
    ends = [notice for watched in of(history, Watched) for notice in watched.notices[-1:]]
    if not all(isinstance(notice, Notice) and notice.key.endswith("fence") for notice in ends):
        return None
    return [
        replace(
            entry,
            notices=(*entry.notices, Notice(Seen.DELETED, "/h/fence", 10**9, 10**9)),
        )
        if isinstance(entry, Watched)
        else entry
        for entry in history
    ]


# ---- take-overs


@breaks("M6", "M9")
def a_record_taken_over_ends_with_its_old_owner(
    history: History, dice: random.Random
) -> History | None:
    """It was taken over, the session that had it ended, and it is gone."""
    fence = next((w for w in written(history) if w.key.endswith("fence")), None)
    if fence is None:
        return None
    leased = replace(fence, key="/h/z", value="leased", session=1, client="old")
    leased = replace(leased, called=leased.returned + 1, returned=leased.returned + 2)
    leased = replace(leased, revision=fence.revision + 1, version=10**6)
    taken = replace(
        leased,
        verb=Verb.REPLACE,
        client="new",
        session=1,
        called=leased.returned + 1,
        returned=leased.returned + 2,
        value="taken",
        revision=leased.revision + 1,
        expected=leased.version,
        version=leased.version + 1,
    )
    end = SessionEnd("old", 1, taken.returned + 1, taken.returned + 2)
    gone = Read("new", "/h/z", end.returned + 1, end.returned + 2, None, is_current=False)
    return [*history, leased, taken, end, gone]


@breaks("M1")
def a_record_is_taken_over_twice(history: History, dice: random.Random) -> History | None:
    taken = [w for w in written(history) if w.verb is Verb.REPLACE and w.session]
    write = choose(dice, taken)
    if write is None:
        return None
    revision = max(w.revision for w in written(history)) + 1
    return [
        *history,
        replace(write, client="other", value="too", revision=revision, version=revision),
    ]
