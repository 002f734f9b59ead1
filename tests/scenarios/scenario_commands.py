"""What the commands of a scenario do, one function a command; the README lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from bookie.ids import Status
from bookie.ledger.metadata import Fragment, LedgerState
from bookie.ledger.write import writer_events
from bookie.ledger.write.pending import WriterLimits
from tests.property.ledger.protocol_world import SimBookie, Stream, ViolationError
from tests.scenarios.scenario_expectations import EXPECTATIONS
from tests.scenarios.scenario_script import (
    Line,
    ScenarioFailedError,
    ScriptError,
    demand,
    lines_of,
    number,
)
from tests.scenarios.scenario_world import (
    NO_ANSWER,
    Client,
    Machines,
    Request,
    ScenarioWorld,
    ScriptedRecoverer,
    ScriptedWriter,
)

Words = tuple[str, ...]
STEPS_MAX = 1000


class Scenario:
    """A scenario on its way: the world and its clients."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.limits = WriterLimits()
        self._world: ScenarioWorld | None = None
        self.clients: dict[str, Client] = {}

    @property
    def world(self) -> ScenarioWorld:
        """The world, which `ledger` makes."""
        if self._world is None:
            raise ScriptError("the first command is `ledger` (only `limits` may come before)")
        return self._world

    @property
    def writer(self) -> ScriptedWriter:
        """The ledger's writer."""
        client = self.clients.get("writer")
        assert isinstance(client, ScriptedWriter)
        return client

    def bookie(self, name: str) -> SimBookie:
        """A bookie by its name."""
        if name not in self.world.bookies:
            raise ScriptError(f"there is no bookie {name}")
        return self.world.bookies[name]

    def take(self, line: Line) -> None:
        """Carry out one line, then check the rule about acknowledged entries."""
        words = line.words
        client = "writer"
        if words[0] in self.clients:
            client, words = words[0], words[1:]
        if not words:
            raise ScriptError(f"{client} does what?")
        name, *rest = words
        command = COMMANDS.get(name)
        if command is None:
            raise ScriptError(f"there is no command {name}")
        if name not in {"limits", "ledger"}:
            _ = self.world
        try:
            command(self, client, tuple(rest))
        except (IndexError, KeyError, ValueError) as error:
            raise ScriptError(f"{line.text}: {error!r}") from error
        if self._world is not None:
            self._world.check()

    # -- setting the stage -------------------------------------------------------------------------

    def set_limits(self, _client: str, words: Words) -> None:
        """`limits changes_per_minute_max=1`: bounds of the writer."""
        known = {field.name: getattr(self.limits, field.name) for field in fields(self.limits)}
        for word in words:
            name, _, value = word.partition("=")
            if name not in known:
                raise ScriptError(f"writers have no limit {name}")
            self.limits = replace(self.limits, **{name: type(known[name])(value)})

    def make_ledger(self, _client: str, words: Words) -> None:
        """`ledger 3 3 2 [deferred] [spares b3 b4]`: E, Qw, Qa; all streams open."""
        sizes = number(words[0]), number(words[1]), number(words[2])
        rest = list(words[3:])
        deferred = rest[:1] == ["deferred"]
        rest = rest[deferred:]
        if rest and rest[0] != "spares":
            raise ScriptError(f"{rest[0]} is neither `deferred` nor `spares`")
        self._world = world = ScenarioWorld(sizes, rest[1:], self.machines)
        self.clients["writer"] = ScriptedWriter(world, self.limits, deferred_sync=deferred)
        for stream in world.streams:
            world.connect_stream(stream)

    def recover(self, _client: str, words: Words) -> None:
        """`recover r1`: another client begins to recover the ledger."""
        (name,) = words
        if name in self.clients or name in COMMANDS:
            raise ScriptError(f"the name {name} is taken")
        self.clients[name] = ScriptedRecoverer(self.world, name)

    # -- what clients do ---------------------------------------------------------------------------

    def append(self, _client: str, words: Words) -> None:
        """`append 2`: one batch of two entries."""
        self.writer.append_batch(number(words[0]))

    def idle(self, _client: str, _words: Words) -> None:
        """`idle`: the queue is empty; a LAC that requests did not carry is sent on its own."""
        self.writer.step(writer_events.Idle())

    def force(self, _client: str, _words: Words) -> None:
        """`force`: make durable what is confirmed (deferred sync)."""
        self.writer.step(writer_events.Force())

    def sync(self, _client: str, words: Words) -> None:
        """`sync b0 b1`: a force arrives there, and so does its answer."""
        for name in words:
            for request in self._requests("writer", name):
                self.world.requests.remove(request)
                request.reply(request.serve())

    def close(self, _client: str, _words: Words) -> None:
        """`close`: the writer closes the ledger as soon as it can."""
        self.writer.step(writer_events.Close())

    def vanish(self, client: str, _words: Words) -> None:
        """`vanish`: the client crashes; its metadata operation never arrives."""
        self.clients[client].crash()
        operation = self.world.operations.pop(client, None)
        if operation is not None:
            operation.forget()
        self.world.requests = [r for r in self.world.requests if r.client != client]

    def choose(self, client: str, words: Words) -> None:
        """`choose 2=b3` or `choose none`: who takes over."""
        one = self.clients[client]
        demand(one.choice is not None, f"{client} did not ask for newcomers")
        chosen: dict[int, str] = {}
        for word in () if words == ("none",) else words:
            slot, _, name = word.partition("=")
            chosen[number(slot)] = self.bookie(name).bookie_id
        one.take_choice(chosen)

    def timer(self, client: str, words: Words) -> None:
        """`timer replace 2`: a timer of the client runs out."""
        timer = words[0], number(words[1]) if words[1:] else 0
        fire = self.world.timers.pop((self.clients[client], timer), None)
        if fire is None:
            raise ScenarioFailedError(f"{client} has no timer {timer[0]} {timer[1]}")
        fire()

    def metadata(self, client: str, words: Words) -> None:
        """`metadata done | lost done | lost late | lost never`: the client's operation."""
        world = self.world
        if words == ("arrive",):
            demand(world.late_writes, "no compare-and-set is late")
            world.late_writes.pop(0)()
            return
        operation = world.operations.pop(client, None)
        if operation is None:
            raise ScenarioFailedError(f"{client} has asked nothing of the metadata store")
        match words:
            case ("done",):
                operation.reply(operation.serve())
                return
            case ("lost", "done"):
                operation.serve()
            case ("lost", "late"):
                world.late_writes.append(operation.serve)
            case ("lost", "never"):
                operation.forget()
            case _:
                raise ScriptError(f"metadata {' '.join(words)}: done, or lost done, late or never")
        operation.reply(NO_ANSWER)

    def repair(self, _client: str, words: Words) -> None:
        """`repair by=me` or `repair 0: b0 b1 b4`: somebody else changes the metadata."""
        store = self.world.store
        before = after = store.metadata
        if words[0].endswith(":"):
            first = number(words[0][:-1])
            changed = Fragment(first, tuple(self.bookie(name).bookie_id for name in words[1:]))
            fragments = {f.first_entry_id: f for f in before.fragments} | {first: changed}
            after = replace(before, fragments=tuple(fragments[f] for f in sorted(fragments)))
        else:
            key, _, value = words[0].partition("=")
            after = replace(before, custom_metadata={key: value.encode()})
        store.write(after, store.version)

    def recreate(self, _client: str, _words: Words) -> None:
        """`recreate`: the ledger is deleted, and another one gets its id and its first ensemble."""
        store = self.world.store
        fragments = (Fragment(0, store.metadata.fragments[0].bookies),)
        fresh = store.metadata.with_state(LedgerState.OPEN)
        store.metadata = replace(fresh, fragments=fragments, c_token=fresh.c_token + 1)
        store.version += 1

    def copy(self, _client: str, words: Words) -> None:
        """`copy 0 b2 b4`: repair stores entry 0 of b2 on b4, too."""
        entry_id, source, target = number(words[0]), self.bookie(words[1]), self.bookie(words[2])
        target.entries[entry_id] = source.entries[entry_id]

    # -- what the network does ---------------------------------------------------------------------

    def deliver(self, client: str, words: Words) -> None:
        """`deliver b0 b1`: what is on its way to them arrives, and so do the answers."""
        for name in words:
            self._reach(client, name)
            self._answer(client, name)

    def reach(self, client: str, words: Words) -> None:
        """`reach b0`: what is on its way arrives; the answers wait."""
        for name in words:
            self._reach(client, name)

    def answer(self, client: str, words: Words) -> None:
        """`answer b0`: the answers that wait come back."""
        for name in words:
            self._answer(client, name)

    def _reach(self, client: str, name: str) -> None:
        if client == "writer":
            lane = self.writer.lane(name)
            demand(lane.requests, f"nothing is on its way to {name}")
            demand(lane.bookie.up, f"{name} is down")
            while lane.requests:
                serve, tag = lane.requests.popleft()
                lane.answers.append((serve(), tag))
            return
        self.bookie(name)
        for request in self._requests(client, name):
            request.result = request.serve()

    def _answer(self, client: str, name: str) -> None:
        if client == "writer":
            lane = self.writer.lane(name)
            demand(lane.answers, f"no answer of {name} is on its way")
            for _ in range(len(lane.answers)):
                if lane.answers:
                    lane.on_answer(lane.answers.popleft())
            return
        for request in self._requests(client, name):
            self.world.requests.remove(request)
            request.reply(request.result)

    def _requests(self, client: str, name: str) -> list[Request]:
        found = [r for r in self.world.requests if (r.client, r.bookie_id) == (client, name)]
        demand(found, f"{client} has sent nothing to {name}")
        return found

    def fail(self, client: str, words: Words) -> None:
        """`fail b2 READ_ONLY`: the bookie answers its first request so, and does nothing."""
        name, status = words[0], Status[words[1]]
        if client != "writer":
            raise ScriptError("only the writer's requests fail by status; others are lost")
        lane = self.writer.lane(name)
        demand(lane.requests, f"nothing is on its way to {name}")
        _, tag = lane.requests.popleft()
        lane.on_answer((status, tag))

    def lose(self, client: str, words: Words) -> None:
        """`r1 lose b0`: the request times out; `reach` before it to have it arrive."""
        if client == "writer":
            raise ScriptError("a writer's lane loses nothing unless it breaks")
        for name in words:
            for request in self._requests(client, name):
                request.result = None
            self._answer(client, name)

    def cut(self, _client: str, words: Words) -> None:
        """`break b2 [late]`: the lane breaks. What was on its way is lost, or late."""
        lane = self.writer.lane(words[0])
        if words[1:] == ("late",):
            self.world.zombies += [(lane.bookie, serve) for serve, _ in lane.requests]
            lane.requests.clear()
        self.world.break_stream(lane)

    def arrive(self, _client: str, words: Words) -> None:
        """`arrive b2`: late requests of broken lanes arrive; nobody hears the answers."""
        bookie = self.bookie(words[0])
        late = [serve for one, serve in self.world.zombies if one is bookie]
        demand(late, f"nothing is late at {words[0]}")
        self.world.zombies = [pair for pair in self.world.zombies if pair[0] is not bookie]
        for serve in late:
            serve()

    def connect(self, _client: str, words: Words) -> None:
        """`connect b3`: the lane opens, or the writer hears that the bookie lost its data."""
        for name in words:
            lane = self.writer.lane(name)
            demand(not lane.is_open, f"the lane to {name} is open")
            demand(lane.bookie.up, f"{name} is down")
            self.world.connect_stream(lane)

    def silent(self, _client: str, words: Words) -> None:
        """`silent 1`: another ledger of the client waited for this slot's bookie in vain."""
        slot = number(words[0])
        self.writer.step(writer_events.SlotSilent(slot, self.writer.machine.epochs[slot]))

    # -- what happens to bookies -------------------------------------------------------------------

    def crash(self, _client: str, words: Words) -> None:
        """`crash b2`: the bookie stops; what it has synced stays."""
        for name in words:
            self.world.crash_bookie(self.bookie(name))

    def start(self, _client: str, words: Words) -> None:
        """`start b2`: it runs again."""
        for name in words:
            self.bookie(name).up = True

    def wipe(self, _client: str, words: Words) -> None:
        """`wipe b2`: it crashes and loses its disk; `start` it afterwards."""
        for name in words:
            self.world.crash_bookie(self.bookie(name))
            self.bookie(name).lose_disk("empty")

    def read_only(self, _client: str, words: Words) -> None:
        """`read_only b2`: it refuses plain adds."""
        for name in words:
            self.bookie(name).read_only = True

    def spoil(self, _client: str, words: Words) -> None:
        """`spoil b2 0`: it stores entry 0 and cannot read it."""
        entry_id = number(words[1])
        demand(entry_id in self.bookie(words[0]).entries, f"{words[0]} has no entry {entry_id}")
        self.bookie(words[0]).unreadable.add(entry_id)

    # -- all at once, and looking ------------------------------------------------------------------

    def finish(self, client: str, _words: Words) -> None:
        """`r1 finish`: all of the client's requests and operations go well, until none is left."""
        for _ in range(STEPS_MAX):
            if client in self.world.operations:
                self.metadata(client, ("done",))
                continue
            ready = self._ready(client)
            if not ready:
                return
            self.deliver(client, (ready[0],))
        raise ScenarioFailedError(f"{client} does not come to rest")

    def _ready(self, client: str) -> list[str]:
        if client != "writer":
            return [r.bookie_id for r in self.world.requests if r.client == client]
        lanes: list[Stream] = self.writer.streams
        return [lane.bookie.bookie_id for lane in lanes if lane.requests and lane.bookie.up]

    def expect(self, client: str, words: Words) -> None:
        """`expect lac 0`: compare."""
        check = EXPECTATIONS.get(words[0]) if words else None
        if check is None:
            raise ScriptError(f"nothing to expect: {' '.join(words)}")
        check(self.world, self.clients[client], words[1:])


COMMANDS: dict[str, Callable[[Scenario, str, Words], None]] = {
    "limits": Scenario.set_limits,
    "ledger": Scenario.make_ledger,
    "recover": Scenario.recover,
    "append": Scenario.append,
    "idle": Scenario.idle,
    "force": Scenario.force,
    "sync": Scenario.sync,
    "close": Scenario.close,
    "vanish": Scenario.vanish,
    "choose": Scenario.choose,
    "timer": Scenario.timer,
    "metadata": Scenario.metadata,
    "repair": Scenario.repair,
    "recreate": Scenario.recreate,
    "copy": Scenario.copy,
    "deliver": Scenario.deliver,
    "reach": Scenario.reach,
    "answer": Scenario.answer,
    "fail": Scenario.fail,
    "lose": Scenario.lose,
    "break": Scenario.cut,
    "arrive": Scenario.arrive,
    "connect": Scenario.connect,
    "silent": Scenario.silent,
    "crash": Scenario.crash,
    "start": Scenario.start,
    "wipe": Scenario.wipe,
    "read_only": Scenario.read_only,
    "spoil": Scenario.spoil,
    "finish": Scenario.finish,
    "expect": Scenario.expect,
}


def run_scenario(path: Path, machines: Machines | None = None) -> int:
    """Run a file; returns how many things it expected.

    Raises:
        ScriptError: the file is wrong.
        ScenarioFailedError: the machines are.
    """
    scenario, expected = Scenario(machines or Machines()), 0
    for line in lines_of(path):
        try:
            scenario.take(line)
        except ScriptError as error:
            raise ScriptError(f"{line.place}: {line.text}: {error}") from error
        except (AssertionError, ViolationError) as error:
            raise ScenarioFailedError(f"{line.place}: {line.text}: {error}") from error
        expected += "expect" in line.words[:2]
    return expected
