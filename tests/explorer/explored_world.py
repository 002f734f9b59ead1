"""What the explorer's states consist of: bookies, streams, calls, the store, and the rules.

Everything but the machines is made of tuples, so that a state is copied by copying lists. An entry
is a `Body`: its payload follows from its id.

**Lost** requests become zombies: they may still arrive at any later moment, or never. So one action
stands for a loss before the request took effect, and for one after it. It is the same with a
compare-and-set whose answer is lost. Breaking a stream loses all answers on their way in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bookie.entry.digest import DigestType
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.ledger.quorum import Quorum
from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.write.writer import LedgerWriter
from bookie.node.engine.ledger_state import LocalLedger
from tests.explorer.explored_machines import LEDGER_ID, PAYLOAD_BYTES, Body
from tests.property.ledger.protocol_world import require


@dataclass(frozen=True)
class Scope:
    """What may happen in a world, and how often."""

    sizes: tuple[int, int, int] = (3, 3, 2)
    spares: int = 0
    entries: int = 1
    recoverers: int = 1
    changes: int = 0
    """By the writer."""
    breaks: int = 0
    """Broken streams."""
    drops: int = 0
    """Answers to recoverers that do not come."""
    silences: int = 0
    """Answers of the metadata store that do not come."""
    timers: int = 0
    """Add timeouts, and bookies that are given up: early or late, as the search likes."""
    wipes: int = 0
    """Bookies that lose all data, fewer than an ack quorum; they are in limbo if they are named."""
    crashes: int = 0
    """Recoverers that vanish."""
    copies: int = 0
    """Adds that arrive twice."""
    limited: int = 0
    """Adds that a bookie refuses, because a rate is used up; it says when to come back."""
    short_reads: bool = False
    """Whether bookies give one entry at a time."""
    closes: bool = False
    """Whether the writer may close."""
    workers: tuple[tuple[str, str], ...] = ()
    """Processes of repair: what they do (`repair_doors.KINDS`), and their names. Slots do not
    change places then."""
    loses: tuple[str, ...] = ()
    """Bookies that may be lost, as the auditor says, each once. They still serve."""
    rejoins: bool = False
    """Whether lost bookies may come back, with all their data."""
    wipes_of: tuple[str, ...] = ()
    """Bookies that may be wiped, also empty ones; if none is named, all that store something."""
    restores: int = 0
    """How often the store goes back to the metadata before the first swap."""
    expiries: int = 0
    """Sessions of workers that end while they have a lock."""
    cuts: int = 0
    """Answers to workers that do not come."""
    old_selves: bool = False
    """Whether a process of a bookie that was wiped goes on to answer workers."""
    begins: str = ""
    """What has happened before: ``closed`` if the writer has written all entries and closed, and
    ``changed`` if it has written one, and replaced the last bookie, which was wiped."""
    writer: type[LedgerWriter] = LedgerWriter
    recovery: type[LedgerRecovery] = LedgerRecovery
    reduces: bool = True
    """Whether states that differ by the slots' names count as one."""
    shows: tuple[str, ...] = ()
    """What must come up in a search of this scope."""
    shows_in_a_soak: tuple[str, ...] = ()
    """What comes up besides, if the search is as long as in a soak."""
    transitions: int = 20_000
    """How many `make test` takes at most; a soak takes many times as many."""

    @property
    def quorum(self) -> Quorum:
        return Quorum(*self.sizes)

    @property
    def is_symmetric(self) -> bool:
        """Whether slots may change places: only if all entries have the same write set."""
        return self.reduces and not self.workers and self.sizes[0] == self.sizes[1]


class Bookie(NamedTuple):
    """One bookie; everything that it accepts is durable."""

    entries: tuple[Body, ...] = ()
    fenced: bool = False
    lac: int = NO_ENTRY
    incarnation: int = 0
    limbo: bool = False
    destroyed: tuple[int, ...] = ()
    """Ids of what it lost."""
    denied: tuple[int, ...] = ()
    """Ids denied on a fencing read (I12)."""
    reclaimed: tuple[int, ...] = ()
    """Ids of entries that it removed because nobody named it, and that did not come back."""
    old: tuple[int, ...] | None = None
    """Ids that the process before the last wipe believes to have."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether it does not deny what it lacks: the product decides."""
        return bool(LocalLedger.is_in_doubt.fget(self))  # type: ignore[attr-defined]

    def body(self, entry_id: int) -> Body | None:
        return next((body for body in self.entries if body[0] == entry_id), None)

    def had(self, entry_id: int) -> bool:
        """Whether it stored the entry at some time."""
        return entry_id in self.destroyed or self.body(entry_id) is not None

    def wiped(self, *, is_named: bool) -> Bookie:
        had = tuple(entry_id for entry_id, _ in self.entries)
        return Bookie(
            incarnation=self.incarnation + 1,
            limbo=self.limbo or is_named,
            destroyed=tuple(sorted({*self.destroyed, *had})),
            old=had,
        )


class Request(NamedTuple):
    """An add by the writer, or an explicit LAC (`body` is None)."""

    number: int
    epoch: int
    body: Body | None
    lac: int = NO_ENTRY


class Answer(NamedTuple):
    number: int
    epoch: int
    status: int


class Stream(NamedTuple):
    """From the writer to a bookie, in order."""

    slot: int
    bookie: str
    incarnation: int
    epoch: int
    is_open: bool
    requests: tuple[Request, ...] = ()
    answers: tuple[Answer, ...] = ()
    is_lost: bool = False
    """It found another incarnation than the one that was meant."""


class Call(NamedTuple):
    """A recoverer's request to a bookie."""

    client: int
    kind: str
    round: int
    slot: int
    bookie: str
    incarnation: int = 0
    bodies: tuple[Body, ...] = ()
    first: int = 0
    last: int = 0
    fence: bool = False


class Zombie(NamedTuple):
    """A request that nobody waits for, and that may still arrive."""

    kind: str
    bookie: str
    incarnation: int
    bodies: tuple[Body, ...] = ()
    lac: int = NO_ENTRY


class Write(NamedTuple):
    """A compare-and-set, on condition that these newcomers have these incarnations."""

    client: int
    metadata: LedgerMetadata
    version: int
    newcomers: tuple[tuple[str, int], ...] = ()


class Operation(NamedTuple):
    """What a client asked of the store; `write` is None for a read."""

    write: Write | None
    answer: object = None
    """What the store said, on its way back."""


class Store(NamedTuple):
    metadata: LedgerMetadata
    version: int = 0

    def holds(self, write: Write, bookies: dict[str, Bookie]) -> bool:
        """Whether the write would be done now."""
        return write.version == self.version and all(
            bookies[name].incarnation == incarnation for name, incarnation in write.newcomers
        )


_ALLOWED = {
    LedgerState.OPEN: (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED),
    LedgerState.IN_RECOVERY: (LedgerState.CLOSED,),
    LedgerState.CLOSED: (),
}


def written(store: Store, metadata: LedgerMetadata) -> Store:
    """The store after a compare-and-set that won (I10, I5)."""
    before, after = store.metadata.state, metadata.state
    require(after in _ALLOWED[before], f"I10: {before.name} -> {after.name}")
    firsts = [fragment.first_entry_id for fragment in metadata.fragments]
    require(firsts == sorted(set(firsts)) and firsts[0] == 0, f"I5: fragments begin at {firsts}")
    for fragment in metadata.fragments:
        names = fragment.bookies
        require(len(set(names)) == len(names), f"one bookie in two slots: {names}")
    if after is LedgerState.CLOSED:
        length = (metadata.last_entry_id + 1) * PAYLOAD_BYTES
        require(metadata.length == length, f"C7: length {metadata.length} is not {length}")
    return Store(metadata, store.version + 1)


def first_store(scope: Scope) -> Store:
    ensemble, write, ack = scope.sizes
    names = tuple(f"b{slot}" for slot in range(ensemble))
    fragments = (Fragment(0, names),)
    return Store(
        LedgerMetadata(
            LEDGER_ID, ensemble, write, ack, LedgerState.OPEN, fragments, DigestType.CRC32C
        )
    )


# -- what bookies do -------------------------------------------------------------------------------


def add(
    bookie: Bookie,
    bodies: tuple[Body, ...],
    incarnation: int,
    acknowledged: int,
    *,
    recovery: bool,
) -> tuple[Bookie, Status]:
    """Store entries, or refuse them all (I12, I14, I15)."""
    if incarnation != bookie.incarnation:
        return bookie, Status.WRONG_INCARNATION
    if bookie.fenced and not recovery:
        return bookie, Status.FENCED
    new = []
    for body in bodies:
        entry_id, lac = body
        known = bookie.body(entry_id)
        require(known is None or known == body, f"I14: two bodies for entry {entry_id}")
        require(lac <= acknowledged, f"I15: entry {entry_id} carries LAC {lac} too early")
        require(recovery or entry_id not in bookie.denied, f"I12: entry {entry_id} was denied")
        if known is None:
            new.append(body)
    if not new:
        return bookie, Status.OK
    return bookie._replace(entries=tuple(sorted((*bookie.entries, *new)))), Status.OK


def write_lac(bookie: Bookie, lac: int, acknowledged: int) -> tuple[Bookie, Status]:
    """Take an explicit LAC."""
    require(lac <= acknowledged, f"I15: explicit LAC {lac} beyond what was acknowledged")
    if bookie.fenced:
        return bookie, Status.FENCED
    return (bookie if lac <= bookie.lac else bookie._replace(lac=lac)), Status.OK


# -- what must hold of every state -----------------------------------------------------------------


def check_durable(
    entry_id: int,
    quorum: Quorum,
    bookies: dict[str, Bookie],
    possible: list[LedgerMetadata],
    told: frozenset[str] = frozenset(),
) -> None:
    """An acknowledged entry is on an ack quorum of the members in all these metadata (I3).

    Entries that a wiped bookie had count: the wipes are fewer than an ack quorum. They do not count
    at the moment of the acknowledgement, if the writer was `told` of the loss.
    """
    for metadata in possible:
        if metadata.state is LedgerState.CLOSED:
            require(
                entry_id <= metadata.last_entry_id,
                f"I1: closed at {metadata.last_entry_id}, entry {entry_id} was acknowledged",
            )
        names = metadata.fragment_of(entry_id).bookies
        holders = 0
        for slot in quorum.write_set(entry_id):
            bookie = bookies[names[slot]]
            is_here = bookie.body(entry_id) is not None
            holders += is_here or (entry_id in bookie.destroyed and names[slot] not in told)
        require(
            holders >= quorum.ack_quorum_size,
            f"I3: {holders} members of {names} hold entry {entry_id}, which was acknowledged",
        )


def check_closed(quorum: Quorum, bookies: dict[str, Bookie], metadata: LedgerMetadata) -> None:
    """Every entry of a closed ledger is on an ack quorum, and one copy at least is there."""
    for entry_id in range(metadata.last_entry_id + 1):
        names = metadata.fragment_of(entry_id).bookies
        members = [bookies[names[slot]] for slot in quorum.write_set(entry_id)]
        # A loss that the bookie itself does not suspect counts as unexpected.
        holders = [m for m in members if m.body(entry_id) or (m.limbo and m.had(entry_id))]
        here = [m.body(entry_id) for m in members if m.body(entry_id)]
        require(
            len(holders) >= quorum.ack_quorum_size and here,
            f"I3: {len(holders)} of {names} hold entry {entry_id} of the closed ledger",
        )
        require(len(set(here)) == 1, f"I14: bodies of entry {entry_id} differ")
