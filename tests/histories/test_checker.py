"""The checker of histories is checked: it accepts what may happen and finds what may not."""

from __future__ import annotations

import functools
import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from bookie.metadata.store import MetadataStore
from bookie.testing.faulty_memory import FaultyMemoryStore
from bookie.testing.simulation.loop import Mode, simulated_loop
from tests.histories.checker import check, overlap_seconds
from tests.histories.corruption_of_watches import CORRUPTIONS
from tests.histories.history import (
    FOREVER,
    Acquisition,
    Effect,
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
from tests.histories.late_versions import check_late_versions
from tests.histories.workload import Faults, record_history

SEEDS = range(12)
OK, CONFLICT, REFUSED, UNKNOWN = Outcome.OK, Outcome.CONFLICT, Outcome.REFUSED, Outcome.UNKNOWN
CREATE, REPLACE, DELETE = Verb.CREATE, Verb.REPLACE, Verb.DELETE


@functools.cache
def recorded(seed: int, *, is_current: bool) -> tuple[History, Counter[str]]:
    """A history of the store in memory, in virtual time, with faults.

    Without `is_current` it is recorded as of a backend whose reads may be old before a sync.
    """

    async def main() -> tuple[History, Counter[str]]:
        async with AsyncExitStack() as stack:

            async def open_session() -> MetadataStore:
                store = FaultyMemoryStore(
                    f"histories-{seed}-{is_current}", session_timeout_seconds=5.0
                )
                return await stack.enter_async_context(store)

            async def expire(store: MetadataStore) -> None:
                assert isinstance(store, FaultyMemoryStore)
                store.expire_session()

            async def disconnect(store: MetadataStore) -> None:
                assert isinstance(store, FaultyMemoryStore)
                store.disconnect()

            async def reconnect(store: MetadataStore) -> None:
                assert isinstance(store, FaultyMemoryStore)
                store.reconnect()

            faults = Faults(expire, disconnect, reconnect)
            history, struck = await record_history(
                open_session, faults, seed, is_current=is_current
            )
            return history, Counter(struck)

    return simulated_loop(seed, list(Mode)[seed % 3]).run(main())


CURRENT = pytest.mark.parametrize("is_current", [True, False], ids=["current", "synced"])


@CURRENT
@pytest.mark.parametrize("seed", SEEDS)
def test_histories_of_a_correct_store_are_accepted(seed: int, is_current: bool) -> None:
    history, _ = recorded(seed, is_current=is_current)
    assert "\n".join(check(history)) == ""


def test_the_histories_hold_what_they_are_for() -> None:
    """Conflicts, unknown outcomes, lost sessions, gaps in watches, refused effects."""
    struck: Counter[str] = Counter()
    outcomes: Counter[Outcome] = Counter()
    gaps = refused = taken = 0
    for seed in SEEDS:
        history, faults = recorded(seed, is_current=True)
        struck += faults
        outcomes += Counter(entry.outcome for entry in history if isinstance(entry, Write))
        refused += sum(isinstance(entry, Effect) and entry.revision < 0 for entry in history)
        taken += sum(
            entry.verb is REPLACE and entry.session > 0 and entry.outcome is OK
            for entry in history
            if isinstance(entry, Write)
        )
        for entry in history:
            if isinstance(entry, Watched):
                gaps += sum(isinstance(notice, Gap) for notice in entry.notices)
    assert min(struck.values()) >= 5
    assert min(outcomes[outcome] for outcome in (OK, CONFLICT, UNKNOWN)) >= 20
    assert gaps >= 3
    assert refused >= 1
    assert taken >= 20


@CURRENT
@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
def test_a_corrupted_history_is_found_out(name: str, is_current: bool) -> None:
    corruption = CORRUPTIONS[name]
    applied = 0
    for seed in SEEDS:
        history, _ = recorded(seed, is_current=is_current)
        corrupted = corruption.corrupt(list(history), random.Random(f"{name}/{seed}"))
        if corrupted is None:
            continue
        applied += 1
        offences = check(corrupted)
        assert offences, f"seed {seed}: nothing found"
        rules = {offence.partition(":")[0] for offence in offences}
        assert rules & corruption.rules, f"seed {seed}: {offences}"
    assert applied >= 2


# ---- strange, and right


def write(
    verb: Verb, called: float, returned: float, outcome: Outcome, revision: int = -1, **more: object
) -> Write:
    made = Write("a", verb, "/k", called, returned, outcome, value=f"v{called}")
    made = replace(made, revision=revision, version=revision)
    return replace(made, **more)  # type: ignore[arg-type]


def read(of: Write | None, called: float, returned: float, revision: int = -1) -> Read:
    """Someone else's read that shows what `of` wrote."""
    if of is None:
        return Read("b", "/k", called, returned, None)
    revision = of.revision if revision < 0 else revision
    return Read("b", "/k", called, returned, of.value, revision, revision)


CREATED = write(CREATE, 1, 2, OK, 10)
LOST = write(CREATE, 1, FOREVER, UNKNOWN)
REPLACED = write(REPLACE, 3, 4, OK, 20, expected=10)
LOST_REPLACE = write(REPLACE, 3, FOREVER, UNKNOWN, expected=10)
LOST_DELETE = write(DELETE, 3, FOREVER, UNKNOWN, expected=10)
LEASED = write(CREATE, 1, 2, OK, 10, session=1)
END = SessionEnd("a", 1, 5, 6)
TAKEN = write(REPLACE, 3, 4, OK, 20, expected=10, client="b", session=1)
LOST_TAKING = write(REPLACE, 3, FOREVER, UNKNOWN, expected=10, client="b", session=1)
HEIRS_END = SessionEnd("b", 1, 9, 10)


def old(read: Read, client: str = "c") -> Read:
    """A read that need not show the newest state."""
    return replace(read, is_current=False, client=client)


def watched(*notices: Notice, final: dict[str, int] | None = None, until: float = 100.0) -> Watched:
    """A watch whose mirror is what the last listing said."""
    return Watched("w", "/k", 0, until, notices, final or {}, final or {})


TOLD = Notice(Seen.CREATED, "/k", 10, 10)
GONE = Notice(Seen.DELETED, "/k", 11, 11)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([LOST, read(LOST, 5, 6, 10)], id="a lost creation is seen"),
        pytest.param([LOST, read(None, 5, 6)], id="a lost creation did not happen"),
        pytest.param([LOST, read(None, 5, 6), read(LOST, 7, 8, 10)], id="or happened late"),
        pytest.param(
            [LOST, write(CREATE, 3, 4, CONFLICT, client="b")],
            id="a lost creation is in the way of another",
        ),
        pytest.param(
            [LOST, read(LOST, 3, 4, 10), write(REPLACE, 5, 6, OK, 20, expected=10)],
            id="a lost creation is replaced",
        ),
        pytest.param(
            [CREATED, LOST_REPLACE, write(REPLACE, 5, 6, CONFLICT, expected=10)],
            id="a lost replacement makes a conflict",
        ),
        pytest.param([CREATED, LOST_DELETE, read(None, 5, 6)], id="a lost deletion happened"),
        pytest.param([CREATED, LOST_DELETE, read(CREATED, 5, 6)], id="or it did not"),
        pytest.param(
            [CREATED, write(REPLACE, 3, 9, OK, 20, expected=10), read(CREATED, 5, 6)],
            id="a read beside a write shows the old state",
        ),
        pytest.param(
            [CREATED, slow := write(REPLACE, 3, 9, OK, 20, expected=10), read(slow, 5, 6)],
            id="or the new one",
        ),
        pytest.param(
            [write(CREATE, 1, 9, OK, 20), write(CREATE, 2, 8, OK, 10, key="/other")],
            id="writes side by side come in any order",
        ),
        pytest.param(
            [CREATED, write(DELETE, 3, 4, OK, expected=10), write(CREATE, 5, 6, OK, 20)],
            id="deleted and created again",
        ),
        pytest.param(
            [
                replace(CREATED, version=0),
                write(DELETE, 3, 4, OK, expected=0),
                replace(write(CREATE, 5, 6, OK, 20), version=0),
                write(DELETE, 7, 8, OK, expected=0),
            ],
            id="versions that begin anew",
        ),
        pytest.param([LEASED, END, read(LEASED, 5.5, 7)], id="seen while its session ends"),
        pytest.param([LEASED, END, read(None, 5.5, 7)], id="gone while its session ends"),
        pytest.param([LEASED, END, write(CREATE, 7, 8, OK, 20)], id="created after a lost session"),
        pytest.param(
            [
                LEASED,
                taken := write(REPLACE, 3, 4, OK, 20, expected=10, client="b"),
                END,
                read(None, 7, 8),
                replace(taken, verb=CREATE, called=9, returned=10, revision=30, value="w"),
            ],
            id="a plain replacement does not save it from its owner's end",
        ),
        pytest.param(
            [CREATED, replace(read(CREATED, 7, 8), is_current=False), REPLACED],
            id="a backend whose reads may be old",
        ),
        pytest.param(
            [CREATED, write(REPLACE, 3, 4, REFUSED, expected=10), read(CREATED, 5, 6)],
            id="a write of a lost session did nothing",
        ),
        pytest.param(
            [
                Acquisition("a", "l", 1, 2, 10, ended=9),
                Acquisition("b", "l", 1, 4, 20, ended=8),
                Effect("a", "l", 10, 2, 3, 11),
                Effect("b", "l", 20, 4, 5, 21),
                Effect("a", "l", 10, 6, 7, -1),
            ],
            id="two believe that they hold the lock, and one is refused",
        ),
        pytest.param(
            [
                CREATED,
                REPLACED,
                Watched("w", "/k", 0, 9, (Gap(),), {"/k": 20}, {"/k": 20}),
            ],
            id="a watch that admits what it missed",
        ),
        pytest.param(
            [
                replace(LOST, session=1),
                END,
                Watched(
                    "w",
                    "/k",
                    0,
                    9,
                    (Notice(Seen.CREATED, "/k", 10, 0), Notice(Seen.DELETED, "/k", 11, 1)),
                    {},
                    {},
                ),
            ],
            id="a watch tells of a lost creation",
        ),
        pytest.param(
            [LEASED, TAKEN, END, read(TAKEN, 7, 8)],
            id="taken over, it outlives the session that had it",
        ),
        pytest.param(
            [LEASED, TAKEN, HEIRS_END, read(None, 11, 12)],
            id="and ends with that of its new owner",
        ),
        pytest.param(
            [LEASED, LOST_TAKING, END, read(None, 7, 8)],
            id="a lost taking-over did not happen",
        ),
        pytest.param(
            [LEASED, LOST_TAKING, END, read(LOST_TAKING, 7, 8, 20)],
            id="or it did",
        ),
        pytest.param(
            [LEASED, LOST_TAKING, END, HEIRS_END, write(CREATE, 11, 12, OK, 30)],
            id="or it did, and nobody knows",
        ),
        pytest.param(
            [CREATED, replace(TAKEN, outcome=CONFLICT, revision=-1, version=-1)],
            id="what is persistent is not taken over",
        ),
        pytest.param(
            [CREATED, write(DELETE, 3, 4, OK, expected=10), old(read(CREATED, 5, 6))],
            id="another client's old read of what was deleted",
        ),
        pytest.param(
            [LEASED, END, *(old(read(LEASED, at, at + 1)) for at in range(10, 99, 10))],
            id="whoever never asks for the newest may see the old for ever",
        ),
    ],
)
def test_strange_histories_are_accepted(history: History) -> None:
    assert check(history) == []


DELETED = write(DELETE, 3, 4, OK, expected=10)


@pytest.mark.parametrize(
    ("rule", "history"),
    [
        pytest.param(
            "M9",
            [CREATED, *(old(read(None, at, at + 1), "a") for at in range(10, 99, 10))],
            id="a creation that its own client never sees",
        ),
        pytest.param(
            "M9",
            [CREATED, DELETED, *(old(read(CREATED, at, at + 1), "a") for at in range(10, 99, 10))],
            id="a deletion that its own client never sees",
        ),
        pytest.param(
            "M5",
            [LEASED, END, old(read(LEASED, 10, 11)), read(LEASED, 12, 13)],
            id="a leased record that whoever syncs sees after its session",
        ),
        pytest.param("M6", [CREATED, watched(TOLD, GONE)], id="gone at the end, undeleted"),
        pytest.param(
            "M2",
            [CREATED, DELETED, watched(TOLD, final={"/k": 10})],
            id="deleted, there at the end",
        ),
        pytest.param(
            "M5", [LEASED, END, watched(TOLD, final={"/k": 10})], id="leased, there at the end"
        ),
        pytest.param(
            "M6",
            [CREATED, watched(TOLD, GONE, until=1.5)],
            id="a deletion that a watch told, and nobody did",
        ),
        pytest.param(
            "M6",
            [LEASED, TAKEN, END, read(None, 7, 8)],
            id="taken over, and gone with the old owner",
        ),
        pytest.param(
            "M5",
            [LEASED, TAKEN, HEIRS_END, read(TAKEN, 11, 12)],
            id="taken over, and there after the new owner",
        ),
        pytest.param(
            "M1",
            [LEASED, TAKEN, replace(TAKEN, client="c", value="too", revision=30, version=30)],
            id="taken over by two",
        ),
        pytest.param(
            "M9",
            [
                CREATED,
                REPLACED,
                old(read(None, 5, 6, 0)),
                Read("c", "/other", 7, 8, "other", 30, 30, is_current=False),
                write(CREATE, 5, 6, OK, 30, key="/other", value="other", client="b"),
                old(read(CREATED, 9, 10)),
            ],
            id="what was seen of another key came after the state that is seen",
        ),
        pytest.param(
            "M9",
            [
                CREATED,
                write(DELETE, 3, FOREVER, UNKNOWN, expected=10),
                old(read(CREATED, 5, 6)),
                old(read(None, 7, 8)),
                old(read(CREATED, 9, 10)),
            ],
            id="what a client saw to be gone comes back",
        ),
    ],
)
def test_small_wrong_histories_are_refused(rule: str, history: History) -> None:
    assert rule in {offence.partition(":")[0] for offence in check(history)}


def test_the_overlap_of_holders_is_measured() -> None:
    history: History = [
        Acquisition("a", "l", 1, 2, 10, ended=9),
        Acquisition("b", "l", 1, 4, 20, ended=8),
        Acquisition("c", "l", 1, 10, 30),
    ]
    assert overlap_seconds(history) == 4.0


@pytest.mark.parametrize(("writes", "is_good"), [(0, True), (1, False)])
def test_a_late_version_may_fit_a_later_life_of_as_many_writes(writes: int, is_good: bool) -> None:
    """As ZooKeeper compares; any other version that is not the newest stays an offence."""
    life, later = 5 << 32, 8 << 32
    history: History = [
        Write("a", CREATE, "/k", 0, 1, OK, "1", None, life, 5),
        Write("a", DELETE, "/k", 2, 3, OK, expected=life),
        Write("a", CREATE, "/k", 4, 5, OK, "2", None, later, 8),
        Write("b", REPLACE, "/k", 6, 7, OK, "3", life + writes, later + 1, 9),
    ]
    assert check(history)
    assert bool(check_late_versions(history)) != is_good


def test_an_offence_by_both_kinds_of_versions_is_one_and_the_same() -> None:
    """One refusal is strange by the store's versions, another by the nodes': neither by both."""
    life, later = 5 << 32, 8 << 32
    by_the_store: History = [
        Write("a", CREATE, "/j", 0, 1, OK, "1", None, life, 5),
        Write("a", DELETE, "/j", 2, 3, OK, expected=life),
        Write("a", CREATE, "/j", 4, 5, OK, "2", None, later, 8),
        Write("b", REPLACE, "/j", 6, 7, CONFLICT, "3", later),
    ]
    by_the_nodes: History = [
        Write("a", CREATE, "/k", 0, 1, OK, "4", None, life + 1, 6, 1),
        SessionEnd("a", 1, 2, 3),
        Write("a", CREATE, "/k", 4, 5, OK, "5", None, later + 1, 9),
        Write("b", REPLACE, "/k", 6, 7, CONFLICT, "6", life + 1),
    ]
    assert check(by_the_store)
    assert not check(by_the_nodes)
    assert not check_late_versions(by_the_store + by_the_nodes)
