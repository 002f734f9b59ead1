"""Is a history one that a correct metadata store can have produced?

Each rule is an offence that it looks for; together they are the rules by which the recipes and the
ledger protocol rely on a store. `check` returns one sentence per offence, none for a good history.

====  ==============================================================================================
rule  what must hold
====  ==============================================================================================
M1    successful writes have revisions of their own; a replaced or deleted version was the newest
M2    a write that returned before another was called has the smaller revision; a current read shows
      no state that was over when it was called, and no read shows one that was not begun
M3    a revision has one value, everywhere and for ever: that of the write that made it
M4    a conflict is justified by another version at some instant of the call; a write that did
      nothing is seen by nobody
M5    what belonged to a session is gone when its end is known
M6    what belongs to a session stays while it lives and nobody deletes it
M7    tokens of a lock grow; accepted effects come in the order of tokens. That holders overlap in
      time is no offence, no store can prevent it: `overlap_seconds` measures it
M8    a watch says everything once, in order, commits whole, and its mirror is what there is
M9    a client's reads do not go back
M10   no number of a counter is given twice, and later calls get greater ones
====  ==============================================================================================

Equivalence of backends (M11) is shown by running the same operations on all of them, and what a
backend's durability is (M12) by killing its processes; neither shows in a history.

Where an outcome is unknown every possibility is allowed, so nothing is ever searched for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tests.histories.history import (
    FOREVER,
    Acquisition,
    Drawn,
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

E = TypeVar("E")


def check(history: History) -> list[str]:
    """One sentence per offence, with the rule that it breaks."""
    writes = _of(history, Write)
    keys = {write.key for write in writes} | {read.key for read in _of(history, Read)}
    offences = list(_check_order(writes))
    for key in sorted(keys):
        offences += _Register(key, history).offences()
    offences += _check_sessions_reads(_of(history, Read), writes)
    offences += _check_locks(_of(history, Acquisition), _of(history, Effect))
    offences += _check_numbers(_of(history, Drawn))
    for watched in _of(history, Watched):
        offences += _check_watch(watched, writes)
    return offences


def _of(history: History, kind: type[E]) -> list[E]:
    return [entry for entry in history if isinstance(entry, kind)]


def _happened(writes: Iterable[Write]) -> Iterator[Write]:
    return (write for write in writes if write.outcome is Outcome.OK)


def _inversions(spans: Iterable[tuple[float, float, int]]) -> Iterator[tuple[int, int]]:
    """Pairs of numbers where what returned before the other was called has the greater one.

    `spans` are (called, returned, number); one pair for each late span suffices.
    """
    ordered = list(spans)
    by_return = sorted(ordered, key=lambda span: span[1])
    greatest, index = -1, 0
    for called, _, number in sorted(ordered):
        while index < len(by_return) and by_return[index][1] < called:
            greatest = max(greatest, by_return[index][2])
            index += 1
        if greatest >= number:
            yield greatest, number


def _check_order(writes: list[Write]) -> Iterator[str]:
    made = [write for write in _happened(writes) if write.revision >= 0]
    for revision, count in Counter(write.revision for write in made).items():
        if count > 1:
            yield f"M1: {count} writes have revision {revision}"
    for before, after in _inversions((w.called, w.returned, w.revision) for w in made):
        if before > after:
            yield f"M2: revision {before} returned before the write of revision {after} was called"


@dataclass(frozen=True, slots=True)
class _State:
    """One value of a record, and the write that made it if that was answered."""

    revision: int
    version: int
    value: str
    write: Write


@dataclass(frozen=True, slots=True)
class _End:
    """What may have ended a state: a write, or the end of a session."""

    called: float
    returned: float
    certain: bool


class _Register:
    """The history of one key."""

    def __init__(self, key: str, history: History) -> None:
        self.key = key
        self.writes = [write for write in _of(history, Write) if write.key == key]
        self.reads = [read for read in _of(history, Read) if read.key == key]
        self.session_ends = _of(history, SessionEnd)
        self.by_value = {w.value: w for w in self.writes if w.verb is not Verb.DELETE}
        self.states: dict[int, _State] = {}
        self.seen_values = {read.value for read in self.reads}
        self.deletions = [w for w in self.writes if w.verb is Verb.DELETE]

    def offences(self) -> Iterator[str]:
        yield from self._collect()
        chain = [self.states[revision] for revision in sorted(self.states)]
        yield from self._check_chain(chain)
        for read in self.reads:
            yield from self._check_read(read, chain)
        for write in self.writes:
            if write.outcome is Outcome.CONFLICT:
                yield from self._check_conflict(write, chain)

    # ---- states

    def _collect(self) -> Iterator[str]:
        """Every state that a write made or a read saw."""
        for write in _happened(self.writes):
            if write.verb is not Verb.DELETE:
                state = _State(write.revision, write.version, write.value, write)
                self.states[write.revision] = state
        for read in self.reads:
            if read.value is None:
                continue
            source = self.by_value.get(read.value)
            if source is None:
                yield f"M3: {self.key} had the value {read.value!r}, which nobody wrote"
                continue
            if source.outcome in (Outcome.CONFLICT, Outcome.REFUSED):
                yield f"M4: {read.value!r} of {self.key} was seen, and its write did nothing"
                continue
            if read.returned < source.called:
                yield f"M2: {read.value!r} of {self.key} was seen before it was written"
            seen = _State(read.revision, read.version, read.value, source)
            known = self.states.setdefault(read.revision, seen)
            if (known.value, known.version) != (read.value, read.version):
                yield (
                    f"M3: revision {read.revision} of {self.key} is {known.value!r} with version"
                    f" {known.version}, and {read.value!r} with version {read.version}"
                )
            if source.outcome is Outcome.OK and source.revision != read.revision:
                yield (
                    f"M3: {read.value!r} of {self.key} was written at revision {source.revision}"
                    f" and seen at {read.revision}"
                )

    def _check_chain(self, chain: list[_State]) -> Iterator[str]:
        consumed: Counter[int] = Counter()
        for index, state in enumerate(chain):
            before = chain[index - 1] if index else None
            write = state.write
            if write.outcome is not Outcome.OK:
                continue
            if write.verb is Verb.CREATE:
                if before is not None and not self._may_end(before, write.returned):
                    yield f"M1: {self.key} was created at {state.revision} over {before.revision}"
            elif before is None or (
                write.expected is not None and before.version != write.expected
            ):
                yield (
                    f"M1: revision {state.revision} of {self.key} replaced version"
                    f" {write.expected}, which was not the newest"
                )
            elif write.expected is not None:
                consumed[before.revision] += 1
        for deletion in _happened(self.deletions):
            victims = [
                state
                for state in chain
                if deletion.expected in (None, state.version)
                and state.write.called <= deletion.returned
            ]
            if not victims:
                yield f"M1: a deletion of {self.key} had version {deletion.expected}, unheard of"
            elif len(victims) == 1 and deletion.expected is not None:
                consumed[victims[0].revision] += 1
        for revision, count in consumed.items():
            if count > 1:
                yield f"M1: revision {revision} of {self.key} was replaced {count} times"

    def _deletions_of(self, state: _State) -> Iterator[_End]:
        """Everything that may have deleted the state."""
        for deletion in self.deletions:
            if deletion.outcome not in (Outcome.OK, Outcome.UNKNOWN):
                continue
            if deletion.expected in (None, state.version):
                # Versions may begin anew with a record: then it may be another one's.
                same = [s for s in self.states.values() if s.version == state.version]
                certain = (
                    deletion.outcome is Outcome.OK
                    and deletion.expected is not None
                    and len(same) == 1
                )
                yield _End(deletion.called, deletion.returned, certain)
        owner = self._owner(state)
        for end in self.session_ends:
            if owner is None or owner == (end.client, end.session):
                yield _End(end.called, end.returned, certain=owner is not None)

    def _owner(self, state: _State) -> tuple[str, int] | None:
        """Client and session of whoever created the record; session 0 if it is nobody's.

        None if the creation was neither answered nor seen, only what replaced it.
        """
        creations = [
            one
            for one in self.states.values()
            if one.revision <= state.revision and one.write.verb is Verb.CREATE
        ]
        if not creations:
            return None
        write = max(creations, key=lambda one: one.revision).write
        doubtful = any(
            other.verb is Verb.CREATE
            and other.outcome is Outcome.UNKNOWN
            and other.value not in self.seen_values
            and other.called <= state.write.returned
            for other in self.writes
        )
        return None if doubtful else (write.client, write.session or -1)

    def _ends_of(self, state: _State, chain: list[_State]) -> Iterator[_End]:
        yield from self._deletions_of(state)
        for write in self.writes:
            unknown = write.verb is Verb.REPLACE and write.outcome is Outcome.UNKNOWN
            if unknown and write.expected in (None, state.version):
                yield _End(write.called, FOREVER, certain=False)
        index = chain.index(state)
        if index + 1 < len(chain):
            later = chain[index + 1].write
            yield _End(later.called, later.returned, certain=True)

    def _may_end(self, state: _State, by: float) -> bool:
        """Whether the record may have been deleted by then, after it had this state."""
        return any(
            end.called <= by and end.returned >= state.write.called
            for end in self._deletions_of(state)
        )

    # ---- reads

    def _check_read(self, read: Read, chain: list[_State]) -> Iterator[str]:
        if read.value is None:
            if read.is_current and self._existed_throughout(read.called, read.returned, chain):
                yield f"M6: {self.key} was absent at {read.called}, and nobody deleted it"
            return
        state = self.states.get(read.revision)
        if not read.is_current or state is None:
            return
        for end in self._ends_of(state, chain):
            if end.certain and end.returned < read.called:
                rule = "M5" if self._is_by_session(state, end) else "M2"
                yield (
                    f"{rule}: revision {read.revision} of {self.key} was over at"
                    f" {end.returned}, and seen at {read.called}"
                )
                return

    def _is_by_session(self, state: _State, end: _End) -> bool:
        return any(
            self._owner(state) == (e.client, e.session) and e.returned == end.returned
            for e in self.session_ends
        )

    def _existed_throughout(self, start: float, stop: float, chain: list[_State]) -> bool:
        """Whether some record certainly stood from `start` to `stop`: created, never deleted."""
        for state in chain:
            if state.write.outcome is not Outcome.OK or state.write.returned >= start:
                continue
            run = self._run_from(state, chain)
            ends = [end for one in run for end in self._deletions_of(one)]
            if not any(end.called <= stop for end in ends if end.returned >= state.write.called):
                return True
        return False

    def _run_from(self, state: _State, chain: list[_State]) -> list[_State]:
        """The state and those that replaced it, up to a new creation."""
        run = [state]
        for later in chain[chain.index(state) + 1 :]:
            if later.write.verb is Verb.CREATE:
                break
            run.append(later)
        for write in self.writes:
            # A replacement that was neither answered nor seen may have led to any other.
            unknown = write.verb is Verb.REPLACE and write.outcome is Outcome.UNKNOWN
            if unknown and write.value not in self.seen_values:
                run.append(_State(-1, -2, write.value, write))
        return run

    # ---- conflicts

    def _check_conflict(self, write: Write, chain: list[_State]) -> Iterator[str]:
        start, stop = write.called, write.returned
        if write.verb is Verb.CREATE:
            if not self._may_have_existed(start, stop):
                yield f"M4: {self.key} could not be created at {start}, and there was none"
            return
        for state in chain:
            if write.expected is not None and state.version != write.expected:
                continue
            if state.write.outcome is not Outcome.OK or state.write.returned >= start:
                continue
            if not any(end.called <= stop for end in self._ends_of(state, chain)):
                yield (
                    f"M4: version {write.expected} of {self.key} was refused at {start}, and it"
                    " was the newest all the time"
                )

    def _may_have_existed(self, start: float, stop: float) -> bool:
        """Whether there may have been a record at some instant from `start` to `stop`."""
        for write in self.writes:
            made = write.outcome in (Outcome.OK, Outcome.UNKNOWN)
            if write.verb is not Verb.CREATE or not made or write.called > stop:
                continue
            state = next((s for s in self.states.values() if s.write is write), None)
            if state is None:
                return True
            chain = [self.states[revision] for revision in sorted(self.states)]
            run = self._run_from(state, chain)
            ends = [end for one in run for end in self._deletions_of(one)]
            if not any(end.certain and end.returned < start for end in ends):
                return True
        return False


def _check_sessions_reads(reads: list[Read], writes: list[Write]) -> Iterator[str]:
    """M9: per client and key, what was read or written is not older than what was before."""
    seen: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    for read in reads:
        if read.value is not None:
            seen[read.client, read.key].append((read.called, read.returned, read.revision))
    for write in _happened(writes):
        if write.revision >= 0:
            seen[write.client, write.key].append((write.called, write.returned, write.revision))
    for (client, key), spans in sorted(seen.items()):
        for before, after in _inversions(spans):
            if before > after:
                yield f"M9: {client} saw revision {after} of {key} after revision {before}"


def _check_locks(acquisitions: list[Acquisition], effects: list[Effect]) -> Iterator[str]:
    locks = {a.lock for a in acquisitions} | {e.lock for e in effects}
    for lock in sorted(locks):
        held = [a for a in acquisitions if a.lock == lock]
        for token, count in Counter(a.token for a in held).items():
            if count > 1:
                yield f"M7: the token {token} of {lock} was given {count} times"
        for before, after in _inversions((a.called, a.returned, a.token) for a in held):
            if before > after:
                yield f"M7: {lock} gave the token {after} after {before}"
        owners = {(a.client, a.token): a for a in held}
        accepted = sorted(
            (e for e in effects if e.lock == lock and e.revision >= 0), key=lambda e: e.revision
        )
        greatest = -1
        for effect in accepted:
            if effect.token < greatest:
                yield f"M7: an effect under {lock} with token {effect.token} came after {greatest}"
            greatest = max(greatest, effect.token)
            if (effect.client, effect.token) not in owners:
                yield f"M7: {effect.client} had no token {effect.token} of {lock}"


def overlap_seconds(history: History) -> float:
    """How long two holders of one lock believed in it at once; no offence, but worth a look."""
    total = 0.0
    by_lock: dict[str, list[Acquisition]] = defaultdict(list)
    for acquisition in _of(history, Acquisition):
        by_lock[acquisition.lock].append(acquisition)
    for held in by_lock.values():
        until = -FOREVER
        for acquisition in sorted(held, key=lambda a: a.returned):
            if acquisition.ended is not FOREVER:
                total += max(0.0, min(until, acquisition.ended) - acquisition.returned)
                until = max(until, acquisition.ended)
    return total


def _check_numbers(drawn: list[Drawn]) -> Iterator[str]:
    for counter in sorted({d.counter for d in drawn}):
        mine = [d for d in drawn if d.counter == counter]
        for number, count in Counter(d.number for d in mine).items():
            if count > 1:
                yield f"M10: {counter} gave {number} {count} times"
        for before, after in _inversions((d.called, d.returned, d.number) for d in mine):
            if before > after:
                yield f"M10: {counter} gave {after} after {before}"


def _check_watch(watched: Watched, writes: list[Write]) -> Iterator[str]:
    name = f"the watch of {watched.client} on {watched.prefix}"
    covered = [w for w in writes if w.key.startswith(watched.prefix)]
    yield from _check_notices(name, watched, covered)
    if watched.mirror != watched.final:
        different = {
            key
            for key in watched.mirror.keys() | watched.final.keys()
            if watched.mirror.get(key) != watched.final.get(key)
        }
        yield f"M8: {name} ended with another view of {sorted(different)[:5]}"
    notices = [notice for notice in watched.notices if isinstance(notice, Notice)]
    told = {(notice.key, notice.revision) for notice in notices}
    excused = _gaps(watched)
    for write in _happened(covered):
        if write.verb is Verb.DELETE or (write.key, write.revision) in told:
            continue
        if write.called <= watched.since or write.returned >= watched.until:
            continue
        if not any(first < write.revision < last for first, last in excused):
            yield f"M8: {name} missed revision {write.revision} of {write.key}"


def _check_notices(name: str, watched: Watched, covered: list[Write]) -> Iterator[str]:
    made = {(w.key, w.revision): w for w in _happened(covered) if w.verb is not Verb.DELETE}
    doubtful = {w.key for w in covered if w.outcome is Outcome.UNKNOWN}
    exists: dict[str, bool] = {}
    told: set[tuple[str, int]] = set()
    newest, batches = -1, {-1: -1}
    for notice in watched.notices:
        if isinstance(notice, Gap):
            exists.clear()
            continue
        key, revision = notice.key, notice.revision
        if revision < newest:
            yield f"M8: {name} told revision {revision} after {newest}"
        if batches.setdefault(revision, notice.batch) != notice.batch:
            yield f"M8: {name} told revision {revision} in pieces"
        if (key, revision) in told:
            yield f"M8: {name} told revision {revision} of {key} twice"
        told.add((key, revision))
        newest = max(newest, revision)
        if notice.kind is not Seen.DELETED and (key, revision) not in made and key not in doubtful:
            yield f"M8: {name} told revision {revision} of {key}, which nobody wrote"
        if exists.get(key) is (notice.kind is Seen.CREATED):
            yield f"M8: {name} told that {key} was {notice.kind.value} at {revision}, out of turn"
        exists[key] = notice.kind is not Seen.DELETED


def _gaps(watched: Watched) -> list[tuple[float, float]]:
    """Between which revisions the watch admitted to have missed something."""
    gaps: list[tuple[float, float]] = []
    last: float = -1
    is_open = False
    for notice in watched.notices:
        if isinstance(notice, Gap):
            is_open = True
            continue
        if is_open:
            gaps.append((last, notice.revision))
            is_open = False
        last = notice.revision
    if is_open:
        gaps.append((last, FOREVER))
    return gaps
