"""A bookie against a model, in any order of what can happen to it.

That is adds, duplicates, conflicts, fences, LACs, deletes, limbo, checkpoints, compactions,
restarts, crashes and the loss of the index.

Requests that were answered are in the model. Requests are pending, in the order of the journal,
until their answer says that they are durable. After a crash the bookie must be the model with some
first part of the pending requests applied. A later one must come with all earlier ones. Which part
that is, threads decide: what is drawn does not depend on the model.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from bookie.entry.entry import lac_packet_ids, pack_lac, verify_batch
from bookie.env.failpoints import FAILPOINTS
from bookie.ids import NO_ENTRY, Status
from bookie.wire.commands import ReadReply, Reply
from tests.unit.node.engine.faulty_disk import Hold
from tests.unit.node.engine.machine import (
    DIGESTER,
    KEY,
    KIB,
    OTHER_KEY,
    Machine,
    Snapshots,
    batch,
    until,
)
from tests.unit.node.node_room import Room, add_command, ids_of, read_command, serving

pytestmark = pytest.mark.model

T = TypeVar("T")

LEDGERS = (1, 2, 3)
SPAN = 100
EXAMPLES, STEPS = 60, 25
"""Bookies of an ordinary run, and what happens to each; `test_model_catches` needs no more."""

OK, FENCED = Status.OK, Status.FENCED

COMPACTION_POINTS = [name for name in FAILPOINTS if name.startswith("compaction.")]

ledgers = st.sampled_from(LEDGERS)
id_lists = st.one_of(
    st.tuples(st.integers(0, SPAN - 1), st.integers(1, 12)).map(
        lambda item: list(range(item[0], min(sum(item), SPAN)))
    ),
    st.sets(st.integers(0, SPAN - 1), min_size=1, max_size=5).map(sorted),
)
sizes = st.sampled_from([20, 20, 20, 3 * KIB])


@dataclass
class Ledger:
    """A bookie's state of one ledger."""

    entries: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Id → salt and size of the entry."""
    fenced: bool = False
    limbo: bool = False
    deleted: bool = False
    lac: int = NO_ENTRY - 1
    """The highest explicit LAC; -2 if there was none."""


Model = dict[int, Ledger]


@dataclass
class Request:
    """Something that changes the model once it is accepted."""

    ledger_id: int
    change: Callable[[Ledger], None]
    postponed: bool = False
    """True if it is answered before it is written, and written with the next request."""

    def apply(self, model: Model) -> None:
        """Change it."""
        ledger = model.setdefault(self.ledger_id, Ledger())
        self.change(ledger)


def ignore(name: str) -> None:
    """A failpoint was passed."""


def adding(ledger_id: int, ids: list[int], salt: int, size: int) -> Request:
    """Entries."""
    entries = dict.fromkeys(ids, (salt, size))
    return Request(ledger_id, lambda ledger: ledger.entries.update(entries))


def fencing(ledger_id: int) -> Request:
    """A fence."""

    def fence(ledger: Ledger) -> None:
        ledger.fenced = True

    return Request(ledger_id, fence)


def confirming(ledger_id: int, lac: int) -> Request:
    """An explicit LAC."""

    def confirm(ledger: Ledger) -> None:
        ledger.lac = max(ledger.lac, lac)

    return Request(ledger_id, confirm, postponed=True)


def deleting(ledger_id: int) -> Request:
    """The end of a ledger."""

    def delete(ledger: Ledger) -> None:
        ledger.deleted = True
        ledger.entries.clear()

    return Request(ledger_id, delete)


def limboing(ledger_id: int, in_limbo: bool) -> Request:
    """Doubt, which fences, or its end."""

    def limbo(ledger: Ledger) -> None:
        ledger.limbo = in_limbo
        ledger.fenced = ledger.fenced or in_limbo

    return Request(ledger_id, limbo)


async def observe(room: Room) -> Model:
    """The bookie's listing, with every entry read and its digest verified."""
    model: Model = {}
    for ledger_id in LEDGERS:
        state = await room.engine.load(ledger_id)
        if not state.exists:
            continue
        entries: dict[int, tuple[int, int]] = {}
        if not state.deleted:
            ids: list[int] = []
            async for firsts, lasts in room.engine.entry_ranges(state, 0, SPAN):
                for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                    ids += range(first, last + 1)
            for entry_id in ids:
                reply = await room.bookie.read(read_command(ledger_id, entry_id, entry_id))
                assert reply.batch is not None, reply
                ((_, payload),) = verify_batch(reply.batch, DIGESTER)
                _, _, rest = payload.partition(b"/")
                salt = int(rest.partition(b"/")[2].partition(b":")[0])
                entries[entry_id] = salt, len(payload)
        packet = state.lac_packet
        lac = lac_packet_ids(packet).last_add_confirmed if packet else NO_ENTRY - 1
        model[ledger_id] = Ledger(entries, state.fenced, state.limbo, state.deleted, lac)
    return model


class BookieModel(RuleBasedStateMachine):
    """One bookie through several lives."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.machine = Machine(
            Path(self.directory.name) / "m",
            changes={
                "journal_file_bytes_max": 64 * KIB,
                "block_bytes_max": 16 * KIB,
                "checkpoint_journal_bytes": 256 * KIB,
                "reserve_bytes": 0,
            },
        )
        self.model: Model = {}
        self.pending: list[Request] = []
        """Answered and visible, but not durable yet; part of the model."""
        self.durable: Model = {}
        self.copies = 0
        self.passed: Callable[[str], None] = ignore
        """Hears of every failpoint."""
        self.serving: asyncio.Task[None] | None = None
        self.room: Room

    # --- lives ---------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the bookie's loop."""
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 60))

    @initialize()
    def begin(self) -> None:
        """The first start."""
        self.start()

    def start(self) -> None:
        """Open the bookie on the machine's directories."""
        self.machine.failpoints = Snapshots(self.hit)
        opened = self.loop.create_future()
        self.stop_event = asyncio.Event()

        async def serve() -> None:
            async with serving(self.machine) as room:
                opened.set_result(room)
                await self.stop_event.wait()

        self.serving = self.loop.create_task(serve())
        waiting = asyncio.wait(
            [self.serving, opened], timeout=30, return_when=asyncio.FIRST_COMPLETED
        )
        self.loop.run_until_complete(waiting)
        if self.serving.done():
            self.serving.result()
        self.room = opened.result()

    def hit(self, name: str) -> None:
        """A failpoint was passed."""
        self.passed(name)

    def stop(self) -> None:
        """Close it in order."""
        assert self.serving is not None
        self.stop_event.set()
        self.loop.run_until_complete(self.serving)
        self.serving = None

    def teardown(self) -> None:
        """Close everything."""
        if self.serving is not None:
            self.stop()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.directory.cleanup()

    def synced(self) -> None:
        """Everything that is in the model is durable."""
        self.pending.clear()
        self.durable = deepcopy(self.model)

    def accepted(self, request: Request, *, durable: bool = True) -> None:
        """The request was answered OK."""
        request.apply(self.model)
        if durable:
            self.synced()
        else:
            self.pending.append(request)

    def go_on_with(self, machine: Machine, candidates: list[Request]) -> None:
        """Start on what a crash left; the bookie must hold a first part of `candidates`."""
        self.stop()
        self.machine = machine
        self.start()
        assert self.room.engine.report.corrupt == ()
        found = self.run(observe(self.room))
        world = deepcopy(self.durable)
        worlds = [deepcopy(world)]
        for request in candidates:
            request.apply(world)
            worlds.append(deepcopy(world))
        assert found in worlds, (found, worlds)
        self.model = found
        self.synced()

    def settle(self) -> None:
        """Let the journal write what it was given."""
        self.run(until(lambda: not self.room.engine._queue.pending))

    def written(self) -> list[Request]:
        """Note as kept what is written; returns the last requests, which may not be."""
        count = len(self.pending)
        while count and self.pending[count - 1].postponed:
            count -= 1
        for request in self.pending[:count]:
            request.apply(self.durable)
        return self.pending[count:]

    def name(self) -> str:
        """A name for a copy of the directories."""
        self.copies += 1
        return str(self.copies)

    # --- what clients do -----------------------------------------------------------------

    def ledger(self, ledger_id: int) -> Ledger:
        """The model's state of the ledger, perhaps empty."""
        return self.model.get(ledger_id, Ledger())

    def expected_add(
        self, ledger_id: int, ids: list[int], salt: int, size: int, *, recovery: bool
    ) -> Status:
        """The right answer to an add."""
        ledger = self.ledger(ledger_id)
        if ledger.deleted or (ledger.fenced and not recovery):
            return FENCED
        stored = [ledger.entries.get(entry_id, (salt, size)) for entry_id in ids]
        if not recovery and any(content != (salt, size) for content in stored):
            return Status.CONFLICT
        return OK

    @rule(
        ledger_id=ledgers,
        ids=id_lists,
        salt=st.sampled_from([0, 0, 0, 1]),
        size=sizes,
        recovery=st.sampled_from([False, False, True]),
        deferred=st.booleans(),
        cut=st.sampled_from([False] * 5 + [True]),
    )
    def add(
        self,
        ledger_id: int,
        ids: list[int],
        salt: int,
        size: int,
        recovery: bool,
        deferred: bool,
        cut: bool,
    ) -> None:
        """Plain adds, equal and conflicting duplicates, recovery adds; synced or deferred."""
        expected = self.expected_add(ledger_id, ids, salt, size, recovery=recovery)
        entries = batch(ledger_id, ids, size=size, salt=salt)
        is_new = any(entry_id not in self.ledger(ledger_id).entries for entry_id in ids)
        command = add_command(entries, recovery=recovery, deferred_sync=deferred)
        reply = self.run(self.answered(command))
        assert reply.status is expected, reply
        if expected is OK:
            durable = recovery or not deferred or not is_new
            self.accepted(adding(ledger_id, ids, salt, size), durable=durable)
        if cut:
            self.crash(power=True, kept=0)

    async def answered(self, command: Any) -> Reply:
        """The answer to an add."""
        return await self.room.bookie.add(command)

    @rule(ledger_id=ledgers, salt=st.integers(2, 6), count=st.integers(1, 5))
    def rewrite(self, ledger_id: int, salt: int, count: int) -> None:
        """Two recoveries write again what is there, as some replica has it."""
        ids = sorted(self.ledger(ledger_id).entries)[:count]
        for turn in (salt, salt + 1) if ids else ():
            command = add_command(batch(ledger_id, ids, size=20, salt=turn), recovery=True)
            assert self.run(self.answered(command)).status is OK
            self.accepted(adding(ledger_id, ids, turn, 20))

    @rule(ledger_id=ledgers)
    def fence(self, ledger_id: int) -> None:
        """A fence, of a known or an unknown ledger."""
        reply = self.run(self.room.bookie.fence(ledger_id, KEY))
        ledger = self.ledger(ledger_id)
        if ledger.deleted:
            assert reply.status in (Status.NO_SUCH_LEDGER, Status.UNKNOWN_LEDGER_STATE)
            self.synced()
            return
        assert reply.status is (Status.UNKNOWN_LEDGER_STATE if ledger.limbo else OK)
        assert reply.fenced
        self.accepted(fencing(ledger_id))
        if reply.status is OK:
            assert bool(reply.last_entry) == bool(ledger.entries)

    @rule(
        ledger_id=ledgers,
        lacs=st.lists(st.integers(-1, SPAN), min_size=1, max_size=3),
        force=st.booleans(),
        kill=st.booleans(),
    )
    def confirm(self, ledger_id: int, lacs: list[int], force: bool, kill: bool) -> None:
        """Explicit LACs, which are not durable when they are answered."""
        ledger = self.ledger(ledger_id)
        for lac in lacs:
            packet = pack_lac(ledger_id, lac, DIGESTER)
            reply = self.run(self.room.bookie.write_lac(ledger_id, KEY, packet))
            assert reply.status is (FENCED if ledger.fenced or ledger.deleted else OK)
            if reply.status is OK:
                self.accepted(confirming(ledger_id, lac), durable=False)
        packet = self.run(self.room.engine.load(ledger_id)).lac_packet
        known = lac_packet_ids(packet).last_add_confirmed if packet else NO_ENTRY - 1
        assert known == self.ledger(ledger_id).lac
        if force:
            assert self.run(self.room.bookie.force(ledger_id)).status is OK
            self.synced()
        if kill:
            self.crash(power=False, kept=0)

    @rule(ledger_id=ledgers)
    def wrong_key(self, ledger_id: int) -> None:
        """Changes nothing."""
        if not self.ledger(ledger_id).entries:
            return
        entries = batch(ledger_id, [SPAN - 1])
        reply = self.run(self.answered(add_command(entries, key=OTHER_KEY)))
        assert reply.status is Status.UNAUTHORIZED
        fenced = self.run(self.room.bookie.fence(ledger_id, OTHER_KEY))
        assert fenced.status is Status.UNAUTHORIZED

    @rule(ledger_id=ledgers, indexed=st.booleans(), kill=st.booleans())
    def delete(self, ledger_id: int, indexed: bool, kill: bool) -> None:
        """The ledger is gone in the metadata; what the index has of it goes with a checkpoint."""
        if indexed:
            self.checkpoint()

        async def delete() -> Reply:
            state = await self.room.engine.load(ledger_id)
            now = self.machine.clock.now_ms()
            return await self.room.engine.delete(state, now)

        assert self.run(delete()).status is OK
        self.accepted(deleting(ledger_id))
        if kill:
            self.crash(power=False, kept=0)
        if indexed:
            self.checkpoint()

    @rule(ledger_id=ledgers, in_limbo=st.booleans(), kill=st.booleans())
    def limbo(self, ledger_id: int, in_limbo: bool, kill: bool) -> None:
        """Doubt about a ledger begins or ends."""

        async def limbo() -> Reply:
            state = await self.room.engine.load(ledger_id)
            return await self.room.engine.set_limbo(state, in_limbo=in_limbo)

        assert self.run(limbo()).status is OK
        self.accepted(limboing(ledger_id, in_limbo))
        if kill:
            self.crash(power=False, kept=0)

    @rule(ledger_id=ledgers, ids=id_lists, cut=st.booleans())
    def force(self, ledger_id: int, ids: list[int], cut: bool) -> None:
        """Everything so far becomes durable, and is there if the power goes at once."""
        self.add(ledger_id, ids, 0, 20, recovery=False, deferred=True, cut=False)
        assert self.run(self.room.bookie.force(1)).status is OK
        self.synced()
        if cut:
            self.go_on_with(self.machine.without_power(self.name()), [])

    @rule(ledger_id=ledgers, first=st.integers(0, SPAN - 1), count=st.integers(1, SPAN))
    def read(self, ledger_id: int, first: int, count: int) -> None:
        """A range, up to its first hole."""
        reply: ReadReply = self.run(
            self.room.bookie.read(read_command(ledger_id, first, first + count - 1))
        )
        ledger = self.ledger(ledger_id)
        run: list[int] = []
        while len(run) < count and first + len(run) in ledger.entries:
            run.append(first + len(run))
        assert ids_of(reply) == run
        unknown = Status.UNKNOWN_LEDGER_STATE
        if ledger_id not in self.model or ledger.deleted:
            assert reply.status is (unknown if ledger.limbo else Status.NO_SUCH_LEDGER)
        elif len(run) < count:
            assert reply.stopped_by is (unknown if ledger.limbo else Status.NO_SUCH_ENTRY)
            assert reply.next_entry_id == first + len(run)
        else:
            assert (reply.status, reply.stopped_by) == (OK, OK)

    # --- what happens to the bookie ------------------------------------------------------

    @rule()
    def checkpoint(self) -> None:
        """Everything goes into the index, and what was deleted out of it."""
        self.run(self.room.engine.checkpoint())
        self.synced()
        # Not only after the whole rule: a compaction waits until such pages are gone.
        self.live_bytes_are_sane()

    @rule()
    def compact(self) -> None:
        """Live entries move, dead ones go; a checkpoint comes first."""
        self.checkpoint()
        self.run(self.room.engine.compactor.round(force=True))

    @rule(power=st.booleans(), step=st.integers(0, 5))
    def crash_in_a_compaction(self, power: bool, step: int) -> None:
        """Killed, or without power, at one of its steps, if it has anything to do."""
        self.checkpoint()
        copies: list[Machine] = []

        def passed(name: str) -> None:
            if name == COMPACTION_POINTS[step] and not copies:
                make = self.machine.without_power if power else self.machine.killed
                copies.append(make(self.name()))

        self.passed = passed
        self.run(self.room.engine.compactor.round(force=True))
        self.passed = ignore
        self.synced()
        if copies:
            self.go_on_with(copies[0], [])

    @rule()
    def lose_the_index(self) -> None:
        """It is rebuilt from the files; what was only deleted may be back, and goes again."""
        self.synced()
        self.stop()
        (self.machine.index / "data.mdb").unlink()
        self.start()
        assert self.room.engine.report.rebuilt
        found = self.run(observe(self.room))
        for ledger_id, ledger in self.model.items():
            if ledger.entries:
                assert found[ledger_id].entries == ledger.entries
                assert not found[ledger_id].deleted
        # Facts that stood only in dead files are forgotten; a rebuild puts open ledgers in limbo.
        self.model = found
        self.synced()

    @rule()
    def restart(self) -> None:
        """Stopped in order: everything stays, durable or not."""
        self.synced()
        self.go_on_with(self.machine, [])
        assert self.room.engine.report.clean
        assert self.room.engine.report.entries == 0

    @rule(power=st.booleans(), kept=st.integers(0, 255))
    def crash(self, power: bool, kept: int) -> None:
        """Killed, which keeps everything that was written; or a power cut."""
        self.settle()
        if power:
            self.go_on_with(self.machine.without_power(self.name(), kept), list(self.pending))
        else:
            self.go_on_with(self.machine.killed(self.name()), self.written())

    @rule(
        power=st.booleans(),
        call=st.sampled_from(["pwritev", "fdatasync"]),
        requests=st.lists(st.tuples(ledgers, id_lists, sizes), min_size=1, max_size=4),
        fenced=st.one_of(st.none(), ledgers),
        kept=st.integers(0, 255),
    )
    def crash_with_requests_in_flight(
        self,
        power: bool,
        call: str,
        requests: list[tuple[int, list[int], int]],
        fenced: int | None,
        kept: int,
    ) -> None:
        """The journal thread dies before a write or a sync, with requests in its queue."""
        self.settle()
        candidates = list(self.pending)

        async def start() -> Hold:
            for ledger_id in LEDGERS:
                await self.room.engine.load(ledger_id)
            hold = self.machine.disk.hold(call, ".journal")
            accepted = deepcopy(self.model)
            for number, (ledger_id, ids, size) in enumerate(requests):
                ledger = accepted.setdefault(ledger_id, Ledger())
                entries = batch(ledger_id, ids, size=size, salt=7)
                # Recovery adds, because their acceptance depends on nothing but the deletion.
                self.room.bookie.add(add_command(entries, recovery=True))
                if not ledger.deleted:
                    candidates.append(adding(ledger_id, ids, 7, size))
                if number == 0 and fenced is not None and not self.ledger(fenced).deleted:
                    state = await self.room.engine.load(fenced)
                    self.room.engine.fence(state, KEY)
                    candidates.append(fencing(fenced))
            if any(not self.ledger(request[0]).deleted for request in requests):
                await asyncio.to_thread(hold.wait_reached)
            return hold

        hold = self.run(start())
        name = self.name()
        machine = self.machine.without_power(name, kept) if power else self.machine.killed(name)
        hold.release()
        if not power:
            # Requests answered before were written before, except for postponed ones.
            candidates = self.written() + candidates[len(self.pending) :]
        self.go_on_with(machine, candidates)

    @rule(ledger_id=ledgers, ids=id_lists)
    def crash_in_a_checkpoint(self, ledger_id: int, ids: list[int]) -> None:
        """Killed before the commit, with adds behind the barrier; or the commit goes through."""
        self.settle()
        gate = self.machine.store.gate = Hold("commit", "")
        expected = self.expected_add(ledger_id, ids, 0, 20, recovery=False)

        async def in_between() -> Machine:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.room.engine.checkpoint())
                try:
                    await asyncio.to_thread(gate.wait_reached)
                    command = add_command(batch(ledger_id, ids, size=20))
                    assert (await self.answered(command)).status is expected
                    return self.machine.killed(self.name())
                finally:
                    gate.release()

        killed = self.run(in_between())
        self.machine.store.gate = None
        if expected is OK:
            self.accepted(adding(ledger_id, ids, 0, 20))
        self.synced()
        self.go_on_with(killed, [])

    @rule(ledger_id=ledgers, ids=id_lists)
    def crash_after_adds_behind_a_barrier(self, ledger_id: int, ids: list[int]) -> None:
        """Requests behind a checkpoint's barrier are safe outside the index."""
        self.settle()
        deleted = self.ledger(ledger_id).deleted

        async def behind() -> None:
            await self.room.engine.load(ledger_id)
            # Recovery adds: nothing but a deletion refuses them.
            before = batch(ledger_id, ids, size=20, salt=8)
            later = batch(ledger_id, ids, size=20, salt=9)
            hold = self.machine.disk.hold("fdatasync", ".journal")
            async with asyncio.TaskGroup() as tasks:
                try:
                    first = self.room.bookie.add(add_command(before, recovery=True))
                    if not deleted:
                        await asyncio.to_thread(hold.wait_reached)
                    tasks.create_task(self.room.engine.checkpoint())
                    await until(lambda: self.room.engine._checkpointer._immutable)
                    second = self.room.bookie.add(add_command(later, recovery=True))
                finally:
                    hold.release()
            assert (await first).status is (FENCED if deleted else OK)
            assert (await second).status is (FENCED if deleted else OK)

        self.run(behind())
        if not deleted:
            self.accepted(adding(ledger_id, ids, 9, 20))
        self.synced()
        self.go_on_with(self.machine.killed(self.name()), [])

    @rule()
    def look_at_everything(self) -> None:
        """The bookie is the model."""
        assert self.run(observe(self.room)) == self.model

    @invariant()
    def live_bytes_are_sane(self) -> None:
        """They are what the ledgers of the index hold, and nothing was found to be wrong."""
        if self.serving is not None:
            assert not self.serving.done()
            index = self.room.engine._booted.index
            live = [row.live_bytes for row in index.files().values()]
            assert all(size >= 0 for size in live)
            rows = [index.ledger(ledger_id) for ledger_id in LEDGERS]
            assert sum(live) == sum(row.payload_bytes for row in rows if row is not None)


TestBookie = pytest.mark.timeout(3600)(BookieModel.TestCase)
TestBookie.settings = settings(
    max_examples=max(EXAMPLES, settings().max_examples), stateful_step_count=STEPS, deadline=None
)
