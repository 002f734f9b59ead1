"""The checker of histories is checked: it accepts what may happen and finds what may not."""

from __future__ import annotations

import functools
import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from bookie.metadata.memory import MemoryStore
from bookie.metadata.store import MetadataStore
from tests.histories.checker import check, overlap_seconds
from tests.histories.corruption import CORRUPTIONS
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
from tests.histories.workload import Faults, record_history
from tests.sim.loop import Mode, simulated_loop

SEEDS = range(12)
OK, CONFLICT, REFUSED, UNKNOWN = Outcome.OK, Outcome.CONFLICT, Outcome.REFUSED, Outcome.UNKNOWN
CREATE, REPLACE, DELETE = Verb.CREATE, Verb.REPLACE, Verb.DELETE


@functools.cache
def recorded(seed: int) -> tuple[History, Counter[str]]:
    """A history of the store in memory, in virtual time, with faults."""

    async def main() -> tuple[History, Counter[str]]:
        async with AsyncExitStack() as stack:

            async def open_session() -> MetadataStore:
                store = MemoryStore(f"histories-{seed}", session_timeout_seconds=5.0)
                return await stack.enter_async_context(store)

            async def expire(store: MetadataStore) -> None:
                assert isinstance(store, MemoryStore)
                store.expire_session()

            async def disconnect(store: MetadataStore) -> None:
                assert isinstance(store, MemoryStore)
                store.disconnect()

            async def reconnect(store: MetadataStore) -> None:
                assert isinstance(store, MemoryStore)
                store.reconnect()

            faults = Faults(expire, disconnect, reconnect)
            history, struck = await record_history(open_session, faults, seed)
            return history, Counter(struck)

    return simulated_loop(seed, list(Mode)[seed % 3]).run(main())


@pytest.mark.parametrize("seed", SEEDS)
def test_histories_of_a_correct_store_are_accepted(seed: int) -> None:
    history, _ = recorded(seed)
    assert "\n".join(check(history)) == ""


def test_the_histories_hold_what_they_are_for() -> None:
    """Conflicts, unknown outcomes, lost sessions, gaps in watches, refused effects."""
    struck: Counter[str] = Counter()
    outcomes: Counter[Outcome] = Counter()
    gaps = refused = 0
    for seed in SEEDS:
        history, faults = recorded(seed)
        struck += faults
        outcomes += Counter(entry.outcome for entry in history if isinstance(entry, Write))
        refused += sum(isinstance(entry, Effect) and entry.revision < 0 for entry in history)
        for entry in history:
            if isinstance(entry, Watched):
                gaps += sum(isinstance(notice, Gap) for notice in entry.notices)
    assert min(struck.values()) >= 5
    assert min(outcomes[outcome] for outcome in (OK, CONFLICT, UNKNOWN)) >= 20
    assert gaps >= 3
    assert refused >= 1


@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
def test_a_corrupted_history_is_found_out(name: str) -> None:
    corruption = CORRUPTIONS[name]
    applied = 0
    for seed in SEEDS:
        history, _ = recorded(seed)
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
                LOST,
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
    ],
)
def test_strange_histories_are_accepted(history: History) -> None:
    assert check(history) == []


def test_the_overlap_of_holders_is_measured() -> None:
    history: History = [
        Acquisition("a", "l", 1, 2, 10, ended=9),
        Acquisition("b", "l", 1, 4, 20, ended=8),
        Acquisition("c", "l", 1, 10, 30),
    ]
    assert overlap_seconds(history) == 4.0
