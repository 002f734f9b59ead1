"""What surrounds the machines in a state of the explorer, and the metadata store."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from bookie.ids import NO_ENTRY
from bookie.ledger.exchange import (
    ChooseNewcomers,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    TimerId,
)
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.recover import recovery_events
from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.write.pending import WriterLimits
from bookie.ledger.write.writer_events import WriterState
from tests.explorer.explored_machines import (
    Body,
    Key,
    Renaming,
    copy_of,
    copy_of_recovery,
    key_of_recovery,
)
from tests.explorer.explored_world import (
    Bookie,
    Call,
    Operation,
    Scope,
    Stream,
    Write,
    Zombie,
    check_closed,
    check_durable,
    first_store,
    written,
)
from tests.property.ledger.protocol_world import require

WRITER = 0
"""The writer among the clients; recoverers count from 1."""

Action = tuple[object, ...]


class Recoverer:
    """A recovery, and what its driver knows."""

    def __init__(self, machine: LedgerRecovery, incarnations: dict[str, int]) -> None:
        self.machine = machine
        self.incarnations = incarnations
        self.failing: frozenset[str] = frozenset()
        self.keys: dict[tuple[int, ...], Key] = {}

    def copy(self) -> Recoverer:
        new = Recoverer(copy_of_recovery(self.machine), self.incarnations)
        new.failing = self.failing
        return new

    def key(self, by: Renaming) -> Key:
        if by.to not in self.keys:
            self.keys[by.to] = (
                *key_of_recovery(self.machine, by),
                tuple(sorted((by.name(name), n) for name, n in self.incarnations.items())),
                tuple(sorted(map(by.name, self.failing))),
            )
        return self.keys[by.to]


class Surroundings:
    """Attributes are replaced, or copied by `copy`, never shared and changed."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.quorum = scope.quorum
        self.store = first_store(scope)
        names = [f"b{number}" for number in range(scope.sizes[0] + scope.spares)]
        self.bookies = {name: Bookie() for name in names}
        self.streams = [Stream(slot, f"b{slot}", 0, 0, is_open=True) for slot in self._slots]
        self.left: list[Stream] = []
        self.calls: list[Call] = []
        self.zombies: list[Zombie] = []
        self.operations: dict[int, Operation] = {}
        self.late: list[Write] = []
        self.timers: frozenset[tuple[int, TimerId]] = frozenset()
        self.choices: dict[int, ChooseNewcomers] = {}
        self.recoverers: dict[int, Recoverer] = {}
        self.started = 0
        self.kept: tuple[Body, ...] = ()
        """By batch: its entry."""
        self.acknowledged = NO_ENTRY
        self.told: frozenset[str] = frozenset()
        """Bookies that lost data as the writer knows."""
        self.used: frozenset[str] = frozenset()
        """Spares that were chosen."""
        self.budget = {
            "break": scope.breaks,
            "drop": scope.drops,
            "silence": scope.silences,
            "timer": scope.timers,
            "wipe": scope.wipes,
            "crash": scope.crashes,
            "copy": scope.copies,
            "limit": scope.limited,
            "close": int(scope.closes),
        }
        self.notes: list[str] = []
        """What came up in the last action."""
        limits = WriterLimits(changes_per_minute_max=scope.changes)
        self.writer = scope.writer(self.store.metadata, self.store.version, limits)
        self.writer_keys: dict[tuple[int, ...], Key] = {}

    @property
    def _slots(self) -> range:
        return range(self.scope.sizes[0])

    def copy(self) -> Self:
        """A state that changes on its own."""
        new = copy_of(self)
        new.bookies, new.budget = dict(self.bookies), dict(self.budget)
        new.streams, new.left = list(self.streams), list(self.left)
        new.calls, new.zombies, new.late = list(self.calls), list(self.zombies), list(self.late)
        new.operations, new.choices = dict(self.operations), dict(self.choices)
        new.recoverers = dict(self.recoverers)
        new.notes = []
        return new

    def check(self) -> None:
        """What must hold of every state."""
        store = self.store
        possible = [store.metadata]
        in_flight = [o.write for o in self.operations.values() if o.write and o.answer is None]
        possible += [
            write.metadata for write in in_flight + self.late if store.holds(write, self.bookies)
        ]
        for entry_id in range(self.acknowledged + 1):
            check_durable(entry_id, self.quorum, self.bookies, possible)
        if store.metadata.state is LedgerState.CLOSED:
            check_closed(self.quorum, self.bookies, store.metadata)

    def _tidy(self) -> None:
        """Forget what cannot have an effect any more."""
        may_wipe = self.budget["wipe"] > 0
        if self.zombies:
            kept = {zombie for zombie in self.zombies if self._matters(zombie, may_wipe=may_wipe)}
            self.zombies = sorted(kept)
        if self.late:  # versions only grow
            self.late = [write for write in self.late if write.version == self.store.version]
        if self.writer.error is not None or self.writer.state is WriterState.CLOSED:
            for stream in self.streams + self.left:
                self.zombies += self._zombies_in(stream)
            self.streams = [
                stream._replace(requests=(), answers=(), is_open=False) for stream in self.streams
            ]
            self.left = []
            self.timers = frozenset(
                (client, timer)
                for client, timer in self.timers
                if client != WRITER or timer[0] == "reread"
            )

    def _matters(self, zombie: Zombie, *, may_wipe: bool) -> bool:
        bookie = self.bookies[zombie.bookie]
        if zombie.kind == "fence":
            return not bookie.fenced or may_wipe
        if zombie.incarnation != bookie.incarnation:
            return False
        if zombie.kind == "lac":
            return not bookie.fenced and zombie.lac > bookie.lac
        if bookie.fenced and zombie.kind == "add":
            return False
        return any(bookie.body(entry_id) is None for entry_id, _ in zombie.bodies)

    def _zombies_in(self, stream: Stream) -> list[Zombie]:
        return [
            Zombie("add", stream.bookie, stream.incarnation, (request.body,))
            if request.body
            else Zombie("lac", stream.bookie, stream.incarnation, (), request.lac)
            for request in stream.requests
        ]

    def leave_behind(
        self, kind: str, bookie: str, incarnation: int, bodies: tuple[Body, ...]
    ) -> None:
        """A request that nobody waits for any more may still arrive."""
        self.zombies.append(Zombie(kind, bookie, incarnation, bodies))

    def _is_stored(self, metadata: LedgerMetadata) -> bool:
        """Whether the store has this end of the ledger; repair may have changed bookies since."""
        store = self.store.metadata
        if self.scope.workers:
            store = replace(store, fragments=metadata.fragments)
        return metadata == store

    def _is_fresh(self, name: str) -> bool:
        return int(name[1:]) >= self.scope.sizes[0] and name not in self.used

    def _operate(self, client: int, write: Write | None) -> None:
        require(client not in self.operations, "one metadata operation at a time")
        self.operations[client] = Operation(write)

    def _do_store(self, client: int) -> None:
        write = self.operations[client].write
        answer: object = MetadataRead(self.store.metadata, self.store.version)
        if write is not None:
            answer = self._write(write)
        self.operations[client] = Operation(write, answer)

    def _write(self, write: Write) -> object:
        lost = [n for n, inc in write.newcomers if self.bookies[n].incarnation != inc]
        if lost:
            return recovery_events.NewcomersLost(tuple(lost))
        if write.version != self.store.version:
            return MetadataConflict()
        before, self.store = self.store.metadata, written(self.store, write.metadata)
        is_writer, after = write.client == WRITER, self.store.metadata
        if is_writer and after.state is LedgerState.OPEN:
            self.notes.append("change by the writer committed")
        elif after.state is LedgerState.CLOSED and not is_writer:
            self.notes.append("closed by recovery")
            if after.fragments != before.fragments:
                self.notes.append("change by recovery committed")
        return MetadataWritten(self.store.version)

    def _do_late(self, number: int) -> None:
        version = self.store.version
        self._write(self.late.pop(number))
        if self.store.version != version:
            self.notes.append("late compare-and-set done")
