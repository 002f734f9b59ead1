"""The simulated world of the protocol's property tests, without chance.

Everything that is on its way waits in a named place until a script moves it. Places are the
writer's lane to a bookie, a recovery's requests, and the metadata operation of a client.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from bookie.errors import BookieError, ForeignEnsembleError, MetadataUnavailableError
from bookie.ledger.exchange import ChooseNewcomers, MetadataFailed, NewcomersChosen
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.recover import recovery_events
from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.write import writer_events
from bookie.ledger.write.pending import WriterLimits
from bookie.ledger.write.writer import LedgerWriter
from tests.property.ledger.protocol_clients import SimRecoverer, SimWriter
from tests.property.ledger.protocol_faults import Faults
from tests.property.ledger.protocol_world import MetadataAnswer, SimBookie, Stream, World, require
from tests.scenarios.scenario_script import ScenarioFailedError, demand

T = TypeVar("T")
NO_FAULTS = Faults(slow=0.0, fail_metadata=0.0)
KINDS: dict[type, str] = {
    recovery_events.SendFence: "fence",
    recovery_events.SendRecoveryRead: "read",
    recovery_events.SendAdd: "add",
}


@dataclass(frozen=True)
class Machines:
    """What a scenario drives; mutants take the places of the honest ones."""

    writer: type[LedgerWriter] = LedgerWriter
    recovery: type[LedgerRecovery] = LedgerRecovery
    bookie: type[SimBookie] = SimBookie


class NoChance(random.Random):
    """Every draw has one outcome: no fault happens, and reads return all that they can."""

    def random(self) -> float:
        """Above every rate."""
        return 0.99

    def choice(self, seq: Any) -> Any:
        """The last one."""
        return seq[-1]


@dataclass
class Request:
    """What a recovery has asked of a bookie."""

    client: str
    bookie_id: str
    kind: str
    serve: Callable[[], object]
    reply: Callable[[object], None]
    result: object = None


@dataclass
class Operation:
    """What a client has asked of the metadata store."""

    kind: str
    serve: Callable[[], object]
    reply: Callable[[Any], None]
    forget: Callable[[], None]
    """It will never arrive."""


class ScenarioWorld(World):
    """The world of one scenario."""

    def __init__(self, sizes: tuple[int, int, int], spares: list[str], machines: Machines) -> None:
        super().__init__(0, sizes, NO_FAULTS, machines.bookie)
        self.rng = NoChance()
        for name in spares:
            demand(name not in self.bookies, f"{name} stands in the first ensemble")
            self.bookies[name] = machines.bookie(name, self)
        self.machines = machines
        self.speaker = "writer"
        """The client whose machine is at work."""
        self.kind = ""
        self.requests: list[Request] = []
        self.operations: dict[str, Operation] = {}
        """By client."""

    @contextmanager
    def heard(self, client: str) -> Iterator[None]:
        """What is sent meanwhile comes from `client`."""
        before, self.speaker = self.speaker, client
        try:
            yield
        finally:
            self.speaker = before

    def call(
        self,
        bookie_id: str,
        serve: Callable[[SimBookie], object],
        reply: Callable[[object], None],
    ) -> None:
        """Keep a request to a bookie."""
        bookie = self.bookies[bookie_id]

        def arrive() -> object:
            return serve(bookie) if bookie.up else None

        self.requests.append(Request(self.speaker, bookie_id, self.kind, arrive, reply))

    def metadata_call(
        self, serve: Callable[[], T], reply: Callable[[T | MetadataFailed], None]
    ) -> None:
        """Keep a read, or the close of a recovery that names newcomers."""
        kind = "read" if serve == self.store.read else "publish"
        self._ask(Operation(kind, serve, reply, lambda: None))

    def write_metadata(
        self, metadata: LedgerMetadata, version: int, reply: Callable[[MetadataAnswer], None]
    ) -> None:
        """Keep a compare-and-set."""
        self.check_acknowledged(metadata, version)
        write = metadata, version
        self.writes.append(write)

        def arrive() -> MetadataAnswer:
            self.writes.remove(write)
            return self.store.write(metadata, version)

        self._ask(Operation("write", arrive, reply, lambda: self.writes.remove(write)))

    def _ask(self, operation: Operation) -> None:
        busy = self.speaker in self.operations
        require(not busy, f"{self.speaker} has two metadata operations under way")
        self.operations[self.speaker] = operation

    def check(self) -> None:
        """Each acknowledged entry has Qa holders in all that the store may hold now."""
        for metadata in self.possible_metadata():
            self.check_acknowledged(metadata, self.store.version)
            if metadata.state is LedgerState.CLOSED:
                last = metadata.last_entry_id
                require(
                    self.acknowledged <= last,
                    f"C4: entry {self.acknowledged} was acknowledged, and the ledger ends at "
                    f"{last}",
                )
        metadata = self.store.metadata
        for entry_id in range(metadata.last_entry_id + 1):
            names = metadata.fragment_of(entry_id).bookies
            members = [self.bookies[names[slot]] for slot in self.quorum.write_set(entry_id)]
            holders = [b for b in members if entry_id in b.entries or entry_id in b.destroyed]
            enough = len(holders) >= self.quorum.ack_quorum_size
            require(enough, f"I3: the closed ledger names {len(holders)} holders of {entry_id}")


class ScriptedWriter(SimWriter):
    """The writer; the script appends and chooses newcomers."""

    world: ScenarioWorld

    def __init__(self, world: ScenarioWorld, limits: WriterLimits, *, deferred_sync: bool) -> None:
        self.name = "writer"
        self.choice: ChooseNewcomers | None = None
        self.sent: dict[int, list[int]] = {}
        """By batch: its entries."""
        super().__init__(world, world.machines.writer, limits=limits, deferred_sync=deferred_sync)

    @property
    def error(self) -> object:
        """Why it has ended, or could not close."""
        return self.failed or self.close_error

    def step(self, event: writer_events.WriterEvent) -> None:
        """Feed the machine."""
        with self.world.heard(self.name):
            super().step(event)

    def _carry_out(self, effect: writer_events.WriterEffect) -> None:
        match effect:
            case writer_events.Failed(error) if self._is_ousted(error):
                self.failed = error  # random worlds have nobody who would do this
            case _:
                super()._carry_out(effect)

    def _is_ousted(self, error: BookieError) -> bool:
        """Whether the open ledger is not the one that the writer knows."""
        is_another = self.world.store.metadata.c_token != self.machine.metadata.c_token
        return is_another or isinstance(error, ForeignEnsembleError)

    def append_batch(self, count: int) -> None:
        """One batch of so many entries."""
        demand(self.machine.may_append(full=True), "the writer takes no batch now")
        first = self.machine.window.next_entry_id
        self._payloads = [b"e%d" % entry_id for entry_id in range(first, first + count)]
        self.world.payloads.update(enumerate(self._payloads, first))
        self.sent[len(self.sent)] = list(range(first, first + count))
        self.step(writer_events.Append(count, sum(map(len, self._payloads))))

    def _choose(self, ensemble: tuple[str, ...], slots: int) -> None:
        self.choice = ChooseNewcomers(ensemble, slots)

    def take_choice(self, chosen: dict[int, str]) -> None:
        """Newcomers were chosen."""
        self.choice = None
        self.step(NewcomersChosen(chosen))

    def lane(self, bookie_id: str) -> Stream:
        """The stream to a bookie of the ensemble, or to one that left; `b2'` must have left."""
        name = bookie_id.removesuffix("'")
        current = [] if bookie_id.endswith("'") else self.streams
        for stream in [*current, *reversed(self.left)]:
            if stream.bookie.bookie_id == name:
                return stream
        raise ScenarioFailedError(f"the writer has no lane to {bookie_id}")


class ScriptedRecoverer(SimRecoverer):
    """A recovery; the script chooses newcomers."""

    world: ScenarioWorld

    def __init__(self, world: ScenarioWorld, name: str) -> None:
        self.name = name
        self.choice: ChooseNewcomers | None = None
        super().__init__(world, world.machines.recovery)

    @property
    def error(self) -> object:
        """Why it has failed."""
        return self.failed

    def step(self, event: recovery_events.RecoveryEvent) -> None:
        """Feed the machine."""
        with self.world.heard(self.name):
            super().step(event)

    def _carry_out(self, effect: recovery_events.RecoveryEffect) -> None:
        self.world.kind = KINDS.get(type(effect), "")
        super()._carry_out(effect)

    def _choose(self, effect: ChooseNewcomers) -> None:
        self.choice = effect

    def take_choice(self, chosen: dict[int, str]) -> None:
        """Newcomers were chosen."""
        self.choice = None
        for name in chosen.values():
            self.incarnations[name] = self.world.bookies[name].incarnation
        self.step(NewcomersChosen(chosen))


Client = ScriptedWriter | ScriptedRecoverer

NO_ANSWER = MetadataFailed(MetadataUnavailableError("no answer"))
