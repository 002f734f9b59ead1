"""Clients of the simulated world: each carries out the effects of one machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import assert_never

from bookie.entry.batch import EntryBatch
from bookie.entry.entry import Entry, pack_batch, parse_header, verify_batch
from bookie.errors import BookieError, LedgerFencedError
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.exchange import (
    CancelTimer,
    ChooseNewcomers,
    NewcomersChosen,
    ReadMetadata,
    StartTimer,
    TimerFired,
    WriteMetadata,
)
from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.place import ANYWHERE
from bookie.ledger.quorum import slots_of
from bookie.ledger.read import reader
from bookie.ledger.read.reader import LedgerRead
from bookie.ledger.recover import recovery_events
from bookie.ledger.recover.recovery import LedgerRecovery
from bookie.ledger.striping import select
from bookie.ledger.write import writer_events
from bookie.ledger.write.pending import WriterLimits
from bookie.ledger.write.writer import LedgerWriter
from tests.property.ledger.protocol_world import (
    DIGESTER,
    LEDGER_ID,
    Call,
    MetadataAnswer,
    ReadResult,
    SimBookie,
    Stream,
    World,
    batch_of,
    require,
)

Packets = list[tuple[int, bytes]]


def packets_of(batch: EntryBatch) -> Packets:
    """Id and bytes of each packet."""
    pairs = zip(batch.entry_ids().tolist(), batch.packets(), strict=True)
    return [(entry_id, bytes(packet)) for entry_id, packet in pairs]


def adder(stream: Stream, packets: Packets, *, deferred: bool) -> Callable[[], Status]:
    """A request to store packets, as it travels."""
    return lambda: stream.bookie.add(
        packets, recovery=False, deferred=deferred, incarnation=stream.incarnation
    )


class SimWriter:
    """The ledger's writer; it may crash at any step."""

    def __init__(
        self,
        world: World,
        machine: type[LedgerWriter] = LedgerWriter,
        *,
        deferred_sync: bool = False,
        limits: WriterLimits | None = None,
    ) -> None:
        self.world = world
        self.deferred_sync = deferred_sync
        limits = limits or WriterLimits(
            in_flight_bytes_max=120, eager_batches_max=3, in_flight_batches_max=8
        )
        metadata, version = world.store.metadata, world.store.version
        self.machine = machine(metadata, version, limits, deferred_sync=deferred_sync)
        self.crashed = False
        self.kept: dict[int, EntryBatch] = {}
        self.confirmed = -1
        self.failed: BookieError | None = None
        self.closed: LedgerMetadata | None = None
        self.close_error: BookieError | None = None
        self._payloads: list[bytes] = []
        self.told_lost: set[tuple[str, int]] = set()
        """Bookies and their incarnations that are known to have lost data."""
        self.streams = [
            self._open(slot, name) for slot, name in enumerate(metadata.last_fragment.bookies)
        ]
        self.left: list[Stream] = []
        """The streams to bookies that were replaced."""

    def _open(self, slot: int, bookie_id: str) -> Stream:
        joined = self.machine.epochs[slot]

        def on_answer(answer: object) -> None:
            match answer:
                case "connected":
                    self.step(writer_events.SlotConnected(slot, joined))
                case "disconnected":
                    self.step(writer_events.SlotDisconnected(slot, joined))
                case "lost":
                    if joined == self.machine.epochs[slot]:
                        self.told_lost.add((bookie_id, stream.incarnation))
                    self.step(writer_events.SlotLost(slot, joined))
                case (Status() as status, (int() as number, int() as epoch)):
                    seconds = 2.0 if status is Status.TOO_MANY_REQUESTS else 0.0
                    if number < 0:
                        self.step(writer_events.LacAnswered(slot, epoch, status, "", seconds))
                    else:
                        answer = writer_events.AddAnswered(number, slot, epoch, status, "", seconds)
                        self.step(answer)
                case _:
                    raise AssertionError(answer)

        stream = self.world.open_stream(bookie_id, on_answer)
        return stream

    def append(self) -> None:
        """Append a few entries, when the machine takes them."""
        rng = self.world.rng
        full = rng.random() < 0.5
        if self.crashed or not self.machine.may_append(full=full):
            return
        count = rng.choice([1, 1, 1, 2, 3, 6])
        first = self.machine.window.next_entry_id
        self._payloads = [
            b"%d:%d" % (entry_id, rng.randrange(1 << rng.randrange(40)))
            for entry_id in range(first, first + count)
        ]
        for entry_id, payload in enumerate(self._payloads, first):
            self.world.payloads[entry_id] = payload
        self.step(writer_events.Append(count, sum(map(len, self._payloads))))

    def step(self, event: writer_events.WriterEvent) -> None:
        """Feed the machine and carry out what it asks for."""
        if self.crashed:
            return
        for effect in self.machine.step(event):
            self._carry_out(effect)

    def _carry_out(  # noqa: PLR0912  (one row an effect)
        self, effect: writer_events.WriterEffect
    ) -> None:
        world = self.world
        match effect:
            case writer_events.SendBatch(number, first, count, lac, length, slots):
                assert count == len(self._payloads)
                batch = pack_batch(LEDGER_ID, first, lac, length, self._payloads, DIGESTER)
                self.kept[number] = batch
                for slot in slots_of(slots):
                    self._send(number, slot)
            case writer_events.Resend(number, slot):
                self._send(number, slot)
            case writer_events.Confirmed(number):
                self._on_confirmed(number)
            case writer_events.Release(number):
                del self.kept[number]
            case writer_events.SendLac(lac, slots):
                for slot in slots_of(slots):
                    self._send_lac(lac, slot)
            case writer_events.SendForce(number, slots):
                for slot in slots_of(slots):
                    self._send_force(number, slot)
            case writer_events.Failed(error):
                self.failed = error
                require(
                    not isinstance(error, LedgerFencedError)
                    or world.store.metadata.state is not LedgerState.OPEN,
                    "a writer gave up as fenced, and nobody had taken the ledger",
                )
            case writer_events.WriterClosed(metadata):
                self.closed = metadata
            case writer_events.CloseFailed(error):
                self.close_error = error
            case StartTimer(timer):
                world.timers[self, timer] = lambda: self.step(TimerFired(timer))
            case CancelTimer(timer):
                world.timers.pop((self, timer), None)
            case ReadMetadata():
                world.metadata_call(world.store.read, self.step)
            case WriteMetadata(metadata, version):
                world.write_metadata(metadata, version, self.step)
            case ChooseNewcomers(bookies, slots):
                self._choose(bookies, slots)
            case writer_events.ReplaceBookies(bookies):
                for slot, bookie_id in bookies.items():
                    self.left.append(self.streams[slot])
                    self.streams[slot] = self._open(slot, bookie_id)
            case writer_events.ForceDone():
                self._note_lac()
            case _:
                assert_never(effect)

    def _choose(self, ensemble: tuple[str, ...], slots: int) -> None:
        """Any bookies outside the ensemble, and those that lost their data once more."""
        world, rng = self.world, self.world.rng

        def serve() -> dict[int, str]:
            spares = [name for name in world.bookies if name not in ensemble]
            chosen: dict[int, str] = {}
            for slot in slots_of(slots):
                stream = self.streams[slot]
                if stream.incarnation != stream.bookie.incarnation and rng.random() < 0.5:
                    chosen[slot] = stream.bookie.bookie_id
                elif spares and rng.random() < 0.8:
                    chosen[slot] = spares.pop(rng.randrange(len(spares)))
            return chosen

        def reply(result: object) -> None:
            self.step(NewcomersChosen(result if isinstance(result, dict) else {}))

        world.calls.append(Call(serve, reply))

    def _send(self, number: int, slot: int) -> None:
        stream = self.streams[slot]
        require(stream.is_open, "nothing is sent on a broken stream")
        part = select(self.kept[number], self.machine.quorum.stripe_of(slot))
        assert part is not None
        serve = adder(stream, packets_of(part), deferred=self.deferred_sync)
        stream.requests.append((serve, (number, self.machine.epochs[slot])))

    def _send_lac(self, lac: int, slot: int) -> None:
        stream = self.streams[slot]
        tag = (-1, self.machine.epochs[slot])
        stream.requests.append((lambda: stream.bookie.write_lac(lac), tag))

    def _send_force(self, number: int, slot: int) -> None:
        def on_result(status: object) -> None:
            answer = status if isinstance(status, Status) else Status.IO_ERROR
            self.step(writer_events.ForceAnswered(number, slot, answer))

        name = self.machine.metadata.last_fragment.bookies[slot]
        self.world.call(name, SimBookie.force, on_result)

    def _on_confirmed(self, number: int) -> None:
        require(self.failed is None, "T2: nothing is acknowledged after the writer has failed")
        require(number == self.confirmed + 1, "T1: batches are acknowledged in order")
        self.confirmed = number
        self._check_durable(self.kept[number])
        self._note_lac()

    def _check_durable(self, batch: EntryBatch) -> None:
        """An acknowledged entry is on an ack quorum of the bookies that metadata names (I3)."""
        for metadata in self.world.possible_metadata():
            self._check_durable_in(metadata, batch)

    def _check_durable_in(self, metadata: LedgerMetadata, batch: EntryBatch) -> None:
        world = self.world
        for entry_id in batch.entry_ids().tolist():
            bookies = metadata.fragment_of(entry_id).bookies
            holders = [
                slot
                for slot in world.quorum.write_set(entry_id)
                if self._may_count_on(world.bookies[bookies[slot]], entry_id)
            ]
            require(
                self.deferred_sync or len(holders) >= world.quorum.ack_quorum_size,
                f"I3: entry {entry_id} was acknowledged with {len(holders)} copies",
            )
            require(
                self.deferred_sync
                or metadata.state is not LedgerState.CLOSED
                or entry_id <= metadata.last_entry_id,
                f"C6: entry {entry_id} was acknowledged after the ledger was closed before it",
            )

    def _may_count_on(self, bookie: SimBookie, entry_id: int) -> bool:
        """True if the bookie has the entry, or lost it so late that the writer cannot know."""
        if entry_id in bookie.entries:
            return True
        # At most one incarnation before the present one had it.
        was_told = (bookie.bookie_id, bookie.incarnation - 1) in self.told_lost
        return entry_id in bookie.destroyed and not was_told

    def _note_lac(self) -> None:
        lac = self.machine.last_add_confirmed
        require(lac >= self.world.acknowledged, "the LAC of a writer never moves back")
        self.world.acknowledged = lac

    def crash(self) -> None:
        """Vanish; what is on its way may still arrive."""
        self.crashed = True
        for stream in [*self.streams, *self.left]:
            self.world.break_stream(stream)
            self.world.streams.remove(stream)
        for key in [key for key in self.world.timers if key[0] is self]:
            del self.world.timers[key]


class SimRecoverer:
    """A client that recovers the ledger; it crashes before it carries out effect `effects_max`."""

    def __init__(
        self,
        world: World,
        machine: type[LedgerRecovery] = LedgerRecovery,
        effects_max: float = math.inf,
    ) -> None:
        self.world = world
        self.effects_left = effects_max
        self.machine = machine(world.store.metadata, world.store.version)
        self.crashed = False
        self.recovered: LedgerMetadata | None = None
        self.failed: BookieError | None = None
        self.incarnations = {name: bookie.incarnation for name, bookie in world.bookies.items()}
        """From the store; of a newcomer, at the time of its choice."""
        self.failing: set[str] = set()
        self.newcomers = 0
        self.step(recovery_events.Start())

    def step(self, event: recovery_events.RecoveryEvent) -> None:
        """Feed the machine and carry out what it asks for."""
        if self.crashed:
            return
        for effect in self.machine.step(event):
            self.effects_left -= 1
            if self.effects_left < 0:
                self.crash()
                return
            self._carry_out(effect)

    def _carry_out(self, effect: recovery_events.RecoveryEffect) -> None:
        world = self.world
        match effect:
            case recovery_events.SendFence():
                self._send_fence(effect)
            case recovery_events.SendRecoveryRead():
                self._send_read(effect)
            case recovery_events.SendAdd():
                self._send_add(effect)
            case ChooseNewcomers():
                self._choose(effect)
            case recovery_events.PublishNewcomers():
                world.metadata_call(lambda: self._publish(effect), self.step)
            case recovery_events.Recovered(metadata):
                self.recovered = metadata
                stored = world.store.metadata
                require(metadata == stored, "C7: the outcome of a recovery is what is stored")
            case recovery_events.RecoveryFailed(error):
                self.failed = error
            case StartTimer(timer):
                world.timers[self, timer] = lambda: self.step(TimerFired(timer))
            case ReadMetadata():
                world.metadata_call(world.store.read, self.step)
            case WriteMetadata(metadata, version):
                world.write_metadata(metadata, version, self.step)
            case _:
                assert_never(effect)

    def _send_fence(self, effect: recovery_events.SendFence) -> None:
        def on_result(result: object) -> None:
            answer = recovery_events.FenceAnswered(effect.round, effect.slot, Status.IO_ERROR)
            if isinstance(result, tuple):
                status, packet, lac = result
                last, length = NO_ENTRY, 0
                if packet is not None:
                    header = parse_header(packet)
                    lac = max(lac, header.last_add_confirmed)
                    last, length = header.entry_id, header.length
                answer = recovery_events.FenceAnswered(
                    effect.round, effect.slot, status, lac, last, length
                )
            self.step(answer)

        self.world.call(effect.bookie_id, SimBookie.fence, on_result)

    def _send_read(self, effect: recovery_events.SendRecoveryRead) -> None:
        limit = self.world.rng.choice([1, 2, 50])

        def serve(bookie: SimBookie) -> ReadResult:
            return bookie.read(
                effect.first_entry_id,
                effect.last_entry_id,
                effect.stripe,
                limit,
                fence=effect.fence,
            )

        def on_result(result: object) -> None:
            answer = recovery_events.RecoveryReadAnswered(
                effect.round, effect.slot, Status.IO_ERROR
            )
            if isinstance(result, ReadResult):
                answer = recovery_events.RecoveryReadAnswered(
                    effect.round,
                    effect.slot,
                    result.status,
                    batch_of(result.packets) if result.packets else None,
                    result.next_entry_id,
                    result.stopped_by,
                )
            self.step(answer)

        self.world.call(effect.bookie_id, serve, on_result)

    def _send_add(self, effect: recovery_events.SendAdd) -> None:
        packets = packets_of(effect.batch)

        incarnation = self.incarnations[effect.bookie_id]

        def serve(bookie: SimBookie) -> Status:
            return bookie.add(packets, recovery=True, deferred=False, incarnation=incarnation)

        def on_result(result: object) -> None:
            status = result if isinstance(result, Status) else Status.IO_ERROR
            if status is not Status.OK:
                self.failing.add(effect.bookie_id)
            self.step(recovery_events.RecoveryAddAnswered(effect.round, effect.slot, status))

        self.world.call(effect.bookie_id, serve, on_result)

    def _choose(self, effect: ChooseNewcomers) -> None:
        """Choose, and hear of it later."""
        world = self.world
        chosen: dict[int, str] = {}

        def serve() -> object:
            slots = list(slots_of(effect.slots))
            candidates = world.bookies.keys() - self.failing
            chosen.update(
                ANYWHERE.newcomers(effect.bookies, slots, candidates, pick=world.rng.randrange)
            )
            for name in chosen.values():
                self.incarnations[name] = world.bookies[name].incarnation
            return chosen

        def on_result(_result: object) -> None:
            self.newcomers += len(chosen)
            self.step(NewcomersChosen(chosen))

        world.calls.append(Call(serve, on_result))

    def _publish(
        self, effect: recovery_events.PublishNewcomers
    ) -> MetadataAnswer | recovery_events.NewcomersLost:
        lost = [
            name
            for name in effect.newcomers
            if self.world.bookies[name].incarnation != self.incarnations[name]
        ]
        if lost:
            return recovery_events.NewcomersLost(tuple(lost))
        return self.world.store.write(effect.metadata, effect.version)

    def crash(self) -> None:
        """Vanish."""
        self.crashed = True
        for key in [key for key in self.world.timers if key[0] is self]:
            del self.world.timers[key]


def read_range(world: World, first: int, last: int) -> Sequence[Entry]:
    """Read confirmed entries through the read machine, from bookies that all answer."""
    machine = LedgerRead(
        world.store.metadata, first, last, replica=world.rng.randrange(world.quorum.ensemble_size)
    )
    entries: list[Entry] = []
    todo: list[reader.ReaderEffect] = list(machine.step(reader.Continue()))
    while todo:
        effect = todo.pop(world.rng.randrange(len(todo)))
        match effect:
            case reader.SendRead(request, bookie_id, start, end, stripe):
                limit = world.rng.choice([1, 3, 50])
                bookie = world.bookies[bookie_id]
                result = bookie.read(start, end, stripe, limit, fence=False)
                if bookie.gone:
                    result = ReadResult(Status.IO_ERROR)
                batch = batch_of(result.packets) if result.packets else None
                answer = reader.ReadAnswered(
                    request,
                    result.status,
                    batch,
                    verify_batch(batch, DIGESTER) if batch else (),
                    result.next_entry_id,
                    result.stopped_by,
                )
                todo += machine.step(answer)
            case reader.Deliver(delivered):
                entries += delivered
                todo += machine.step(reader.Continue())
            case reader.ReadFailed(error):
                raise error
            case StartTimer(timer):
                if world.rng.random() < 0.1:
                    todo += machine.step(TimerFired(timer))
            case reader.ReadDone() | CancelTimer():
                pass
            case _:
                assert_never(effect)
    return entries


__all__ = ["MetadataAnswer", "SimRecoverer", "SimWriter", "read_range"]
