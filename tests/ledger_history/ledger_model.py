"""A small model of replicated ledgers, whose histories are valid: the checker must blame none.

Actors are generators that yield wherever another actor may go on; a seed decides who does. The
model keeps the rules of the protocol in their simplest form. It is wild in all that the rules
leave open. Messages and disks get lost, and crashes lose what was not synced. Acknowledgements come
late. Recoveries find, or drop, entries of unknown outcome.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from tests.ledger_history.ledger_events import (
    NO_ENTRY,
    AppendEvent,
    BookieEventKind,
    CloseEvent,
    DeleteEvent,
    EntryCopy,
    EventOutcome,
    FinalFragment,
    FinalLedger,
    FinalLedgerState,
    FinalState,
    HistoryRecorder,
    Invocation,
    LedgerHistory,
    OpenEvent,
    PayloadDigest,
    ReadEvent,
    ReadLacEvent,
    TailEvent,
    UnconfirmedReadEvent,
    digest_of,
)
from tests.ledger_history.model_bookies import ModelBookie

Steps = Generator[None, None, None]
SIZES = ((3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3), (2, 2, 2))
BOOKIES = 5
CHANGES_MAX = 6
"""No message is lost after so many ensemble changes: each of them sends more messages."""
STEPS_MAX = 20_000


@dataclass(slots=True)
class ModelFragment:
    """Bookies by slot, from `first` on."""

    first: int
    bookies: list[ModelBookie]


class ModelLedger:
    """A ledger's metadata, changed in one step, and its writer's state."""

    def __init__(self, ledger_id: int, sizes: tuple[int, int, int], world: LedgerModel) -> None:
        self.ledger_id = ledger_id
        self.ensemble_size, self.write_quorum, self.ack_quorum = sizes
        self.state = FinalLedgerState.OPEN
        self.fragments = [ModelFragment(0, world.rng.sample(world.bookies, self.ensemble_size))]
        self.last = NO_ENTRY
        self.length = 0
        self.digests: list[PayloadDigest] = []
        """The writer's entries by id."""
        self.lac = NO_ENTRY
        """The writer's."""
        self.acks: dict[int, set[str]] = {}
        self.waiting: list[tuple[int, Invocation[AppendEvent]]] = []
        """Appends by their last id."""
        self.is_writer_dead = False
        self.changes = 0

    def bookies_of(self, entry_id: int, ensemble: list[ModelBookie]) -> list[ModelBookie]:
        """The write set of an entry."""
        return [
            ensemble[(entry_id + copy) % self.ensemble_size] for copy in range(self.write_quorum)
        ]

    def ensemble(self, entry_id: int) -> list[ModelBookie]:
        """The bookies of the fragment of an entry."""
        return [one for one in self.fragments if one.first <= max(entry_id, 0)][-1].bookies

    def is_covered(self, silent: set[str]) -> bool:
        """True if each ack quorum has a bookie that answered."""
        ensemble = self.fragments[-1].bookies
        return all(
            sum(one.name in silent for one in self.bookies_of(start, ensemble)) < self.ack_quorum
            for start in range(self.ensemble_size)
        )


class LedgerModel:
    """One run. `counts` says how often the odd things happened."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._steps = 0
        self.recorder = HistoryRecorder(lambda: self._steps / 1000)
        self.bookies = [
            ModelBookie(f"b{number}", self.recorder, self.rng) for number in range(1, BOOKIES + 1)
        ]
        self.counts: Counter[str] = Counter()
        self._actors: list[Steps] = []
        self._handles = 0
        self._payloads = 0

    def run(self) -> LedgerHistory:
        """Let all actors act, heal, and look at the end."""
        rng = self.rng
        ledgers = [
            ModelLedger(10 + number, rng.choice(SIZES), self) for number in range(rng.randint(1, 3))
        ]
        for ledger in ledgers:
            self._actors.append(self._write(ledger, rng.choice((0, 1, 5, 12))))
            self._actors += [self._read(ledger) for _ in range(rng.randint(0, 2))]
            self._actors += [self._tail(ledger) for _ in range(rng.randint(0, 2))]
            self._actors += [self._recover(ledger, 200) for _ in range(rng.randint(0, 2))]
        self._actors += [self._sync(bookie) for bookie in self.bookies]
        self._actors.append(self._crash(rng.choice((0, 1, 3)), is_losing=rng.random() < 0.3))
        self._drain()
        for bookie in self.bookies:
            bookie.sync()
        for ledger in ledgers:
            if rng.random() < 0.9:
                self._actors.append(self._recover(ledger, 0, is_sure=True))
        self._drain()
        for ledger in ledgers:
            if rng.random() < 0.15:
                self._actors.append(self._delete(ledger))
                self._actors.append(self._open_deleted(ledger))
        self._drain()
        if rng.random() < 0.1:
            self._lose_too_much()
        is_repaired = rng.random() < 0.3
        if is_repaired:
            self._repair(ledgers)
        return self._look(ledgers, is_repaired=is_repaired)

    def _drain(self) -> None:
        """Act until no actor is left."""
        while self._actors:
            self._steps += 1
            assert self._steps < STEPS_MAX, "the model does not end"
            actor = self.rng.choice(self._actors)
            if next(actor, self) is self:
                self._actors.remove(actor)

    def _pause(self, most: int = 8) -> Iterator[None]:
        yield from (None for _ in range(self.rng.randrange(most)))

    def _handle(self, kind: str) -> str:
        self._handles += 1
        return f"{kind}-{self._handles}"

    # ---- bookies

    def _sync(self, bookie: ModelBookie) -> Steps:
        while self._is_busy():
            yield from self._pause(6)
            if bookie.unsynced or bookie.fences:
                bookie.sync()
            yield

    def _is_busy(self) -> bool:
        return len(self._actors) > BOOKIES

    def _crash(self, times: int, *, is_losing: bool) -> Steps:
        for time in range(times):
            yield from self._pause(120)
            bookie = self.rng.choice(self.bookies)
            if is_losing and time == 0:
                bookie.destroy()
                self.counts["lost disk"] += 1
            else:
                bookie.crash()

    # ---- the writer

    def _write(self, ledger: ModelLedger, appends: int) -> Steps:
        process, handle = f"writer of {ledger.ledger_id}", self._handle("writer")
        for _ in range(appends):
            yield from self._pause()
            digests = tuple(self._payload() for _ in range(self.rng.randint(1, 3)))
            invocation = self.recorder.invoke(
                AppendEvent(
                    process=process, ledger_id=ledger.ledger_id, handle=handle, digests=digests
                )
            )
            fate = self.rng.random()
            if fate < 0.04:
                invocation.fail(ValueError())
            elif fate < 0.1:
                # It was cancelled before it got an id.
                self.counts["info without an id"] += 1
                invocation.info(TimeoutError())
            elif ledger.is_writer_dead:
                invocation.info(TimeoutError())
            else:
                for digest in digests:
                    self._send(ledger, digest)
                ledger.waiting.append((len(ledger.digests) - 1, invocation))
                if fate < 0.15:
                    # The caller gives up, and the writer goes on.
                    yield from self._pause()
                    if invocation.event.end_index is None:
                        invocation.info(TimeoutError())
        for _ in range(60):
            if ledger.waiting and not ledger.is_writer_dead:
                yield
        if ledger.waiting or ledger.is_writer_dead or self.rng.random() < 0.4:
            if self.rng.random() < 0.5:
                self._give_up(ledger)
            return
        self._close(ledger, process, handle)

    def _payload(self) -> PayloadDigest:
        self._payloads += 1
        return digest_of(b"%d " % self._payloads * self.rng.randint(1, 4))

    def _give_up(self, ledger: ModelLedger) -> None:
        for _, invocation in ledger.waiting:
            if invocation.event.end_index is None:
                invocation.info(ConnectionError())
        ledger.waiting.clear()
        ledger.is_writer_dead = True

    def _send(self, ledger: ModelLedger, digest: PayloadDigest) -> None:
        entry_id = len(ledger.digests)
        ledger.digests.append(digest)
        ledger.acks[entry_id] = set()
        for bookie in ledger.bookies_of(entry_id, ledger.fragments[-1].bookies):
            self._actors.append(self._deliver(ledger, entry_id, bookie, ledger.lac))

    def _deliver(self, ledger: ModelLedger, entry_id: int, bookie: ModelBookie, lac: int) -> Steps:
        """One add: it may get lost, be refused, or be forgotten by a crash."""
        yield from self._pause(10)
        share = bookie.share(ledger.ledger_id)
        is_lost = self.rng.random() < 0.08 and ledger.changes < CHANGES_MAX
        if is_lost or share.is_fenced or share.is_in_limbo:
            self._replace(ledger, bookie)
            return
        digest = ledger.digests[entry_id]
        bookie.accept(ledger.ledger_id, entry_id, digest, lac)
        epoch = bookie.epoch
        while not bookie.is_durable(ledger.ledger_id, entry_id):
            if bookie.epoch != epoch:
                self._actors.append(self._deliver(ledger, entry_id, bookie, lac))
                return
            yield
        yield from self._pause(2)
        if bookie.epoch != epoch or share.is_in_limbo:
            self._actors.append(self._deliver(ledger, entry_id, bookie, lac))
            return
        self.counts["ack behind a fence"] += bookie.share(ledger.ledger_id).is_fenced
        bookie.say(BookieEventKind.ADD_ACK, ledger.ledger_id, entry_id, digest)
        yield from self._pause(12)
        self._count(ledger, entry_id, bookie)

    def _count(self, ledger: ModelLedger, entry_id: int, bookie: ModelBookie) -> None:
        if ledger.is_writer_dead or entry_id <= ledger.lac:
            return
        if bookie not in ledger.bookies_of(entry_id, ledger.fragments[-1].bookies):
            return
        ledger.acks[entry_id].add(bookie.name)
        while len(ledger.acks.get(ledger.lac + 1, ())) >= ledger.ack_quorum:
            ledger.lac += 1
            while ledger.waiting and ledger.waiting[0][0] <= ledger.lac:
                last, invocation = ledger.waiting.pop(0)
                if invocation.event.end_index is None:
                    first = last - len(invocation.event.digests) + 1
                    if ledger.state is not FinalLedgerState.OPEN:
                        self.counts["acknowledged during or after a recovery"] += 1
                    invocation.ok(entry_ids=tuple(range(first, last + 1)))

    def _replace(self, ledger: ModelLedger, bookie: ModelBookie) -> None:
        """An ensemble change, in one step. Without a spare the writer waits, or dies."""
        fragment = ledger.fragments[-1]
        if ledger.is_writer_dead or bookie not in fragment.bookies:
            return
        if ledger.state is not FinalLedgerState.OPEN:
            self._give_up(ledger)
            return
        spares = [
            one
            for one in self.bookies
            if one not in fragment.bookies and not one.share(ledger.ledger_id).is_in_limbo
        ]
        if not spares:
            return
        changed = list(fragment.bookies)
        changed[changed.index(bookie)] = spare = self.rng.choice(spares)
        self.counts["ensemble change"] += 1
        ledger.changes += 1
        if fragment.first == ledger.lac + 1:
            fragment.bookies = changed
        else:
            ledger.fragments.append(ModelFragment(ledger.lac + 1, changed))
        for entry_id in range(ledger.lac + 1, len(ledger.digests)):
            ledger.acks[entry_id].discard(bookie.name)
            if spare in ledger.bookies_of(entry_id, changed):
                self._actors.append(self._deliver(ledger, entry_id, spare, ledger.lac))

    def _close(self, ledger: ModelLedger, process: str, handle: str) -> None:
        invocation = self.recorder.invoke(
            CloseEvent(process=process, ledger_id=ledger.ledger_id, handle=handle)
        )
        ledger.is_writer_dead = True
        if ledger.state is not FinalLedgerState.OPEN:
            invocation.info(RuntimeError())
            return
        self._set_end(ledger, ledger.lac)
        if self.rng.random() < 0.2:
            invocation.info(TimeoutError())
        else:
            invocation.ok(last_entry_id=ledger.last, length=ledger.length)

    def _set_end(self, ledger: ModelLedger, last: int) -> None:
        ledger.state = FinalLedgerState.CLOSED
        ledger.last = last
        ledger.length = sum(digest.size for digest in ledger.digests[: last + 1])
        self.counts["empty ledger"] += last == NO_ENTRY

    # ---- recovery

    def _recover(self, ledger: ModelLedger, wait: int, *, is_sure: bool = False) -> Steps:
        yield from self._pause(wait + 1)
        invocation = self.recorder.invoke(
            OpenEvent(
                process=f"recoverer-{self.rng.randrange(2)}",
                ledger_id=ledger.ledger_id,
                handle=self._handle("recovered"),
                is_recovery=True,
            )
        )
        if ledger.state is not FinalLedgerState.CLOSED:
            ledger.state = FinalLedgerState.IN_RECOVERY
            last = yield from self._find_end(ledger, is_sure=is_sure)
            if last is None:
                self.counts["recovery gave up"] += 1
                invocation.info(TimeoutError())
                return
            if ledger.state is not FinalLedgerState.CLOSED:
                dropped = len(ledger.digests) - 1 - last
                self.counts["dropped entries"] += dropped > 0
                self.counts["recovered entries"] += last > ledger.lac
                self._set_end(ledger, last)
        yield from self._pause()
        invocation.ok(is_closed=True, last_entry_id=ledger.last, length=ledger.length)

    def _find_end(self, ledger: ModelLedger, *, is_sure: bool) -> Generator[None, None, int | None]:
        fragment = ledger.fragments[-1]
        silent: set[str] = set()
        lac = fragment.first - 1
        for bookie in self.rng.sample(fragment.bookies, len(fragment.bookies)):
            if not is_sure and self.rng.random() < 0.2:
                silent.add(bookie.name)
                continue
            found = yield from self._fence(ledger, bookie)
            if found is None:
                silent.add(bookie.name)
            else:
                lac = max(lac, found)
        if not ledger.is_covered(silent):
            return None
        frozen = lac
        while ledger.state is not FinalLedgerState.CLOSED:
            is_there = yield from self._read_fencing(ledger, lac + 1, silent)
            if is_there is None:
                return None
            if not is_there:
                return lac
            lac += 1
            copies = yield from self._write_back(ledger, lac, frozen)
            if copies < ledger.ack_quorum:
                return None
        return ledger.last

    def _fence(self, ledger: ModelLedger, bookie: ModelBookie) -> Generator[None, None, int | None]:
        share, epoch = bookie.share(ledger.ledger_id), bookie.epoch
        if share.is_in_limbo:
            return None
        if not share.is_fenced:
            share.is_fenced = True
            bookie.fences.append(ledger.ledger_id)
        yield from self._pause(4)
        if ledger.ledger_id in bookie.fences:
            bookie.sync()
        if bookie.epoch != epoch or not share.is_fenced or share.is_in_limbo:
            return None
        bookie.say(BookieEventKind.FENCE_ACK, ledger.ledger_id)
        return share.lac

    def _read_fencing(
        self, ledger: ModelLedger, entry_id: int, silent: set[str]
    ) -> Generator[None, None, bool | None]:
        denials = 0
        bookies = ledger.bookies_of(entry_id, ledger.fragments[-1].bookies)
        for bookie in self.rng.sample(bookies, len(bookies)):
            yield from self._pause(3)
            share = bookie.share(ledger.ledger_id)
            if bookie.name in silent or share.is_in_limbo or not share.is_fenced:
                continue
            if entry_id in share.entries:
                return True
            bookie.say(BookieEventKind.NO_SUCH_ENTRY_FENCING, ledger.ledger_id, entry_id)
            denials += 1
            if denials > ledger.write_quorum - ledger.ack_quorum:
                return False
        return None

    def _write_back(
        self, ledger: ModelLedger, entry_id: int, lac: int
    ) -> Generator[None, None, int]:
        copies = 0
        digest = ledger.digests[entry_id]
        for bookie in ledger.bookies_of(entry_id, ledger.fragments[-1].bookies):
            yield from self._pause(3)
            if bookie.share(ledger.ledger_id).is_in_limbo:
                continue
            bookie.accept(ledger.ledger_id, entry_id, digest, lac)
            bookie.sync()
            bookie.say(BookieEventKind.RECOVERY_ADD_ACK, ledger.ledger_id, entry_id, digest)
            copies += 1
        return copies

    # ---- readers

    def _ask_lac(self, ledger: ModelLedger) -> int:
        """What one bookie knows; the end, of a closed ledger."""
        if ledger.state is FinalLedgerState.CLOSED:
            return ledger.last
        bookie = self.rng.choice(ledger.fragments[-1].bookies)
        return bookie.share(ledger.ledger_id).lac

    def _open(self, ledger: ModelLedger, process: str, handle: str) -> Generator[None, None, int]:
        invocation = self.recorder.invoke(
            OpenEvent(process=process, ledger_id=ledger.ledger_id, handle=handle)
        )
        yield from self._pause()
        if ledger.state is FinalLedgerState.CLOSED:
            invocation.ok(is_closed=True, last_entry_id=ledger.last, length=ledger.length)
            return ledger.last
        lac = self._ask_lac(ledger)
        invocation.ok(last_entry_id=lac)
        return lac

    def _copies(self, ledger: ModelLedger, first: int, last: int) -> tuple[EntryCopy, ...]:
        """The entries from `first` on that anybody has, up to `last`."""
        found: list[EntryCopy] = []
        for entry_id in range(first, last + 1):
            for bookie in ledger.bookies_of(entry_id, ledger.ensemble(entry_id)):
                digest = bookie.share(ledger.ledger_id).entries.get(entry_id)
                if digest is not None:
                    found.append(EntryCopy(entry_id, digest))
                    break
            else:
                break
        return tuple(found)

    def _read(self, ledger: ModelLedger) -> Steps:
        yield from self._pause(60)
        process, handle = f"reader-{self.rng.randrange(2)}", self._handle("reader")
        lac = yield from self._open(ledger, process, handle)
        for _ in range(self.rng.randint(1, 8)):
            yield from self._pause(30)
            if self.rng.random() < 0.4:
                ask = self.recorder.invoke(
                    ReadLacEvent(process=process, ledger_id=ledger.ledger_id, handle=handle)
                )
                yield from self._pause()
                newest = self._ask_lac(ledger)
                self.counts["a LAC older than another"] += newest < lac
                lac = max(lac, newest)
                ask.ok(last_entry_id=lac)
            elif self.rng.random() < 0.2:
                unconfirmed = self.recorder.invoke(
                    UnconfirmedReadEvent(
                        process=process, ledger_id=ledger.ledger_id, first=0, last=lac + 3
                    )
                )
                unconfirmed.ok(entries=self._copies(ledger, 0, lac + 3))
            else:
                first = self.rng.randint(0, max(lac, 0))
                last = self.rng.randint(first, lac + 1 if lac >= first else first)
                yield from self._read_range(ledger, process, handle, (first, last, lac))

    def _read_range(
        self, ledger: ModelLedger, process: str, handle: str, bounds: tuple[int, int, int]
    ) -> Steps:
        first, last, lac = bounds
        read = self.recorder.invoke(
            ReadEvent(
                process=process, ledger_id=ledger.ledger_id, handle=handle, first=first, last=last
            )
        )
        yield from self._pause()
        if last > lac:
            read.fail(LookupError(), denied=lac + 1)
            return
        entries = self._copies(ledger, first, last)
        if self.rng.random() < 0.1:
            # The bookies of one entry did not answer in time.
            entries = entries[: self.rng.randrange(len(entries) + 1)]
        if len(entries) == last - first + 1:
            read.ok(entries=entries)
        else:
            self.counts["unavailable"] += 1
            read.fail(TimeoutError(), entries=entries)

    def _tail(self, ledger: ModelLedger) -> Steps:
        yield from self._pause(60)
        process, opened, handle = "tailer", self._handle("reader"), self._handle("tail")
        lac = yield from self._open(ledger, process, opened)
        start = following = self.rng.choice((0, 0, max(lac, 0)))
        for _ in range(self.rng.randint(3, 12)):
            step = self.recorder.invoke(
                TailEvent(process=process, ledger_id=ledger.ledger_id, handle=handle, start=start)
            )
            yield from self._pause(30)
            lac = max(lac, self._ask_lac(ledger))
            entries = self._copies(ledger, following, min(lac, following + 2))
            following += len(entries)
            if entries:
                step.ok(entries=entries)
            else:
                step.info(TimeoutError())

    # ---- the end

    def _delete(self, ledger: ModelLedger) -> Steps:
        yield from self._pause()
        invocation = self.recorder.invoke(DeleteEvent(process="owner", ledger_id=ledger.ledger_id))
        ledger.state = FinalLedgerState.DELETED
        self.counts["deletion"] += 1
        if self.rng.random() < 0.3:
            invocation.info(TimeoutError())
        else:
            invocation.ok()
        for bookie in self.bookies:
            yield from self._pause()
            bookie.shares.pop(ledger.ledger_id, None)
            bookie.say(BookieEventKind.LEDGER_DELETED, ledger.ledger_id)
            bookie.say(BookieEventKind.NO_SUCH_ENTRY, ledger.ledger_id, 0)

    def _open_deleted(self, ledger: ModelLedger) -> Steps:
        yield from self._pause()
        invocation = self.recorder.invoke(
            OpenEvent(process="late", ledger_id=ledger.ledger_id, handle=self._handle("reader"))
        )
        if ledger.state is FinalLedgerState.DELETED:
            invocation.fail(LookupError())
        elif ledger.state is FinalLedgerState.CLOSED:
            invocation.ok(is_closed=True, last_entry_id=ledger.last, length=ledger.length)

    def _lose_too_much(self) -> None:
        """More disks than the promise of any ledger allows."""
        self.counts["too many disks lost"] += 1
        for bookie in self.bookies[:4]:
            bookie.destroy()

    def _repair(self, ledgers: list[ModelLedger]) -> None:
        for ledger in ledgers:
            for entry_id in range(ledger.last + 1):
                copies = self._copies(ledger, entry_id, entry_id)
                for bookie in ledger.bookies_of(entry_id, ledger.ensemble(entry_id)):
                    for copy in copies:
                        bookie.share(ledger.ledger_id).entries[entry_id] = copy.digest

    def _look(self, ledgers: list[ModelLedger], *, is_repaired: bool) -> LedgerHistory:
        finals = [self._look_at(ledger) for ledger in ledgers]
        history = self.recorder.history(
            FinalState(
                ledgers=tuple(finals),
                destroyed=frozenset(one.name for one in self.bookies if one.was_destroyed),
                is_repaired=is_repaired,
            )
        )
        for event in history.events:
            self.counts["append of unknown outcome"] += isinstance(event, AppendEvent) and (
                event.outcome is EventOutcome.INFO
            )
        return history

    def _look_at(self, ledger: ModelLedger) -> FinalLedger:
        if ledger.state is FinalLedgerState.DELETED:
            return FinalLedger(ledger_id=ledger.ledger_id, state=ledger.state, copies={})
        is_closed = ledger.state is FinalLedgerState.CLOSED
        found: list[EntryCopy] = []
        for entry_id in range(ledger.last + 1):
            found += self._copies(ledger, entry_id, entry_id)
        copies = {one.name: dict(one.share(ledger.ledger_id).entries) for one in self.bookies}
        self.counts["copies elsewhere"] += any(
            bookie.name not in {one.name for one in ledger.bookies_of(e, ledger.ensemble(e))}
            for bookie in self.bookies
            for e in copies[bookie.name]
        )
        return FinalLedger(
            ledger_id=ledger.ledger_id,
            state=ledger.state,
            ensemble_size=ledger.ensemble_size,
            write_quorum_size=ledger.write_quorum,
            ack_quorum_size=ledger.ack_quorum,
            last_entry_id=ledger.last,
            length=ledger.length,
            fragments=tuple(
                FinalFragment(one.first, tuple(bookie.name for bookie in one.bookies))
                for one in ledger.fragments
            ),
            entries=tuple(found) if is_closed else None,
            copies=copies,
        )
