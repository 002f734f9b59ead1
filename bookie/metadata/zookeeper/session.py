"""Makes and monitors the connection of one store to ZooKeeper, and restores a lost connection.

ZooKeeper forgets a watch when the connection ends, even if the session continues. So a new
connection becomes usable only after the link has set the watch on the scope again. The link then
tells the store's watches that they may have missed changes.

`SessionMonitor` decides if the session is alive. The monitor sends a sync request, which only the
leader of the ensemble can answer. The leader is the server that ends sessions. The answer to a read
would prove nothing, because a follower that has lost its leader still answers reads.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

from bookie.env import boot_time_seconds
from bookie.errors import (
    BookieError,
    MetadataClosedError,
    MetadataUnavailableError,
    SessionLostError,
    UnauthorizedError,
)
from bookie.metadata.model import ancestors
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.session import (
    Answered,
    AuthFailed,
    Connected,
    Disconnected,
    Expired,
    SessionEvent,
    SessionState,
)
from bookie.metadata.session_monitor import SessionMonitor
from bookie.metadata.zookeeper import kazoo_parts
from bookie.metadata.zookeeper.client import (
    Bridge,
    LostError,
    NoAnswerError,
    NotSentError,
    Pending,
    SessionEndedError,
    describe_failure,
)
from bookie.metadata.zookeeper.kazoo_parts import AddWatch, NodeEvent, Notice, SaslStep
from bookie.metadata.zookeeper.requests import (
    ACL,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    OPEN_ACL_UNSAFE,
    UNIMPLEMENTED,
    CreateNode,
    Exists,
    NodeError,
    Request,
    Sync,
)
from bookie.metadata.zookeeper.sasl import DigestMd5, SaslRefusedError
from bookie.metadata.zookeeper.tree import PARENT

PATIENCE_SHARE = 1 / 3
PATIENCE_SECONDS_MIN = 2.0
"""The wait for a connection or an answer: the share of the session timeout, or the minimum."""

READS_MAX = 256
"""The most reads that run at the same time; more reads wait.

While more than a thousand requests wait in a server, it takes no requests from its clients. Source:
ZooKeeper's ``globalOutstandingLimit``. All reads that `NodeReader.ask` sends together hold only one
place.
"""

CONNECT_SECONDS_MAX = 15.0
"""The longest wait for the first connection, in seconds."""

_DROPS_MAX = 3
"""If this many connections in a row end during authentication, the user counts as refused."""


class ZooKeeperLink:
    """Keeps one session at a time with the ensemble at `hosts`, while the context is open.

    Args:
        hosts: ``host:port,host:port``.
        root: the path to watch, which is created if it does not exist.
        acl: the access control list of a new `root`; new nodes above `root` are open to all.
        session_timeout_seconds: the timeout to request; `timeout_seconds` has the granted timeout.
        security: TLS files and credentials.
        on_event: called with each event of a node below `root`.
        on_quiet: called after the last event of a group of events that arrived together.
        on_missed: called when events may have been missed: after each connection but the first.
        announce: called with each event of the session.
    """

    def __init__(
        self,
        hosts: str,
        root: str,
        acl: Sequence[ACL],
        *,
        session_timeout_seconds: float,
        security: MetadataSecurity,
        on_event: Callable[[NodeEvent], None],
        on_quiet: Callable[[], None],
        on_missed: Callable[[], None],
        announce: Callable[[SessionEvent], None],
    ) -> None:
        self.timeout_seconds = session_timeout_seconds
        self.session = 0
        self.losses = 0
        """The number of sessions lost so far."""
        self.connection = 0
        """The number of the latest connection.

        What was learned from an older connection may be out of date.
        """
        self._hosts = hosts
        self._root = root
        self._acl = acl
        self._security = security
        self._on_event = on_event
        self._on_quiet = on_quiet
        self._on_missed = on_missed
        self._announce_session = announce
        self._bridge: Bridge | None = None
        self._monitor: SessionMonitor | None = None
        self._password = b""
        self._up = asyncio.Event()
        self._reads = asyncio.Semaphore(READS_MAX)
        self._tasks = asyncio.TaskGroup()
        self._preparing: asyncio.Task[None] | None = None
        self._giving_up: asyncio.Task[None] | None = None
        self._stack = AsyncExitStack()
        self._asked_at = 0.0
        self._failure: BaseException | None = None
        self._final: BookieError | None = None
        self._has_been_up = False
        self._drops = 0
        """The number of connections in a row that ended during authentication."""
        self._told_at = 0.0

    async def __aenter__(self) -> Self:
        self._asked_at = boot_time_seconds()
        self._bridge = Bridge(
            self._hosts, self.timeout_seconds, self._security, self._take_notice, self._on_quiet
        )
        await self._tasks.__aenter__()
        self._bridge.start()
        try:
            await self._first_connection()
        except BaseException:
            await self._leave()
            raise
        self._monitor = SessionMonitor(
            self.timeout_seconds,
            probe=self._prove,
            renew=self._prove,
            announce=self._announce,
            begun_at=self._asked_at,
        )
        await self._stack.enter_async_context(self._monitor)
        self._giving_up = self._tasks.create_task(self._give_up_in_time())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    @property
    def is_certain(self) -> bool:
        return self._monitor is not None and self._monitor.state is SessionState.CONNECTED

    @property
    def patience_seconds(self) -> float:
        """The longest time that an operation waits, in seconds."""
        return max(self.timeout_seconds * PATIENCE_SHARE, PATIENCE_SECONDS_MIN)

    def deadline(self) -> float:
        """Return the loop's time until which an operation that begins now may wait."""
        return asyncio.get_running_loop().time() + self.patience_seconds

    @property
    def credentials(self) -> tuple[int, bytes]:
        return self.session, self._password

    # ---- requests

    async def usable(self, deadline: float) -> int:
        """Wait for a usable connection, and return the number of its session.

        Raises:
            MetadataUnavailableError: no connection became usable before `deadline`, a time of the
                event loop's clock.
            MetadataClosedError, UnauthorizedError: the store is closed, or the user is refused.
        """
        if not self._up.is_set():
            if self._final is not None:
                raise self._final
            try:
                async with asyncio.timeout_at(deadline):
                    await self._up.wait()
            except TimeoutError as error:
                raise self._unreachable() from error
            if self._final is not None:
                raise self._final
        return self.session

    def send(
        self, request: Request, session: int | None = None, connection: int | None = None
    ) -> Pending:
        if self._bridge is None:
            raise MetadataClosedError("the metadata store is closed")
        # Use only the connection that the last notice reported. A newer one may exist already, but
        # has no watch yet.
        if connection is None:
            connection = self.connection
        return self._bridge.send(request, session, connection)

    async def read(self, request: Request, deadline: float) -> Any:
        """Send a read request, again after each lost connection, and return the server's answer.

        Raises:
            NodeError: the server's answer is an error.
            MetadataUnavailableError: no answer came before `deadline`.
        """
        while True:
            if not self._up.is_set():
                await self.usable(deadline)
            try:
                async with self.place(deadline):
                    return await self.send(request).answer
            except (LostError, NotSentError):
                # The connection has broken; its notice may arrive in the next turn of the loop.
                await asyncio.sleep(0)
                if asyncio.get_running_loop().time() >= deadline:
                    raise self._unreachable() from None
            except NoAnswerError:
                raise self._unreachable() from None

    @asynccontextmanager
    async def place(self, deadline: float) -> AsyncIterator[None]:
        """Hold one of the `READS_MAX` places for reads during the block; wait until one is free.

        The block must only send reads and await their answers.

        Raises:
            MetadataUnavailableError: the place became free only after `deadline`; the block is not
                run.
        """
        waits = self._reads.locked()
        async with self._reads:
            # From a silent server, a place may have become free only because an earlier read timed
            # out. That may be too late.
            if waits and asyncio.get_running_loop().time() >= deadline:
                raise self._unreachable()
            yield

    def tell_written(self, begun_at: float) -> None:
        """Tell the session monitor that a write sent at `begun_at` was answered.

        The answer proves that the session was alive at that time.
        """
        if self._monitor is not None and begun_at - self._told_at > self.timeout_seconds / 30:
            self._told_at = begun_at
            self._monitor.tell(Answered(begun_at))

    # ---- the connection

    async def _first_connection(self) -> None:
        seconds = min(max(self.timeout_seconds, PATIENCE_SECONDS_MIN), CONNECT_SECONDS_MAX)
        await self.usable(asyncio.get_running_loop().time() + seconds)

    def _take_notice(self, notice: Notice) -> None:
        match notice:
            case NodeEvent():
                self._on_event(notice)
            case kazoo_parts.KazooConnected(session, password, timeout_seconds, number):
                self.session, self._password, self.connection = session, password, number
                if self._monitor is None:
                    self.timeout_seconds = timeout_seconds
                self._prepare_anew()
            case kazoo_parts.KazooDisconnected():
                self._go_down()
                self._tell(Disconnected())
            case kazoo_parts.KazooExpired():
                self._go_down()
                self._tell(Expired())
            case kazoo_parts.Refused():
                self._refuse()
            case kazoo_parts.AttemptFailed(reason):
                self._take_failure(reason)

    def _take_failure(self, reason: BaseException) -> None:
        self._failure = reason
        self._asked_at = boot_time_seconds()
        if isinstance(reason, ssl.SSLCertVerificationError) and self._monitor is None:
            # Before the first connection, a wrong certificate is an error. Later the link tries
            # again, because an operator may just be replacing certificates.
            self._end(self._unreachable())

    def _go_down(self) -> None:
        self._up.clear()
        if self._preparing is not None:
            self._preparing.cancel()

    def _end(self, error: BookieError) -> None:
        self._final = error
        self._up.set()  # waiting operations raise the error
        self._up = asyncio.Event()

    def _prepare_anew(self) -> None:
        if self._bridge is None:
            return  # the store is being closed
        if self._preparing is not None:
            self._preparing.cancel()
        self._preparing = self._tasks.create_task(self._prepare())

    async def _prepare(self) -> None:
        if self._has_been_up:
            # Tell this before the watch is set, so that `Resync` comes before the first event of
            # the watch. A consumer that then lists again must wait until the link is usable, and at
            # that time the watch is set.
            self._on_missed()
        try:
            if not await self._authenticate():
                return
            await self.send(AddWatch(self._root)).answer
            if not self._has_been_up:
                await self.make_root()
        except (LostError, NotSentError, MetadataClosedError):
            return  # if there is a next connection, `_prepare` runs again
        except NoAnswerError:
            self._cut()  # if pings are answered, kazoo would keep it
            return
        except (UnauthorizedError, MetadataUnavailableError) as error:
            self._end(error)  # these errors come only from the first connection
            return
        except NodeError as error:
            if not self._has_been_up:
                self._end(self._explain(error))
                return
            # These requests succeeded on an earlier connection, so the error may pass: try a new
            # connection.
            self._failure = self._explain(error)
            await asyncio.sleep(self.patience_seconds / 4)
            self._cut()
            return
        self._has_been_up = True
        self._failure = None
        self._up.set()
        self._tell(Connected())

    async def _authenticate(self) -> bool:
        """Authenticate with SASL, if configured; return False if one side refuses the other.

        Some servers refuse a user by closing the connection, but a network failure closes it, too.
        So it counts as a refusal only if `_DROPS_MAX` connections in a row were closed, before the
        first success.

        Raises:
            LostError: the connection was closed.
        """
        security = self._security
        if security.sasl_mechanism != "digest-md5":
            return True
        exchange = DigestMd5(security.user or "", security.password or "", uuid.uuid4().hex)
        try:
            challenge = await self.send(SaslStep(b"")).answer
            exchange.check(await self.send(SaslStep(exchange.respond(challenge))).answer)
        except (SaslRefusedError, NodeError):
            self._refuse()
            return False
        except LostError:
            self._drops += 1
            if not self._has_been_up and self._drops == _DROPS_MAX:
                self._refuse()
            raise
        self._drops = 0
        return True

    def _refuse(self) -> None:
        self._end(UnauthorizedError("ZooKeeper refuses the user or the password"))
        self._tell(AuthFailed())
        if self._bridge is not None:
            self._tasks.create_task(self._bridge.stop())

    def _cut(self) -> None:
        if self._bridge is not None:
            self._bridge.cut()

    async def make_root(self) -> None:
        """Create the scope's own node and its parents, if they are missing; raises like `make`."""
        for path in reversed(ancestors(self._root)):
            await self.make(path, CreateNode(path, PARENT, OPEN_ACL_UNSAFE))
        await self.make(self._root, CreateNode(self._root, PARENT, self._acl))

    async def make(self, path: str, create: Request) -> None:
        """Create the node `path` with the request `create`, if the node does not exist.

        Raises:
            NodeError: the server refused a request for another reason than missing rights.
            UnauthorizedError: this user has no right to create the node.
        """
        is_hidden = False
        try:
            if await self.send(Exists(path)).answer is not None:
                return
        except NodeError as error:
            if error.code != NO_AUTH:
                raise
            is_hidden = True  # perhaps it exists, but we may not see it
        try:
            await self.send(create).answer
        except NodeError as refused:
            if refused.code == NODE_EXISTS or (refused.code == NO_AUTH and is_hidden):
                return
            if refused.code == NO_AUTH:
                raise UnauthorizedError(f"ZooKeeper does not let us make {path}") from refused
            raise NodeError(refused.code) from refused

    # ---- the session

    def _announce(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self.losses += 1
        self._announce_session(event)

    def _tell(self, event: Connected | Disconnected | Expired | AuthFailed) -> None:
        if self._monitor is not None:
            self._monitor.tell(event)

    async def _prove(self) -> None:
        try:
            await self.usable(self.deadline())
            await self.send(Sync(self._root)).answer
        except SessionEndedError as error:
            raise SessionLostError("the session with the metadata store ended") from error
        except (LostError, NotSentError, NoAnswerError, NodeError) as error:
            raise self._unreachable() from error

    async def _give_up_in_time(self) -> None:
        """Fail requests that get no answer in time; disconnect from a server that stays silent."""
        loop, patience = asyncio.get_running_loop(), self.patience_seconds
        while True:
            await asyncio.sleep(patience / 4)
            if (bridge := self._bridge) is None:
                continue
            now = loop.time()
            bridge.give_up(now - patience)
            # While requests are sent, kazoo sends no pings, and it misses only the answers to
            # pings. So it would not notice a silent server.
            if bridge.silent_since is not None and now - bridge.silent_since > 2 * patience:
                bridge.cut()

    async def _leave(self) -> None:
        self._final = MetadataClosedError("the metadata store is closed")
        bridge, self._bridge = self._bridge, None
        for task in (self._preparing, self._giving_up):
            if task is not None:
                task.cancel()
        try:
            await self._stack.aclose()
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._up.set()
            if bridge is not None:
                await bridge.stop()

    # ---- what went wrong

    def _unreachable(self) -> MetadataUnavailableError:
        why = "" if self._failure is None else f" ({describe_failure(self._failure)})"
        return MetadataUnavailableError(
            f"the metadata store zk://{self._hosts}{self._root} does not answer{why}"
        )

    def _explain(self, error: NodeError) -> BookieError:
        if error.code == NO_AUTH:
            return UnauthorizedError(f"ZooKeeper does not let us read {self._root}")
        if error.code == UNIMPLEMENTED:
            return MetadataUnavailableError(
                f"the servers {self._hosts} are too old; ZooKeeper 3.6 is the oldest that works"
            )
        if error.code == NO_NODE:
            return UnauthorizedError(f"ZooKeeper does not let us create {self._root}")
        return MetadataUnavailableError(f"ZooKeeper refuses {self._root} with error {error.code}")
