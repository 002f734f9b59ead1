"""One state of the explorer: real machines, and everything around them as plain values.

`actions` lists what may happen next, `after` returns the state that follows.

**What is one step.** A bookie serves a recoverer's call and the recoverer hears the answer in one
step. To hear it later would change nothing: all that the recoverer does then is to send, and what
it sends may wait. Only answers that overtake each other are left out; a lost answer stands for one
that comes too late. A writer's add and its answer are two steps, in the order of the stream. So are
a compare-and-set and its answer. The rules concern acknowledgements that are heard after a fence or
a change.

**What is equal.** With one write set for all entries, slots may change places (`Renaming`). A spare
that nobody has used is like any other, so only the first of them is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Self

from bookie.errors import MetadataUnavailableError
from bookie.ledger.exchange import (
    ChooseNewcomers,
    MetadataConflict,
    MetadataFailed,
    NewcomersChosen,
    TimerFired,
    TimerId,
)
from bookie.ledger.quorum import slots_of
from bookie.ledger.recover import recovery_events
from bookie.ledger.write import writer_events
from bookie.ledger.write.writer_events import WriterState
from tests.explorer.explored_base import WRITER, Action
from tests.explorer.explored_recovery import RecoverySide
from tests.explorer.explored_repair import RepairSide
from tests.explorer.explored_world import (
    Scope,
    Zombie,
    add,
    write_lac,
)
from tests.explorer.explored_writer import WriterSide
from tests.property.ledger.protocol_world import require

_FREE_TIMERS = frozenset({"reread", "recheck", "spare", "resend"})
_USUAL = frozenset({"append", "connect", "serve", "hear", "store", "answer", "choose"})
_SILENCE = MetadataFailed(MetadataUnavailableError("no answer"))


class ExploredState(WriterSide, RecoverySide, RepairSide):
    """See the module."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        for slot in self._slots:
            self._step_writer(writer_events.SlotConnected(slot))

    def actions(self) -> Iterator[Action]:  # noqa: PLR0912  (a table)
        """Every action that is possible now."""
        left, writer = self.budget, self.writer
        if writer.window.next_entry_id < self.scope.entries and writer.may_append(full=True):
            yield ("append",)
        for number, stream in enumerate(self.streams + self.left):
            if stream.requests:
                yield "serve", number
                if left["copy"] and stream.requests[0].body:
                    yield "copy", number
                if left["limit"]:
                    yield "limit", number
            if stream.answers:
                yield "hear", number
        if writer.error is None and writer.state is not WriterState.CLOSED:
            for stream in self.streams:
                if not stream.is_open and not stream.is_lost:
                    yield "connect", stream.slot
                elif stream.is_open and left["break"]:
                    yield "break", stream.slot
            if left["close"] and writer.window.next_entry_id == self.scope.entries:
                yield ("close",)
        for call in self.calls:
            yield "call", call
            if left["drop"]:
                yield "drop", call
        for zombie in self.zombies:
            yield "zombie", zombie
        for client, operation in self.operations.items():
            yield ("store" if operation.answer is None else "answer"), client
            if operation.answer is None and left["silence"]:
                yield "silence", client
        for number in range(len(self.late)):
            yield "late", number
        for client, timer in sorted(self.timers):
            if client != WRITER or timer[0] in _FREE_TIMERS or left["timer"]:
                yield "timer", client, timer
        for client, choice in self.choices.items():
            for chosen in self._choices_of(client, choice):
                yield "choose", client, chosen
        if self.started < self.scope.recoverers and self.kept:
            yield ("recover",)
        if left["crash"]:
            for client in self.recoverers:
                yield "crash", client
        if left["wipe"]:
            for name, bookie in self.bookies.items():
                has_state = bool(bookie.entries) or bookie.fenced
                if name in self.scope.wipes_of or (has_state and not self.scope.wipes_of):
                    yield "wipe", name
        if self.scope.workers:
            yield from self.repair_actions()

    def _choices_of(
        self, client: int, choice: ChooseNewcomers
    ) -> list[tuple[tuple[int, str], ...]]:
        spares = [name for name in self.bookies if name not in choice.bookies]
        if client != WRITER:
            spares = [name for name in spares if name not in self.recoverers[client].failing]
        fresh = [name for name in spares if self._is_fresh(name)]
        spares = [name for name in spares if name not in fresh[1:]]
        options: list[tuple[tuple[int, str], ...]] = []
        for slot in slots_of(choice.slots):
            options += [((slot, name),) for name in spares]
            if client == WRITER and self.streams[slot].is_lost:
                options.append(((slot, choice.bookies[slot]),))
        slots = list(slots_of(choice.slots))
        if len(slots) > 1 and len(fresh) > 1:
            options.append(((slots[0], fresh[0]), (slots[1], fresh[1])))
        return options or [()]

    def after(self, action: Action) -> Self:
        """The state that follows; raises `ViolationError` if a rule is broken."""
        new = self.copy()
        getattr(new, f"_do_{action[0]}")(*action[1:])
        if self.scope.workers:
            new.note_reasons(self.store.metadata, action)
        new._tidy()
        new.check()
        return new

    def begun(self) -> Self:
        """The state in which a search begins."""
        match self.scope.begins:
            case "closed":
                state = self._usual().after(("close",))._usual()
                require(state.writer.state is WriterState.CLOSED, "the writer closes")
            case "changed":
                last = f"b{self.scope.sizes[0] - 1}"
                state = self.after(("append",))._usual(but={"append"})
                state = state.after(("wipe", last))._usual(but={"append"})
                require(len(state.store.metadata.fragments) == 2, "the writer changes its ensemble")
            case _:
                return self
        state.budget = self.budget | {"close": state.budget["close"]}
        return state

    def _usual(self, but: Collection[str] = ()) -> Self:
        """The state when all that is usual has happened."""
        state = self
        kinds = _USUAL.difference(but)
        while usual := [action for action in state.actions() if action[0] in kinds]:
            state = state.after(usual[0])
        return state

    def _do_answer(self, client: int) -> None:
        answer = self.operations.pop(client).answer
        if isinstance(answer, MetadataConflict):
            self.notes.append(f"conflict of {'the writer' if client == WRITER else 'recovery'}")
        if isinstance(answer, recovery_events.NewcomersLost):
            self.notes.append("newcomers lost")
        self._step(client, answer)

    def _do_silence(self, client: int) -> None:
        self.budget["silence"] -= 1
        write = self.operations.pop(client).write
        if write is not None:
            self.late.append(write)
        self._step(client, _SILENCE)

    def _step(self, client: int, event: object) -> None:
        if client == WRITER:
            self._step_writer(event)  # type: ignore[arg-type]
        else:
            self._step_recoverer(client, event)  # type: ignore[arg-type]

    def _do_timer(self, client: int, timer: TimerId) -> None:
        if client == WRITER and timer[0] not in _FREE_TIMERS:
            self.budget["timer"] -= 1
        self.timers -= {(client, timer)}
        self._step(client, TimerFired(timer))

    def _do_choose(self, client: int, chosen: tuple[tuple[int, str], ...]) -> None:
        del self.choices[client]
        self.used |= {name for _, name in chosen if self._is_fresh(name)}
        if client != WRITER:
            self.recoverers[client] = recoverer = self.recoverers[client].copy()
            now = {name: self.bookies[name].incarnation for _, name in chosen}
            recoverer.incarnations = recoverer.incarnations | now
        self._step(client, NewcomersChosen(dict(chosen)))

    def _do_zombie(self, zombie: Zombie) -> None:
        self.zombies.remove(zombie)
        bookie = self.bookies[zombie.bookie]
        match zombie.kind:
            case "fence":
                bookie = bookie._replace(fenced=True)
            case "lac":
                bookie, _ = write_lac(bookie, zombie.lac, self.acknowledged)
            case kind:
                bookie, _ = add(
                    bookie,
                    zombie.bodies,
                    zombie.incarnation,
                    self.acknowledged,
                    recovery=kind == "re-add",
                )
                self.notes.append("late add done")
        self.bookies[zombie.bookie] = bookie

    def _do_wipe(self, name: str) -> None:
        self.budget["wipe"] -= 1
        is_named = any(name in f.bookies for f in self.store.metadata.fragments)
        self.bookies[name] = self.bookies[name].wiped(is_named=is_named)
        for stream in self.streams:
            if stream.bookie == name and stream.is_open:
                self._break(stream.slot)
