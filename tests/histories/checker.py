"""Is a history one that a correct metadata store can have produced?

Each rule is an offence that it looks for. The recipes and the ledger protocol rely on a store by
these rules. `check` returns one sentence per offence, none for a good history.

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
M6    a record stays until somebody deletes it or the session that it belongs to ends; whatever a
      watch says was deleted, somebody deleted
M7    tokens of a lock grow; accepted effects come in the order of tokens, and none is accepted
      that was begun when a greater token was known. That holders overlap in time is no offence, no
      store can prevent it: `overlap_seconds` measures it
M8    a watch says everything once, in order, commits whole, and its mirror is what there is
M9    a client's reads do not go back, also from one key to another: what it wrote, read or deleted
      is what it sees from then on, or something newer; what it saw absent does not come back
M10   no number of a counter is given twice, and later calls get greater ones
====  ==============================================================================================

Two properties do not show in a history. Equivalence of backends (M11) is shown by running the same
operations on all. Durability (M12) is shown by killing a backend's processes.

A listing at the end of a watch is a current read of every key, also of those that it lacks. Reads
that may be old are held to M9 only. A backend may show old states for ever to clients that only
read, without a sync.

A replacement as ephemeral takes the record over. From then on it belongs to the replacing session,
and the end of its former session proves nothing about it.

An unknown outcome allows every possibility, so nothing is ever searched for.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias, TypeVar

from tests.histories.history import (
    FOREVER,
    SOME_SESSION,
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
    keys |= {key for watched in _of(history, Watched) for key in watched.final}
    offences = list(_check_order(writes))
    views = _Views(history)
    for key in sorted(keys):
        offences += _Register(key, history, views).offences()
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
    """A possible end of a state: a write, or the end of a session."""

    called: float
    returned: float
    certain: bool


_Owner: TypeAlias = tuple[str, int]
"""Client and session."""
_NOBODY: _Owner = ("", 0)
"""The owner of a persistent record."""


def _owner_by(write: Write) -> _Owner | None:
    """Whose the record is that a leased write made; None if its client had several sessions."""
    return None if write.session == SOME_SESSION else (write.client, write.session)


class _Views:
    """Position of each client in the order of all commits."""

    def __init__(self, history: History) -> None:
        points: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for entry in history:
            if isinstance(entry, Write | Read | Effect) and entry.revision >= 0:
                points[entry.client].append((entry.returned, entry.revision))
        self._moments: dict[str, list[float]] = {}
        self._revisions: dict[str, list[int]] = {}
        for client, seen in points.items():
            seen.sort()
            self._moments[client] = [moment for moment, _ in seen]
            self._revisions[client] = list(accumulate((number for _, number in seen), max))

    def before(self, client: str, moment: float) -> int:
        """The newest revision in what was answered to the client before; -1 if nothing was."""
        index = bisect.bisect_left(self._moments.get(client, []), moment)
        return self._revisions[client][index - 1] if index else -1


class _Register:
    """The history of one key."""

    def __init__(self, key: str, history: History, views: _Views) -> None:
        self.key = key
        self.views = views
        self.writes = [write for write in _of(history, Write) if write.key == key]
        self.reads = [read for read in _of(history, Read) if read.key == key]
        self.session_ends = _of(history, SessionEnd)
        self.watches = [w for w in _of(history, Watched) if key.startswith(w.prefix)]
        self.by_value = {w.value: w for w in self.writes if w.verb is not Verb.DELETE}
        self.states: dict[int, _State] = {}
        self.chain: list[_State] = []
        self.stood_by: dict[int, float] = {}
        """By when a state had certainly been made."""
        seen_values = {read.value for read in self.reads}
        self.deletions = [w for w in self.writes if w.verb is Verb.DELETE]
        self.lost = [
            write
            for write in self.writes
            if write.outcome is Outcome.UNKNOWN
            and write.verb is not Verb.DELETE
            and write.value not in seen_values
        ]
        """Unanswered and unseen: their effect is unknown."""

    def offences(self) -> Iterator[str]:
        yield from self._collect()
        self.chain = [self.states[revision] for revision in sorted(self.states)]
        yield from self._check_chain()
        for read in self.reads:
            yield from self._check_read(read)
            yield from self._check_view(read)
        for watched in self.watches:
            yield from self._check_listing(watched)
        yield from self._check_told_deletions()
        for write in self.writes:
            if write.outcome is Outcome.CONFLICT:
                yield from self._check_conflict(write)

    # ---- states

    def _collect(self) -> Iterator[str]:
        """Every state that a write made or a read saw."""
        for write in _happened(self.writes):
            if write.verb is not Verb.DELETE:
                state = _State(write.revision, write.version, write.value, write)
                self.states[write.revision] = state
                self.stood_by[write.revision] = write.returned
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
            stood_by = self.stood_by.get(read.revision, FOREVER)
            self.stood_by[read.revision] = min(stood_by, read.returned)
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

    def _check_chain(self) -> Iterator[str]:
        consumed: Counter[int] = Counter()
        for index, state in enumerate(self.chain):
            before = self.chain[index - 1] if index else None
            write = state.write
            if write.outcome is not Outcome.OK:
                continue
            if write.verb is Verb.CREATE:
                if before is not None and not self._may_be_over(before, write.returned):
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
                for state in self.chain
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

    def _same_version(self, version: int | None) -> list[_State]:
        """States with this version: several where versions begin anew with a record."""
        return [state for state in self.chain if state.version == version]

    def _deletions_of(self, state: _State) -> Iterator[_End]:
        """Everything that may have deleted the record while it had this state."""
        for deletion in self.deletions:
            if deletion.outcome not in (Outcome.OK, Outcome.UNKNOWN):
                continue
            if deletion.expected in (None, state.version):
                certain = (
                    deletion.outcome is Outcome.OK
                    and deletion.expected is not None
                    and len(self._same_version(state.version)) == 1
                )
                yield _End(deletion.called, deletion.returned, certain)
        yield from self._session_ends(self._owner(state), certain=True)

    def _session_ends(self, owner: _Owner | None, *, certain: bool) -> Iterator[_End]:
        for end in self.session_ends:
            if owner is None or owner == (end.client, end.session):
                yield _End(end.called, end.returned, certain and owner is not None)

    def _owner(self, state: _State) -> _Owner | None:
        """Whose the record was in this state; None if that is unknown."""
        for one in reversed(self.chain[: self.chain.index(state) + 1]):
            write = one.write
            if write.session:
                return _owner_by(write)
            if write.verb is Verb.CREATE:
                return _NOBODY
            # It replaced what it found, and that may have been one of those.
            if any(
                lost.called <= write.returned
                and (lost.verb is Verb.CREATE or write.expected is None)
                for lost in self.lost
            ):
                return None
        return None

    def _run_from(self, state: _State) -> list[_State]:
        """The state and those that replaced it, up to a new creation."""
        run = [state]
        for later in self.chain[self.chain.index(state) + 1 :]:
            if later.write.verb is Verb.CREATE:
                break
            run.append(later)
        return run

    def _ends_of_record(self, state: _State) -> Iterator[_End]:
        """Everything that may have deleted the record that had this state, then or later.

        What was replaced was not deleted, so that only the last of its states matters. A lost
        creation may have been replaced by whom a number deceived: then every state does.
        """
        run = self._run_from(state)
        yield from self._ends_after(run[-1])
        if any(lost.verb is Verb.CREATE for lost in self.lost):
            for one in run[:-1]:
                yield from (replace(end, certain=False) for end in self._deletions_of(one))

    def _ends_after(self, last: _State) -> Iterator[_End]:
        """Everything that may have deleted the record whose last known state it is."""
        owner = self._owner(last)
        replacements = [
            lost
            for lost in self.lost
            if lost.verb is Verb.REPLACE and lost.expected in (None, last.version)
        ]
        is_taken = any(lost.session for lost in replacements)
        for end in self._deletions_of(last):
            by_session = any(
                (e.called, e.returned) == (end.called, end.returned) for e in self.session_ends
            )
            yield replace(end, certain=end.certain and not (by_session and is_taken))
        for lost in replacements:
            heir = _owner_by(lost) if lost.session else owner
            yield from self._session_ends(heir, certain=False)
            for deletion in self.deletions:
                if deletion.outcome in (Outcome.OK, Outcome.UNKNOWN) and (
                    deletion.expected is None or len(self._same_version(deletion.expected)) > 1
                ):
                    yield _End(deletion.called, deletion.returned, certain=False)

    def _ends_of(self, state: _State) -> Iterator[_End]:
        """Everything that may have ended the state."""
        yield from self._deletions_of(state)
        for write in self.writes:
            unknown = write.verb is Verb.REPLACE and write.outcome is Outcome.UNKNOWN
            if unknown and write.expected in (None, state.version):
                yield _End(write.called, FOREVER, certain=False)
        index = self.chain.index(state)
        if index + 1 < len(self.chain):
            later = self.chain[index + 1]
            yield _End(later.write.called, self.stood_by[later.revision], certain=True)

    def _may_be_over(self, state: _State, by: float) -> bool:
        """True if the record may have been deleted by then, after it had this state."""
        return any(
            end.called <= by and end.returned >= state.write.called
            for end in self._ends_of_record(state)
        )

    # ---- reads

    def _check_read(self, read: Read) -> Iterator[str]:
        if not read.is_current:
            return
        if read.value is None:
            if self._existed_throughout(read.called, read.returned):
                yield f"M6: {self.key} was absent at {read.called}, and nobody deleted it"
        elif read.revision in self.states:
            yield from self._check_not_over(read.revision, read.called)

    def _check_not_over(self, revision: int, at: float) -> Iterator[str]:
        state = self.states[revision]
        for end in self._ends_of(state):
            if end.certain and end.returned < at:
                rule = "M5" if self._is_by_session(state, end) else "M2"
                yield (
                    f"{rule}: revision {revision} of {self.key} was over at"
                    f" {end.returned}, and seen at {at}"
                )
                return

    def _is_by_session(self, state: _State, end: _End) -> bool:
        return any(
            self._owner(state) == (e.client, e.session) and e.returned == end.returned
            for e in self.session_ends
        )

    def _existed_throughout(self, start: float, stop: float) -> bool:
        """True if some record certainly stood from `start` to `stop`: created, never deleted."""
        return any(
            self.stood_by[state.revision] < start and not self._may_be_over(state, stop)
            for state in self.chain
        )

    def _check_listing(self, watched: Watched) -> Iterator[str]:
        """The listing at the end was made when all was over that was to be told."""
        revision = watched.final.get(self.key)
        if revision is None:
            if self._existed_throughout(watched.until, FOREVER):
                yield f"M6: {self.key} was not in the last listing, and nobody deleted it"
        elif revision in self.states:
            yield from self._check_not_over(revision, watched.until)
        elif not self.lost:
            yield f"M3: the last listing has revision {revision} of {self.key}, which nobody wrote"

    def _check_view(self, read: Read) -> Iterator[str]:
        """M9: what the client was told before the read, of this key or of any other."""
        view = self.views.before(read.client, read.called)
        newest = self._newest(view)
        if read.value is None:
            if newest is not None and not self._may_be_over(newest, read.returned):
                yield (
                    f"M9: {read.client} saw no {self.key} at {read.called}, knew revision"
                    f" {newest.revision}, and nobody deleted it"
                )
            return
        known = -1 if newest is None else newest.revision
        over = [revision for revision in self._told(Seen.DELETED) if revision <= view]
        known = max([known, *(revision + 1 for revision in over)])
        if read.revision < known:
            yield (
                f"M9: {read.client} saw revision {read.revision} of {self.key} at {read.called},"
                f" and had seen that of revision {view}"
            )
        elif read.revision <= self._buried(read.client, read.called):
            yield (
                f"M9: {read.client} saw revision {read.revision} of {self.key} at {read.called},"
                " and knew it to be deleted"
            )

    def _newest(self, view: int) -> _State | None:
        """The newest state for whoever saw everything up to the revision `view`."""
        return next((state for state in reversed(self.chain) if state.revision <= view), None)

    def _buried(self, client: str, moment: float) -> int:
        """The newest revision that the client had deleted itself, or seen to be gone."""
        buried = -1
        for deletion in _happened(self.deletions):
            if deletion.client == client and deletion.returned < moment:
                victims = self._same_version(deletion.expected)
                buried = max(buried, min((one.revision for one in victims), default=-1))
        may_be_several = any(lost.verb is Verb.CREATE for lost in self.lost)
        for read in self.reads:
            if read.client == client and read.value is None and read.returned < moment:
                known = self._newest(self.views.before(client, read.called))
                if known is not None:
                    last = known if may_be_several else self._run_from(known)[-1]
                    buried = max(buried, last.revision)
        return buried

    # ---- what watches told

    def _told(self, *kinds: Seen) -> list[int]:
        """Revisions of this key that watches told, in order."""
        return sorted(
            {
                notice.revision
                for watched in self.watches
                for notice in watched.notices
                if isinstance(notice, Notice) and notice.key == self.key and notice.kind in kinds
            }
        )

    def _check_told_deletions(self) -> Iterator[str]:
        victims: Counter[int] = Counter()
        made = self._told(Seen.CREATED, Seen.MODIFIED)
        for revision in self._told(Seen.DELETED):
            before = self._newest(revision - 1)
            later = [state for state in self.chain if state.revision > revision]
            by = self.stood_by[later[0].revision] if later else FOREVER
            known = -1 if before is None else before.revision
            if any(known < one < revision for one in made) or before is None:
                # Of a write that nobody else saw: it is enough that somebody deleted something.
                ends = [*self._session_ends(None, certain=False)]
                ends += [_End(w.called, w.returned, certain=False) for w in self.deletions]
                explained = bool(self.lost) and any(end.called <= by for end in ends)
            else:
                victims[known] += 1
                start = before.write.called
                ends = list(self._ends_after(before))
                explained = any(end.called <= by and end.returned >= start for end in ends)
            if not explained:
                yield f"M6: {self.key} was deleted at revision {revision}, and nobody did that"
        for known, count in victims.items():
            if count > 1 and not self.lost:
                yield f"M6: revision {known} of {self.key} was deleted {count} times"

    # ---- conflicts

    def _check_conflict(self, write: Write) -> Iterator[str]:
        start, stop = write.called, write.returned
        if write.verb is Verb.CREATE:
            if not self._may_have_existed(start, stop):
                yield f"M4: {self.key} could not be created at {start}, and there was none"
            return
        for state in self.chain:
            if write.expected is not None and state.version != write.expected:
                continue
            if self.stood_by[state.revision] >= start:
                continue
            if write.session and self._owner(state) in (None, _NOBODY):
                continue  # nobody takes over what is not ephemeral
            if not any(end.called <= stop for end in self._ends_of(state)):
                yield (
                    f"M4: version {write.expected} of {self.key} was refused at {start}, and it"
                    " was the newest all the time"
                )

    def _may_have_existed(self, start: float, stop: float) -> bool:
        """True if there may have been a record at some instant from `start` to `stop`."""
        for write in self.writes:
            made = write.outcome in (Outcome.OK, Outcome.UNKNOWN)
            if write.verb is not Verb.CREATE or not made or write.called > stop:
                continue
            state = next((s for s in self.chain if s.write is write), None)
            if state is None:
                return True
            ends = self._ends_of_record(state)
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
            given = max((a.token for a in held if a.returned < effect.called), default=-1)
            if given > effect.token:
                yield (
                    f"M7: {effect.client} acted under {lock} with token {effect.token} at"
                    f" {effect.called}, when {given} had been given"
                )


def overlap_seconds(history: History) -> float:
    """Seconds in which two holders of one lock believed in it; no offence, but worth a look."""
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
