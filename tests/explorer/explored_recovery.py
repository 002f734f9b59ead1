"""The recoverers of the explorer: each carries out what its machine asks for, by calls."""

from __future__ import annotations

from bookie.ids import NO_ENTRY, Status
from bookie.ledger.exchange import ChooseNewcomers, ReadMetadata, StartTimer, WriteMetadata
from bookie.ledger.recover import recovery_events
from bookie.ledger.recover.recovery import RecoveryState
from tests.explorer.explored_base import Recoverer, Surroundings
from tests.explorer.explored_machines import (
    PAYLOAD_BYTES,
    Body,
    batch_of,
    bodies_of,
)
from tests.explorer.explored_world import (
    Bookie,
    Call,
    Write,
    Zombie,
    add,
)
from tests.property.ledger.protocol_world import require


class RecoverySide(Surroundings):
    """Calls to bookies, and what recoverers do."""

    def _do_recover(self) -> None:
        self.started += 1
        machine = self.scope.recovery(self.store.metadata, self.store.version)
        incarnations = {name: bookie.incarnation for name, bookie in self.bookies.items()}
        self.recoverers[self.started] = Recoverer(machine, incarnations)
        self._step_recoverer(self.started, recovery_events.Start())

    def _do_crash(self, client: int) -> None:
        self.budget["crash"] -= 1
        operation = self.operations.pop(client, None)
        if operation is not None and operation.write and operation.answer is None:
            self.late.append(operation.write)
        self._dismiss(client)

    def _dismiss(self, client: int) -> None:
        """The recoverer has ended, or vanished."""
        self._abandon([call for call in self.calls if call.client == client])
        self.timers = frozenset(pair for pair in self.timers if pair[0] != client)
        self.choices.pop(client, None)
        del self.recoverers[client]

    def _abandon(self, calls: list[Call]) -> None:
        for call in calls:
            self.calls.remove(call)
            if call.kind == "add":
                self.zombies.append(Zombie("re-add", call.bookie, call.incarnation, call.bodies))
            elif call.fence:
                self.zombies.append(Zombie("fence", call.bookie, 0))

    def _step_recoverer(self, client: int, event: recovery_events.RecoveryEvent) -> None:
        self.recoverers[client] = recoverer = self.recoverers[client].copy()
        machine = recoverer.machine
        effects = machine.step(event)
        for effect in effects:
            self._carry_out_for(client, recoverer, effect)
        if machine.state in (RecoveryState.DONE, RecoveryState.FAILED):
            self.notes.append(f"recovery {machine.state.value}")
            self._dismiss(client)
            return
        self._abandon(
            [
                call
                for call in self.calls
                if call.client == client
                and (call.round != machine.round or not machine.waiting >> call.slot & 1)
            ]
        )

    def _carry_out_for(
        self, client: int, recoverer: Recoverer, effect: recovery_events.RecoveryEffect
    ) -> None:
        incarnations = recoverer.incarnations
        match effect:
            case recovery_events.SendFence(number, slot, name):
                self.calls.append(Call(client, "fence", number, slot, name, fence=True))
            case recovery_events.SendRecoveryRead(number, slot, name, first, last, _, fence):
                call = Call(client, "read", number, slot, name, 0, (), first, last, fence)
                self.calls.append(call)
            case recovery_events.SendAdd(number, slot, name, batch):
                self.notes.append("entry stored again")
                bodies = bodies_of(batch)
                self.calls.append(
                    Call(client, "add", number, slot, name, incarnations[name], bodies)
                )
            case recovery_events.Recovered(metadata):
                require(self._is_stored(metadata), "C7: what recovery says is stored")
            case ChooseNewcomers():
                self.choices[client] = effect
            case recovery_events.PublishNewcomers(metadata, version, names):
                expected = tuple((name, incarnations[name]) for name in names)
                self._operate(client, Write(client, metadata, version, expected))
            case WriteMetadata(metadata, version):
                self._operate(client, Write(client, metadata, version))
            case ReadMetadata():
                self._operate(client, None)
            case StartTimer(timer):
                self.timers |= {(client, timer)}
            case _:
                pass

    def _do_call(self, call: Call) -> None:
        self.calls.remove(call)
        bookie = self.bookies[call.bookie]
        match call.kind:
            case "fence":
                bookie = bookie._replace(fenced=True)
                answer: recovery_events.RecoveryEvent = self._fence_answer(call, bookie)
            case "read":
                bookie, answer = self._read_answer(call, bookie)
            case _:
                bookie, status = add(
                    bookie, call.bodies, call.incarnation, self.acknowledged, recovery=True
                )
                if status is not Status.OK:
                    self._note_failing(call)
                answer = recovery_events.RecoveryAddAnswered(call.round, call.slot, status)
        self.bookies[call.bookie] = bookie
        self._step_recoverer(call.client, answer)

    def _note_failing(self, call: Call) -> None:
        self.recoverers[call.client] = recoverer = self.recoverers[call.client].copy()
        recoverer.failing |= {call.bookie}

    def _fence_answer(self, call: Call, bookie: Bookie) -> recovery_events.FenceAnswered:
        if bookie.is_in_doubt:
            self.notes.append("fence answered in limbo")
            status = Status.UNKNOWN_LEDGER_STATE
            return recovery_events.FenceAnswered(call.round, call.slot, status)
        last, length, lac = NO_ENTRY, 0, bookie.lac
        if bookie.entries:
            last, carried = bookie.entries[-1]
            length, lac = (last + 1) * PAYLOAD_BYTES, max(lac, carried)
        return recovery_events.FenceAnswered(call.round, call.slot, Status.OK, lac, last, length)

    def _read_answer(
        self, call: Call, bookie: Bookie
    ) -> tuple[Bookie, recovery_events.RecoveryReadAnswered]:
        stripe = self.quorum.stripe_of(call.slot) if call.first != call.last else None
        found: list[Body] = []
        entry_id = stripe.next_id(call.first) if stripe else call.first
        most = 1 if self.scope.short_reads else self.scope.entries
        while entry_id <= call.last and len(found) < most:
            body = bookie.body(entry_id)
            if body is None:
                break
            found.append(body)
            entry_id = stripe.next_id(entry_id + 1) if stripe else entry_id + 1
        stopped_by = Status.OK
        if entry_id <= call.last and bookie.body(entry_id) is None:
            stopped_by = Status.UNKNOWN_LEDGER_STATE if bookie.is_in_doubt else Status.NO_SUCH_ENTRY
        if call.fence:
            bookie = bookie._replace(fenced=True)
            if stopped_by is Status.NO_SUCH_ENTRY:
                denied = tuple(sorted({*bookie.denied, entry_id}))
                bookie = bookie._replace(denied=denied)
        answered = recovery_events.RecoveryReadAnswered
        if not found:
            return bookie, answered(call.round, call.slot, stopped_by)
        batch = batch_of(tuple(found))
        return bookie, answered(call.round, call.slot, Status.OK, batch, entry_id, stopped_by)

    def _do_drop(self, call: Call) -> None:
        self.budget["drop"] -= 1
        self._abandon([call])
        status = Status.IO_ERROR
        match call.kind:
            case "fence":
                event: recovery_events.RecoveryEvent = recovery_events.FenceAnswered(
                    call.round, call.slot, status
                )
            case "read":
                event = recovery_events.RecoveryReadAnswered(call.round, call.slot, status)
            case _:
                self._note_failing(call)
                event = recovery_events.RecoveryAddAnswered(call.round, call.slot, status)
        self._step_recoverer(call.client, event)
