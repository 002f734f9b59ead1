"""The repair of the explorer: auditors, replicators, reclaimers and rebalances run product code.

A worker is a process at a node of its `Work`. One step of it is a request to the store or to a
bookie and its answer. An answer may be lost, and then the request may still take effect later, or
never. A session that is lost takes its locks with it; the process knows that its session is in
doubt before that.

The explorer is exact about who has to be marked. A bookie whose copies are in doubt gives a
*reason*: a survey that began after it must have marked the ledger, unless the bookie has its copies
or is not named any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Self

from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, CookieState, encode_cookie
from bookie.cluster.layout import FLAT
from bookie.errors import BookieError, BookieUnreachableError, MetadataUnavailableError
from bookie.ids import Status
from bookie.ledger.copies.marks import _LOCKS, _MARKS
from bookie.ledger.copies.replica_plan import settled_fragments
from bookie.ledger.metadata import Fragment, LedgerMetadata, decode, encode
from bookie.ledger.underreplicated import decode_mark
from bookie.metadata.evaluate import Deletion, Stored, Write, evaluate
from bookie.metadata.model import Operation
from tests.explorer.explored_base import Action, Surroundings
from tests.explorer.explored_machines import LEDGER_ID, Body, Key
from tests.explorer.explored_world import Bookie, Scope, Store, add, check_durable
from tests.explorer.repair_doors import begin_of
from tests.explorer.replayed import Answer, Question, Raised, View, Work
from tests.property.ledger.protocol_world import require

LEDGER, MARK, LOCK = FLAT.key(LEDGER_ID), _MARKS.key(LEDGER_ID), _LOCKS.key(LEDGER_ID)

BEGIN, ENDED = -2, -3
"""In the place of a node: a worker has not begun, or has ended. -1 and -2 have the same hash."""

_AT_ONCE = {"remove"}
"""What code does in the turn in which it decides it."""

Reason = tuple[str, int]
"""A bookie whose copies are in doubt, and the number of its reason."""


class Worker(NamedTuple):
    kind: str
    name: str
    node: int = BEGIN
    is_certain: bool = True
    """Of its session."""
    epoch: int = 0
    saw: frozenset[Reason] = frozenset()
    """The reasons when it began."""

    @property
    def session(self) -> bytes:
        return f"{self.kind} {self.name} {self.epoch}".encode()


class StoredValue(NamedTuple):
    value: bytes
    version: int
    owner: bytes


class _Tree:
    """The store's records before a transaction, for the product's rules of transactions."""

    def __init__(self, state: RepairSide) -> None:
        self._state = state

    def find(self, key: str) -> Stored | None:
        found = self._state.record(key)
        return None if found is None else Stored(found.version, found.owner)

    def has_children(self, key: str) -> bool:
        del key
        return False


@lru_cache(None)
def _cookie(bookie_id: str, incarnation: int) -> bytes:
    state = CookieState.READY
    return encode_cookie(Cookie(bookie_id, (), (), "", "", state, incarnation_of(incarnation)))


def incarnation_of(number: int) -> str:
    """The text of an incarnation."""
    return f"i{number}"


_metadata_of = lru_cache(None)(decode)
_marked_of = lru_cache(None)(decode_mark)


class RepairSide(Surroundings):
    """Workers, and the records of the store beside the ledger's."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.workers = {n: Worker(*about) for n, about in enumerate(scope.workers)}
        self.works: dict[tuple[str, str], Work] = {}
        """Shared by all states of a search."""
        self.records: dict[str, StoredValue] = {}
        self.writes: dict[str, int] = {}
        """By key: how often it was written."""
        self.late_repairs: list[tuple[bytes, tuple[Operation, ...]]] = []
        self.lost: frozenset[str] = frozenset()
        self.may_lose = frozenset(scope.loses)
        self.reasons = dict.fromkeys(self.bookies, 0)
        self.unseen: frozenset[Reason] = frozenset(self.reasons.items())
        """The last reason of each bookie that no survey which has ended has seen."""
        self.older: LedgerMetadata | None = None
        """The closed ledger before its first swap, as an older copy of the store has it."""
        self.went_back = False
        self.budget |= {"restore": scope.restores, "expire": scope.expiries, "cut": scope.cuts}

    def copy(self) -> Self:
        new = super().copy()
        new.workers, new.records = dict(self.workers), dict(self.records)
        new.writes, new.reasons = dict(self.writes), dict(self.reasons)
        new.late_repairs = list(self.late_repairs)
        return new

    def repair_key(self) -> Key:
        """What repair's future depends on; names of slots stay."""
        return (
            tuple(self.workers.items()),
            tuple(sorted(self.records.items())),
            tuple(sorted(self.writes.items())),
            frozenset(self.late_repairs),
            (tuple(sorted(self.lost)), tuple(sorted(self.may_lose))),
            (self.older is None, self.went_back),
            frozenset(self.unseen),
            tuple(self.reasons.values()),
        )

    # -- what may happen -----------------------------------------------------------------------

    def repair_actions(self) -> Iterator[Action]:
        """Every action of repair that is possible now."""
        left = self.budget
        for number, worker in self.workers.items():
            yield from self._actions_of(number, worker)
        for number in range(len(self.late_repairs)):
            yield "late_repair", number
        if left["restore"] and self.older is not None and self.older != self.store.metadata:
            yield ("restore",)
        for name in self.bookies:
            if name in self.lost and self.scope.rejoins:
                yield "rejoin", name
            elif name in self.may_lose and self._is_named(name):
                yield "lose", name

    def _actions_of(self, number: int, worker: Worker) -> Iterator[Action]:
        left = self.budget
        if not worker.is_certain:
            yield "expire", number
        elif left["expire"] and self._owns(worker):
            yield "doubt", number
        if worker.node == BEGIN and self.may_begin(worker):
            yield "begin", number
        if worker.node < 0:
            return
        question = self.question_of(worker)
        yield "work", number
        if left["cut"] and question.kind not in ("turn", "known end"):
            yield "cut", number
        if self._has_old_self(question):
            yield "old", number

    def may_begin(self, worker: Worker) -> bool:
        metadata = self.store.metadata
        match worker.kind:
            case "audit":
                return any(self.is_bad(name) for name in self.settled_names())
            case "repair":
                return MARK in self.records
            case "reclaim":
                has_copies = bool(self.bookies[worker.name].entries)
                return metadata.is_closed and has_copies and not self._is_named(worker.name)
            case _:
                former = worker.name.partition(">")[0]
                return metadata.is_closed and self._is_named(former)

    def question_of(self, worker: Worker) -> Question:
        question = self._work_of(worker).at(worker.node)
        assert isinstance(question, Question)
        return question

    def _work_of(self, worker: Worker) -> Work:
        about = worker.kind, worker.name
        if about not in self.works:
            self.works[about] = Work(begin_of(*about))
        return self.works[about]

    def _view_of(self, worker: Worker) -> View:
        registered = [
            (name, incarnation_of(bookie.incarnation))
            for name, bookie in self.bookies.items()
            if name not in self.lost
        ]
        return View(tuple(registered), worker.is_certain, worker.epoch)

    def _owns(self, worker: Worker) -> bool:
        return any(record.owner == worker.session for record in self.records.values())

    def _has_old_self(self, question: Question) -> bool:
        """Whether a connection may still lead to it; a survey connects to who is registered."""
        if not self.scope.old_selves or question.kind not in ("add", "list"):
            return False
        bookie = self.bookies[question.about[0]]
        if question.kind == "add":
            is_meant = question.about[1] == incarnation_of(bookie.incarnation - 1)
            return bookie.old is not None and is_meant
        return bookie.old is not None

    # -- what happens --------------------------------------------------------------------------

    def _do_begin(self, number: int) -> None:
        worker = self.workers[number]
        node = self._work_of(worker).begin(self._view_of(worker))
        saw = frozenset(self.reasons.items()) if worker.kind == "audit" else frozenset()
        self.workers[number] = worker._replace(node=node, saw=saw)
        self._go_on(number)

    def _do_work(self, number: int) -> None:
        self._answer(number, self._serve_repair(number))

    def _do_cut(self, number: int) -> None:
        """The answer is lost, and the request may be on its way."""
        self.budget["cut"] -= 1
        worker = self.workers[number]
        kind, about = self.question_of(worker)
        if kind in ("read", "list", "survey", "row", "add"):
            if kind == "add":
                self._leave_add(*about)
            self._answer(number, Raised(BookieUnreachableError))
            return
        if kind == "transact":
            self.late_repairs.append((worker.session, about))
        self._answer(number, Raised(MetadataUnavailableError))

    def _do_old(self, number: int) -> None:
        """A process of the bookie that lost its data answers, as if nothing had happened."""
        question = self.question_of(self.workers[number])
        name, *about = question.about
        bookie = self.bookies[name]
        assert bookie.old is not None
        if question.kind == "list":
            first, last = about
            ids = tuple(i for i in bookie.old if first <= i and (i <= last or last < 0))
            self._answer(number, ids)
            return
        taken = {entry_id for entry_id, _ in about[-1]}
        self.bookies[name] = bookie._replace(old=tuple(sorted({*bookie.old, *taken})))
        self.notes.append("add taken by an old self")
        self._answer(number, Status.OK)

    def _do_doubt(self, number: int) -> None:
        self.budget["expire"] -= 1
        self.workers[number] = self.workers[number]._replace(is_certain=False)

    def _do_expire(self, number: int) -> None:
        worker = self.workers[number]
        self._end_session(worker.session)
        self.workers[number] = worker._replace(is_certain=True, epoch=worker.epoch + 1)
        self.notes.append("lock lost")

    def _end_session(self, session: bytes) -> None:
        self.records = {k: one for k, one in self.records.items() if one.owner != session}
        # The server refuses requests of a session that has ended.
        self.late_repairs = [late for late in self.late_repairs if late[0] != session]

    def _do_late_repair(self, number: int) -> None:
        session, operations = self.late_repairs.pop(number)
        if not isinstance(self._transact(operations, session), Raised):
            self.notes.append("late transaction of repair done")

    def _do_lose(self, name: str) -> None:
        self.may_lose -= {name}
        self.lost |= {name}

    def _do_rejoin(self, name: str) -> None:
        self.lost -= {name}
        self.notes.append("lost bookie rejoined")

    def _do_restore(self) -> None:
        """An operator restores the store from a copy; versions go on."""
        self.budget["restore"] -= 1
        assert self.older is not None
        self.store = Store(self.older, self.store.version + 1)
        self.went_back = True

    def _answer(self, number: int, value: object) -> None:
        worker = self.workers[number]
        node = self._work_of(worker).after(worker.node, Answer(value, self._view_of(worker)))
        self.workers[number] = worker._replace(node=node)
        self._go_on(number)

    def _go_on(self, number: int) -> None:
        """Do what the code does at once, and notice its end."""
        worker = self.workers[number]
        found = self._work_of(worker).at(worker.node)
        if isinstance(found, Question):
            if found.kind in _AT_ONCE:
                self._answer(number, self._serve_repair(number))
            return
        self.notes.append(f"{worker.kind} {'ended' if found.error is None else 'failed'}")
        if worker.kind == "audit" and found.result == ():
            self.unseen -= worker.saw
        self.workers[number] = worker._replace(node=ENDED, saw=frozenset())

    def note_reasons(self, before: LedgerMetadata, action: Action) -> None:
        """An action other than repair's may put copies in doubt."""
        doubtful: Sequence[str] = ()
        if action[0] in ("wipe", "lose"):
            doubtful = [str(action[1])]
        elif self.store.metadata != before and action[0] not in ("work", "late_repair"):
            doubtful = list(self.bookies)  # more entries are settled now
        for name in doubtful:
            self.unseen -= {(name, self.reasons[name])}
            self.reasons[name] += 1
            self.unseen |= {(name, self.reasons[name])}

    def end_workers(self) -> None:
        """All processes of repair end, and their sessions with them."""
        for worker in self.workers.values():
            self._end_session(worker.session)
        self.workers, self.late_repairs = {}, []

    # -- the world that answers ----------------------------------------------------------------

    def record(self, key: str) -> StoredValue | None:
        """A record of the store; cookies follow from their bookies."""
        if key == LEDGER:
            return StoredValue(encode(self.store.metadata), self.store.version, b"")
        if key.startswith(keys.COOKIES + "/"):
            name = key.rpartition("/")[2]
            number = self.bookies[name].incarnation
            return StoredValue(_cookie(name, number), number + 1, b"")
        return self.records.get(key)

    def _serve_repair(self, number: int) -> Any:
        worker = self.workers[number]
        kind, about = self.question_of(worker)
        match kind:
            case "get":
                found = self.record(about[0])
                if found is None:
                    return None
                return found.value, found.version, found.owner == worker.session
            case "children":
                if about[0] == keys.LOST_BOOKIES:
                    return tuple(sorted(self.lost))
                return (LOCK.rpartition("/")[2],) if LOCK in self.records else ()
            case "transact":
                return self._transact(about, worker.session)
            case "turn":
                return None
            case _:
                return self._ask_bookie(kind, *about)

    def _transact(self, operations: tuple[Operation, ...], session: bytes) -> Any:
        try:
            effects = evaluate(operations, _Tree(self), session, 0)
        except BookieError as error:
            if operations[0].key == LEDGER:
                self.notes.append("swap refused")
            return Raised(type(error))
        versions: list[int | None] = []
        for effect in effects:
            versions.append(None)
            match effect:
                case Write(key, value, owner) if key == LEDGER:
                    self._swap(_metadata_of(LEDGER_ID, value))
                    versions[-1] = self.store.version
                    assert not owner
                case Write(key, value, owner):
                    versions[-1] = self.writes[key] = self.writes.get(key, 0) + 1
                    self.records[key] = StoredValue(value, self.writes[key], owner)
                    self.notes.append("mark made" if key == MARK else "lock taken")
                case Deletion(key):
                    del self.records[key]
                    self.notes.append("mark removed" if key == MARK else "lock given back")
                case None:
                    pass
        return tuple(versions)

    def _swap(self, after: LedgerMetadata) -> None:
        before = self.store.metadata
        self._check_swap(before, after)
        if self.older is None and before.is_closed:
            self.older = before
        self.store = Store(after, self.store.version + 1)
        self.notes.append("swap done" if after.is_closed else "swap in an open ledger")

    def _ask_bookie(self, kind: str, name: str, *about: Any) -> Any:
        bookie = self.bookies[name]
        match kind:
            case "read":
                return _read(bookie, *about)
            case "list" | "survey":
                first, last = about
                return tuple(i for i, _ in bookie.entries if first <= i and (i <= last or last < 0))
            case "row":
                return len(bookie.entries), bookie.limbo
            case "known end":
                return max([bookie.lac, *(i for i, _ in bookie.entries if i > about[0])])
            case "remove":
                self.notes.append("copies reclaimed")
                ids = {*bookie.reclaimed, *(entry_id for entry_id, _ in bookie.entries)}
                reclaimed = tuple(sorted(ids))
                self.bookies[name] = bookie._replace(entries=(), reclaimed=reclaimed)
                return len(bookie.entries)
            case _:
                return self._take_add(name, *about)

    def _take_add(self, name: str, incarnation: str, recovery: bool, bodies: Any) -> Status:
        number = int(incarnation[1:])
        bookie, status = add(
            self.bookies[name], bodies, number, self.acknowledged, recovery=recovery
        )
        if status is Status.OK:
            left = set(bookie.reclaimed).difference(entry_id for entry_id, _ in bodies)
            bookie = bookie._replace(reclaimed=tuple(sorted(left)))
            self.notes.append("entries copied")
        elif status is Status.WRONG_INCARNATION:
            self.notes.append("copy refused by another incarnation")
        self.bookies[name] = bookie
        return status

    def _leave_add(self, name: str, incarnation: str, recovery: bool, bodies: Any) -> None:
        kind = "re-add" if recovery else "add"
        self.leave_behind(kind, name, int(incarnation[1:]), bodies)

    # -- what must hold ------------------------------------------------------------------------

    def check(self) -> None:
        if not self.went_back:
            super().check()
        if not self.scope.workers:
            return
        wiped = sum(bookie.incarnation > 0 for bookie in self.bookies.values())
        least = self.quorum.ack_quorum_size - wiped
        for entry_id in range(self.acknowledged + 1):
            copies = sum(one.body(entry_id) is not None for one in self.bookies.values())
            require(copies >= least, f"R6: {copies} bookies of all store entry {entry_id}")
        if not self.went_back:
            self._check_names()

    def _check_names(self) -> None:
        metadata = self.store.metadata
        for session, operations in self.late_repairs:
            try:
                effects = evaluate(operations, _Tree(self), session, 0)
            except BookieError:
                continue
            for effect in effects:
                if isinstance(effect, Write) and effect.key == LEDGER:
                    self._check_swap(metadata, _metadata_of(LEDGER_ID, effect.value))
        for entry_id in range(self.acknowledged + 1):
            check_durable(entry_id, self.quorum, self.bookies, [metadata])
        unseen = {name for name, _ in self.unseen}
        mark = self.records.get(MARK)
        marked = set() if mark is None else set(_marked_of(LEDGER_ID, mark.value).replicas)
        for name in self.settled_names():
            gone = self._owed(metadata, name).intersection(self.bookies[name].reclaimed)
            require(not gone, f"R1: {name} is named, and removed its copies of {sorted(gone)}")
            if name not in unseen | marked:
                require(not self.is_bad(name), f"R2: {name} lacks copies, and no mark says so")

    def _check_swap(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """A swap changes names alone, and only those of bookies which have what they owe."""
        same = (before.state, before.last_entry_id, before.length, len(before.fragments))
        require(
            same == (after.state, after.last_entry_id, after.length, len(after.fragments)),
            "R3: a swap changes more than the bookies of fragments",
        )
        settled = {fragment.first_entry_id for fragment, _ in settled_fragments(before)}
        for old, new in zip(before.fragments, after.fragments, strict=True):
            names = new.bookies
            require(len(set(names)) == len(names), f"R3: one bookie in two slots: {names}")
            require(old.first_entry_id == new.first_entry_id, "R3: fragments begin elsewhere")
            if old != new:
                require(old.first_entry_id in settled, "R3: a swap in the writer's fragment")
            for name in set(names).difference(old.bookies):
                lacks = self._lacks(after, name, new)
                require(not lacks, f"R4: {name} is named, and lacks {sorted(lacks)}")

    def _owed(self, metadata: LedgerMetadata, name: str, only: Fragment | None = None) -> set[int]:
        """The entries of settled fragments, or of one of them, that a bookie has to store."""
        return {
            entry_id
            for fragment, last in settled_fragments(metadata)
            if only in (None, fragment)
            for entry_id in range(fragment.first_entry_id, last + 1)
            for slot in self.quorum.write_set(entry_id)
            if fragment.bookies[slot] == name
        }

    def _lacks(self, metadata: LedgerMetadata, name: str, only: Fragment | None = None) -> set[int]:
        bookie = self.bookies[name]
        return {one for one in self._owed(metadata, name, only) if bookie.body(one) is None}

    def is_bad(self, name: str) -> bool:
        return name in self.lost or bool(self._lacks(self.store.metadata, name))

    def settled_names(self) -> list[str]:
        found = settled_fragments(self.store.metadata)
        return sorted(
            {name for one, last in found if last >= one.first_entry_id for name in one.bookies}
        )

    def _is_named(self, name: str) -> bool:
        return any(name in one.bookies for one in self.store.metadata.fragments)


def _read(bookie: Bookie, first: int, last: int, modulus: int, residue: int, count: int) -> Any:
    """What a bookie answers to a read: no entry after the first wanted one that it lacks."""
    found: list[Body] = []
    wanted = [i for i in range(first, last + 1) if not modulus or (i - residue) % modulus < count]
    absent = Status.UNKNOWN_LEDGER_STATE if bookie.is_in_doubt else Status.NO_SUCH_ENTRY
    for entry_id in wanted:
        body = bookie.body(entry_id)
        if body is None:
            return Status.OK if found else absent, tuple(found), entry_id, absent
        found.append(body)
    return Status.OK, tuple(found), last + 1, Status.OK
