"""The search: every state that a scope allows, each once, until all are seen or the share is spent.

States are told apart by a hash of 64 bits of their key. Two of five million states have the same
hash by chance once in a million searches, and then one state is left out.

The search goes depth first, in an order that is shuffled in the same way each time. Now and then it
jumps to the oldest state that waits. So a search that is cut has seen many long lives. `breadth`
finds a short trace instead.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bookie.ledger.metadata import LedgerState
from tests.explorer.explored_base import WRITER, Action
from tests.explorer.explored_machines import Key, Renaming, key_of_writer, renamings
from tests.explorer.explored_repair import ENDED, MARK, Worker
from tests.explorer.explored_state import ExploredState
from tests.explorer.explored_world import Scope, Stream, Write, Zombie, check_closed
from tests.property.ledger.protocol_world import require

FINISHED_EVERY = 100
"""Of so many states one is closed by a recovery without faults, beside all that are at rest."""

JUMPS = 4000
"""How often, about, a search goes on from the oldest state that waits: at most each fiftieth."""

_BROKEN = (AssertionError, LookupError, AttributeError, TypeError, ValueError)
"""What a broken rule raises, or a machine that stumbles."""

Trace = tuple["Trace", Action] | None
"""The actions that led to a state, last first."""


# -- keys ------------------------------------------------------------------------------------------


def _renaming_of(state: ExploredState, known: dict[tuple[int, ...], Renaming]) -> Renaming:
    """One of the permutations that put the slots in the order of what is known of each."""
    if len(known) == 1:
        return next(iter(known.values()))
    slots = state.writer.slots
    acked = [batch.acked for batch in state.writer.window.retained.values()]
    seen = []
    for slot, stream in enumerate(state.streams):
        calls = sorted(
            (call.client, call.kind, call.round) for call in state.calls if call.slot == slot
        )
        seen.append(
            (
                state.bookies[f"b{slot}"],
                stream[2:],
                slots.connected >> slot & 1,
                slots.dead >> slot & 1,
                tuple([mask >> slot & 1 for mask in acked]),
                tuple(calls),
                slot,
            )
        )
    seen.sort(key=repr)
    to = [0] * len(seen)
    for place, one in enumerate(seen):
        to[one[-1]] = place
    return known[tuple(to)]


def _stream_key(stream: Stream, by: Renaming) -> Key:
    return by.to[stream.slot], by.name(stream.bookie), stream[2:]


def key_of(state: ExploredState) -> Key:
    """Equal for states with equal futures; most states that differ by slots' names share one."""
    scope = state.scope
    known = renamings(scope.sizes[0], is_symmetric=scope.is_symmetric)
    return key_under(state, _renaming_of(state, known))


def orbit_of(state: ExploredState) -> frozenset[int]:
    """The hashes of the state under all permutations of slots."""
    known = renamings(state.scope.sizes[0], is_symmetric=True)
    return frozenset(hash(key_under(state, by)) for by in known.values())


def key_under(state: ExploredState, by: Renaming) -> Key:
    """What the state's future depends on, with its slots renamed."""
    name, size = by.name, state.scope.sizes[0]
    if by.to not in state.writer_keys:
        state.writer_keys[by.to] = key_of_writer(state.writer, by)
    bookies = list(state.bookies.values())
    recoverers = {client: one.key(by) for client, one in state.recoverers.items()}
    # Recoverers are alike; which of them is the first does not matter.
    numbers = {
        client: n for n, client in enumerate(sorted(recoverers, key=_by_hash(recoverers)), 1)
    }
    numbers[WRITER] = WRITER
    calls = [
        (numbers[call.client], *call[1:3], by.to[call.slot], name(call.bookie), *call[5:])
        for call in state.calls
    ]
    return (
        state.writer_keys[by.to],
        by.in_order(bookies[:size]),
        tuple(bookies[size:]),
        by.in_order([_stream_key(stream, by) for stream in state.streams]),
        tuple(sorted(_stream_key(stream, by) for stream in state.left)),
        tuple(sorted(calls)),
        tuple(sorted([Zombie(z[0], name(z[1]), *z[2:]) for z in state.zombies])),
        tuple(sorted([_timer_key(numbers[client], *timer, by) for client, timer in state.timers])),
        tuple(sorted([(numbers[c], by.mask(one.slots)) for c, one in state.choices.items()])),
        tuple(sorted([(numbers[client], hash(key)) for client, key in recoverers.items()])),
        tuple(
            sorted(
                [_operation_key(state, c, numbers[c], by) for c in state.operations], key=_number
            )
        ),
        frozenset([_write_key(write, by) for write in state.late]),
        by.metadata(state.store.metadata),
        (state.store.version, state.started, state.acknowledged, state.kept),
        tuple(sorted(map(name, state.told))),
        tuple(sorted(state.used)),
        tuple(state.budget.values()),
        state.repair_key() if state.scope.workers else (),
    )


def _by_hash(keys: dict[int, Key]) -> Callable[[int], int]:
    return lambda client: hash(keys[client])


def _number(key: Key) -> int:
    number = key[0]
    assert isinstance(number, int)
    return number


def _write_key(write: Write, by: Renaming) -> Key:
    newcomers = tuple([(by.name(name), incarnation) for name, incarnation in write.newcomers])
    return by.metadata(write.metadata), write.version, newcomers


_OF_SLOTS = frozenset({"replace", "retry", "resend", "paced", "patience"})
"""The writer's timers that have a slot's number."""


def _timer_key(client: int, kind: str, number: int, by: Renaming) -> tuple[int, str, int]:
    is_slot = client == WRITER and kind in _OF_SLOTS
    return client, kind, by.to[number] if is_slot else number


def _operation_key(state: ExploredState, client: int, number: int, by: Renaming) -> Key:
    write, answer = state.operations[client]
    said = getattr(answer, "metadata", None)
    return (
        number,
        _write_key(write, by) if write else None,
        type(answer).__name__,
        getattr(answer, "version", None),
        by.metadata(said) if said else None,
    )


# -- the end of a life -----------------------------------------------------------------------------


def finish(state: ExploredState) -> None:
    """Faults end. The writer acknowledges what is pending; one more recovery closes (L1)."""
    last = state.copy()
    last.late, last.zombies = [], []
    last.end_workers()
    for client in list(last.recoverers):
        last.budget["crash"] += 1
        last = last.after(("crash", client))
    if not last.started:
        last = _settled(last)
    last.scope = replace(state.scope, recoverers=state.started + 1)
    last.late, last.zombies = [], []
    last = last.after(("recover",))
    client = last.started
    for _ in range(500):
        action = next((a for a in last.actions() if _is_of(a, client)), None)
        if action is None:
            break
        last = last.after(action)
    metadata = last.store.metadata
    require(metadata.state is LedgerState.CLOSED, "L1: a recovery without faults closes")
    require(last.acknowledged <= metadata.last_entry_id, "I1: closed before what is acknowledged")
    check_closed(last.quorum, last.bookies, metadata)
    if state.scope.workers:
        _repaired(last)


def _repaired(state: ExploredState) -> None:
    """A survey and a repair without faults give every member of a closed ledger its copies."""
    last = state.copy()
    require(last.store.metadata.state is LedgerState.CLOSED, "the ledger is closed")
    last.end_workers()
    last.budget["cut"] = last.budget["expire"] = 0
    members = last.settled_names()
    spare = [name for name in last.bookies if name not in members and name not in last.lost]
    if len(spare) < len(last.lost.intersection(members)):
        last.lost = frozenset()
    for number, kind in enumerate(("audit", "repair")):
        last.workers[number] = Worker(kind, "calm")
        if not last.may_begin(last.workers[number]):
            continue
        last = last.after(("begin", number))
        for _ in range(300):
            if last.workers[number].node == ENDED:
                break
            last = last.after(("work", number))
    for name in last.settled_names():
        require(not last.is_bad(name), f"R5: after a repair without faults {name} lacks copies")
    require(MARK not in last.records, "R5: a mark stays after a repair without faults")


def _settled(state: ExploredState) -> ExploredState:
    """The writer has come to rest without faults. Timers fire when all else is done."""
    state.budget["timer"] = 100
    fired: Counter[Action] = Counter()
    for _ in range(500):
        ranked = [(_rank(a), fired[a], _wait(a), n, a) for n, a in enumerate(state.actions())]
        if not ranked or min(ranked)[0] >= len(_IN_CALM):
            break
        action = min(ranked)[-1]
        fired[action] += action[0] == "timer"
        state = state.after(action)
    writer = state.writer
    require(
        writer.error is not None or not writer.window.pending,
        "L1: without faults everything is acknowledged",
    )
    return state


_IN_CALM = ("connect", "serve", "hear", "store", "answer", "choose", "timer")
_SHORTEST_FIRST = (
    *("reread", "resend", "recheck", "retry", "spare", "replace", "add", "paced", "patience"),
)


def _rank(action: Action) -> int:
    kind = str(action[0])
    return _IN_CALM.index(kind) if kind in _IN_CALM else len(_IN_CALM)


def _wait(action: Action) -> int:
    match action:
        case ("timer", 0, (str() as kind, _)):
            return _SHORTEST_FIRST.index(kind)
        case _:
            return 0


def _is_of(action: Action, client: int) -> bool:
    match action:
        case ("call", call):
            return getattr(call, "client", None) == client
        case (("store" | "answer" | "timer" | "choose"), number, *_):
            return number == client
        case _:
            return False


_FAULTS = {
    "break",
    "drop",
    "silence",
    "wipe",
    "crash",
    "copy",
    "zombie",
    "late",
    "recover",
    "close",
    "begin",
    "cut",
    "doubt",
    "late_repair",
    "lose",
    "rejoin",
    "restore",
}


# -- the search ------------------------------------------------------------------------------------


@dataclass
class Explored:
    """What a search has seen."""

    states: int = 0
    transitions: int = 0
    finished: int = 0
    is_complete: bool = False
    seconds: float = 0.0
    notes: Counter[str] = field(default_factory=Counter)


class FoundError(AssertionError):
    """A rule was broken; the message tells the way there."""

    def __init__(self, rule: str, trace: list[Action], transitions: int) -> None:
        steps = "\n".join(f"  {' '.join(map(str, action))}" for action in trace)
        super().__init__(f"{rule}, after {transitions} transitions, by:\n{steps}")
        self.rule = rule
        self.trace = trace
        self.transitions = transitions


def _actions_of(trace: Trace) -> list[Action]:
    actions: list[Action] = []
    while trace is not None:
        trace, action = trace
        actions.append(action)
    return actions[::-1]


def explore(
    scope: Scope,
    transitions_max: int,
    *,
    breadth: bool = False,
    visit: Callable[[ExploredState], None] = lambda _state: None,
) -> Explored:
    """Search until all is seen or the transitions are spent; raises `FoundError`.

    Args:
        scope: what may happen.
        transitions_max: the search may take a few more, to end with a state.
        breadth: find a shortest trace, with much more memory.
        visit: is called with every state.
    """
    rng = random.Random(1)
    found = Explored()
    began = time.perf_counter()
    first = ExploredState(scope).begun()
    seen = {hash(key_of(first))}
    waiting: deque[tuple[ExploredState, Trace]] = deque([(first, None)])
    while waiting and found.transitions < transitions_max:
        jumps = rng.random() < JUMPS / max(transitions_max, 50 * JUMPS)
        state, trace = waiting.popleft() if breadth or jumps else waiting.pop()
        visit(state)
        actions = list(state.actions())
        rng.shuffle(actions)
        action: Action = ("finish",)
        try:
            is_at_rest = all(a[0] in _FAULTS for a in actions)
            is_calm = is_at_rest or len(seen) % FINISHED_EVERY == 0
            if state.kept and is_calm and not state.went_back:
                found.finished += 1
                finish(state)
            for action in actions:
                found.transitions += 1
                after = state.after(action)
                found.notes.update(after.notes)
                key = hash(key_of(after))
                if key not in seen:
                    seen.add(key)
                    waiting.append((after, (trace, action)))
        except _BROKEN as error:
            trace = (trace, action)
            rule = str(error) or type(error).__name__
            raise FoundError(rule, _actions_of(trace), found.transitions) from error
    found.states, found.is_complete = len(seen), not waiting
    found.seconds = time.perf_counter() - began
    return found


def searched(scope: Scope, transitions_max: int) -> str:
    """Search a scope; returns the figures, and fails if something that it shows never came up."""
    try:
        found = explore(scope, transitions_max)
    except FoundError:
        explore(scope, transitions_max, breadth=True)  # perhaps it fails by a shorter way
        raise
    missing = [note for note in scope.shows if not found.notes[note]]
    assert not missing, f"never came up: {missing}"
    ending = "complete" if found.is_complete else "cut"
    notes = ", ".join(f"{note} {times}" for note, times in sorted(found.notes.items()))
    return (
        f"{found.states} states, {found.transitions} transitions, {ending}, {found.finished} "
        f"closed by another recovery, {found.seconds:.1f} s; {notes}"
    )
