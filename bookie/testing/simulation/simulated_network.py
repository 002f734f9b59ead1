"""A network in virtual time, with processes, connections, and two ordered pipes for each call.

The messages of one call in one direction arrive in the order of sending, as with TCP. Messages of
different calls may overtake each other. A message is lost only if its connection breaks:

=================  =================================================================================
fault              what happens
=================  =================================================================================
cut (one way)      messages wait and arrive late, after `heal`; a connection that is cut off for
                   longer than `KEEPALIVE_SECONDS` breaks at both ends
reset              both ends notice the break, one end later; requests in flight still take
                   effect, but their answers are lost
late requests      the client notices a broken connection, but the server does not; requests in
                   flight arrive late, as from a kernel's buffers, while the client already uses a
                   newer connection; their answers are lost
slow link          each message takes longer
crash of a process its connections break; messages that it sent earlier may still arrive
=================  =================================================================================

The sender and the receiver of a message are `SimulatedProcess` objects. The context variable
`PROCESS` is the process that runs the current task.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any

from bookie.testing.simulation.loop import SimulatedLoop

DELAY_SECONDS = (0.0001, 0.002)
"""The shortest and the longest time in seconds that a message takes without a fault."""

KEEPALIVE_SECONDS = 6.0
"""A connection that is cut off for this number of seconds breaks."""

NOTICE_SECONDS_MAX = 0.3
"""The longest time in seconds until the second end of a reset connection notices the reset."""


LATE_SECONDS = (0.3, 4.0)
"""The shortest and the longest delay, in seconds, of a client's last requests on a connection that
it has left."""


class SimulatedProcess:
    """One life of a process on a host, which a crash ends."""

    def __init__(self, host: str, life: int = 0) -> None:
        self.host = host
        self.life = life
        self.is_alive = True
        self.connections: dict[Connection, None] = {}
        self.context = copy_context()
        """The context in which a caller outside of this process starts tasks of this process."""
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"<process on {self.host}>"


PROCESS: ContextVar[SimulatedProcess] = ContextVar("process")
"""The process that runs the current task."""


class Pipe:
    """One direction of one call; messages take some time, and arrive in the order of sending."""

    def __init__(
        self,
        network: SimulatedNetwork,
        source: SimulatedProcess,
        target: SimulatedProcess,
        deliver: Callable[[Any], None],
    ) -> None:
        self._network = network
        self._source, self._target = source, target
        self._deliver = deliver
        self._lane = network.loop.new_lane()
        self._queue: deque[tuple[float, Any]] = deque()
        self._last_due = 0.0
        self._is_armed = False
        self._is_closed = False

    def send(self, item: Any) -> None:
        """Deliver `item` later, unless the source is dead or the pipe is closed."""
        if self._is_closed or not self._source.is_alive:
            return
        due = self._network.arrival(self._source.host, self._target.host)
        self._last_due = max(self._last_due, due)
        self._queue.append((self._last_due, item))
        self._arm()

    def close(self) -> None:
        self._is_closed = True
        self._queue.clear()

    @property
    def is_busy(self) -> bool:
        return bool(self._queue)

    def delay(self, seconds: float) -> None:
        self._queue = deque((due + seconds, item) for due, item in self._queue)
        self._last_due += seconds

    def resume(self) -> None:
        self._arm()

    def _arm(self) -> None:
        if not self._is_armed and self._queue:
            self._is_armed = True
            loop = self._network.loop
            when = max(self._queue[0][0], loop.time())
            loop.call_in_lane_at(self._lane, when, self._fire)

    def _fire(self) -> None:
        self._is_armed = False
        if not self._target.is_alive:
            self.close()
        if self._network.holds(self._source.host, self._target.host, self):
            return
        now = self._network.loop.time()
        while self._queue and self._queue[0][0] <= now:
            self._deliver(self._queue.popleft()[1])
        self._arm()


class Connection:
    """A connection between two processes; a break calls `on_broken` of each call on it."""

    def __init__(
        self, network: SimulatedNetwork, client: SimulatedProcess, server: SimulatedProcess
    ) -> None:
        self.network = network
        self.client, self.server = client, server
        self.is_client_open = self.is_server_open = True
        self.client_calls: dict[Any, None] = {}
        """The client's calls; each has `on_broken(reason)`, and can `delay` its requests."""
        self.server_calls: dict[Any, None] = {}
        client.connections[self] = None
        server.connections[self] = None

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset((self.client.host, self.server.host))

    @property
    def carries_adds(self) -> bool:
        return any(call.is_sending_adds for call in self.client_calls)

    def has_successor(self, method: str) -> bool:
        """True if the client left this connection, and calls `method` on a newer connection."""
        return not self.is_client_open and any(
            call.method == method
            for other in self.client.connections
            if other.server is self.server
            for call in other.client_calls
        )

    def leave_behind(self, seconds: float) -> None:
        """Break the client's end now; the server's end accepts late messages for a while."""
        loop = self.network.loop
        lane = loop.new_lane()
        for call in self.client_calls:
            call.delay(seconds)
        loop.call_in_lane(lane, self._break_client, "the connection was reset")
        later = loop.time() + seconds + NOTICE_SECONDS_MAX
        loop.call_in_lane_at(lane, later, self._break_server, "keepalive found no peer")

    def break_up(self, reason: str) -> None:
        """Break both ends of the connection, one end at once and the other shortly after."""
        network = self.network
        first, second = self._break_client, self._break_server
        if network.choose.random() < 0.5:
            first, second = second, first
        loop = network.loop
        lane = loop.new_lane()
        loop.call_in_lane(lane, first, reason)
        later = loop.time() + network.choose.random() * NOTICE_SECONDS_MAX
        loop.call_in_lane_at(lane, later, second, reason)

    def _break_client(self, reason: str) -> None:
        self.is_client_open = False
        self.client.connections.pop(self, None)
        calls, self.client_calls = self.client_calls, {}
        if self.client.is_alive:
            for call in calls:
                call.on_broken(reason)

    def _break_server(self, reason: str) -> None:
        self.is_server_open = False
        self.server.connections.pop(self, None)
        calls, self.server_calls = self.server_calls, {}
        if self.server.is_alive:
            for call in calls:
                call.on_broken(reason)


class SimulatedPort:
    """An address at which a process listens; `service` returns the handler of a method."""

    def __init__(self, process: SimulatedProcess, service: Callable[[Any], Any]) -> None:
        self.process = process
        self.service = service


class SimulatedNetwork:
    """The links between hosts, with their faults, and the ports at which processes listen."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.loop = loop
        self.choose = random.Random(f"network/{seed}")
        self._ports: dict[str, SimulatedPort] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._held: dict[tuple[str, str], dict[Pipe, None]] = {}
        self._slow: dict[str, list[float]] = {}
        """By host, the extra seconds that faults add to its messages; the largest applies."""
        self.resets = 0
        self.late_adds = 0
        """The number of adds that arrived on an old connection after a newer connection began."""
        self.framed_adds = self.late_framed_adds = 0
        """The number of pieces of adds that came by frames, and how many used an old connection."""
        self.unexpected: list[BaseException] = []
        """Errors of call handlers in live processes."""

    def listen(self, address: str, port: SimulatedPort) -> None:
        self._ports[address] = port

    def find(self, address: str) -> SimulatedPort | None:
        """Return the port at `address`; None if no live process listens there."""
        port = self._ports.get(address)
        return port if port is not None and port.process.is_alive else None

    def ports(self) -> list[SimulatedPort]:
        return list(self._ports.values())

    def arrival(self, source: str, target: str) -> float:
        """Return the arrival time of a message that is sent now."""
        low, high = DELAY_SECONDS
        seconds = low + (high - low) * self.choose.random() ** 2
        extra = sum(max(self._slow.get(host) or (0.0,)) for host in (source, target))
        if extra:
            seconds += extra * self.choose.random()
        return self.loop.time() + seconds

    # --- faults --------------------------------------------------------------------------

    @contextmanager
    def slow(self, hosts: Iterable[str], seconds: float) -> Iterator[None]:
        """During the block, slow down each message to or from `hosts` by up to `seconds`."""
        slowed = list(hosts)
        for host in slowed:
            self._slow.setdefault(host, []).append(seconds)
        try:
            yield
        finally:
            for host in slowed:
                self._slow[host].remove(seconds)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def cut(self, source: str, target: str) -> None:
        """From now on, delay messages from `source` to `target` until `heal`."""
        link = (source, target)
        self._cuts[link] = self._cuts.get(link, 0) + 1
        if self._cuts[link] == 1:
            later = self.loop.time() + KEEPALIVE_SECONDS
            self.loop.call_in_lane_at(self.loop.new_lane(), later, self._lose, link)

    def heal(self, source: str, target: str) -> None:
        """Undo one `cut`; when all cuts of the link are undone, the held messages arrive soon."""
        link = (source, target)
        left = self._cuts.get(link, 0) - 1
        if left > 0:
            self._cuts[link] = left
            return
        self._cuts.pop(link, None)
        for pipe in self._held.pop(link, {}):
            pipe.resume()

    def holds(self, source: str, target: str, pipe: Pipe) -> bool:
        """True if the link is cut, so that `pipe` must wait; `heal` then resumes the pipe."""
        if not self.is_cut(source, target):
            return False
        self._held.setdefault((source, target), {})[pipe] = None
        return True

    def reset(self, host: str, other: str, connections: list[Connection]) -> int:
        """Break each of `connections` between the two hosts; return the number of breaks."""
        found = [item for item in connections if item.hosts == {host, other}]
        for connection in found:
            connection.break_up("the connection was reset")
        self.resets += len(found)
        return len(found)

    def crash(self, process: SimulatedProcess) -> None:
        """End a process at once; its peers notice soon that their connections break."""
        process.is_alive = False
        for connection in list(process.connections):
            connection.break_up("the peer is gone")

    def _lose(self, link: tuple[str, str]) -> None:
        """Break the connections between the hosts of a link, if the link is still cut."""
        if link not in self._cuts:
            return
        for port in list(self._ports.values()):
            for connection in list(port.process.connections):
                if connection.hosts == set(link):
                    connection.break_up("keepalive found no peer")


def run_in(process: SimulatedProcess) -> Context:
    """Return the context for a new task of `process`."""
    context: Context = process.context.copy()
    return context
