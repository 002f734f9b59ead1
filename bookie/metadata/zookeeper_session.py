"""The connection of one store: made, watched over, and usable again after each interruption.

After each connection, before anything else is sent, the watch on the scope is set again: ZooKeeper
forgets it with the connection, also within one session. Only then is the link usable, and whoever
watches is told that changes may have been missed.

`SessionMonitor` decides what became of the session. It asks the leader (a sync), whose word counts
about sessions; a follower answers reads of its own, also when nobody hears it any more.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from bookie.env import boot_time_seconds
from bookie.errors import (
    BookieError,
    MetadataClosedError,
    MetadataUnavailableError,
    SessionLostError,
    UnauthorizedError,
)
from bookie.metadata import zookeeper_thread as thread
from bookie.metadata.keys import ancestors
from bookie.metadata.security import MetadataSecurity
from bookie.metadata.session_monitor import SessionMonitor
from bookie.metadata.zookeeper_births import counter_of, make_counter
from bookie.metadata.zookeeper_client import Bridge, describe_failure
from bookie.metadata.zookeeper_thread import (
    LostError,
    NoAnswerError,
    NodeError,
    NodeEvent,
    Notice,
    NotSentError,
    Pending,
)
from bookie.metadata.zookeeper_wire import (
    ACL,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    OPEN_ACL_UNSAFE,
    UNIMPLEMENTED,
    AddWatch,
    CreateNode,
    Exists,
    Multi,
    MultiRefusedError,
    NodeOperation,
    Request,
    SetData,
    Sync,
)
from bookie.protocol.session import (
    Answered,
    AuthFailed,
    Connected,
    Disconnected,
    Expired,
    SessionEvent,
    SessionState,
)

PATIENCE_SHARE = 1 / 3
PATIENCE_SECONDS_MIN = 2.0
"""An operation waits so long for a connection, and for its answer: this part of the session
timeout, but no less than the seconds."""

CONNECT_SECONDS_MAX = 15.0
"""The longest wait for the first connection."""


class ZooKeeperLink:
    """One session at a time with the ensemble at `hosts`, from entering the context to leaving it.

    Args:
        hosts: ``host:port,host:port``.
        root: the path to watch; made if it does not exist.
        acl: with which it is made; what lies above it is open.
        session_timeout_seconds: what is asked of the server; `timeout_seconds` is what it granted.
        security: TLS files and credentials.
        on_event: takes each event of a node below `root`.
        on_quiet: called when all events that came together have been taken.
        on_missed: called when events may have been missed: after each connection but the first.
        announce: takes each event of the session.
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
        """How many sessions were lost so far."""
        self.connection = 0
        """The number of the latest connection; what an older one told may not hold."""
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
        self._tasks = asyncio.TaskGroup()
        self._preparing: asyncio.Task[None] | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()
        self._asked_at = 0.0
        self._failure: BaseException | None = None
        self._final: BookieError | None = None
        self._has_been_up = False
        self._told_at = 0.0

    async def __aenter__(self) -> Self:
        self._asked_at = boot_time_seconds()
        self._bridge = Bridge(
            self._hosts,
            self.timeout_seconds,
            self._security,
            self._take_notice,
            self._on_quiet,
            lambda: uuid.uuid4().hex,
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
        self.spawn(self._give_up_in_time())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave()

    @property
    def is_certain(self) -> bool:
        """Whether nothing speaks against the session as of now."""
        return self._monitor is not None and self._monitor.state is SessionState.CONNECTED

    @property
    def is_up(self) -> bool:
        """Whether there is a connection now that can be used."""
        return self._up.is_set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` for as long as the link lasts."""
        self._workers.append(self._tasks.create_task(work))

    @property
    def patience_seconds(self) -> float:
        """How long an operation waits."""
        return max(self.timeout_seconds * PATIENCE_SHARE, PATIENCE_SECONDS_MIN)

    def deadline(self) -> float:
        """When an operation that begins now gives up, by the loop's clock."""
        return asyncio.get_running_loop().time() + self.patience_seconds

    @property
    def credentials(self) -> tuple[int, bytes]:
        """The session's id and password, with which anybody could go on with it."""
        return self.session, self._password

    # ---- requests

    async def usable(self, deadline: float) -> int:
        """See `Link.usable`."""
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
        """See `Bridge.send`."""
        if self._bridge is None:
            raise MetadataClosedError("the metadata store is closed")
        return self._bridge.send(request, session, connection)

    async def read(self, request: Request, deadline: float) -> Any:
        """The answer to a request that changes nothing, asked again until there is one.

        Raises:
            NodeError: the server's answer is an error.
            MetadataUnavailableError: there is none until `deadline`.
        """
        while True:
            if not self._up.is_set():
                await self.usable(deadline)
            try:
                return await self.send(request).answer
            except (LostError, NotSentError):
                # The link is down, or is about to hear of it.
                await asyncio.sleep(0)
                if asyncio.get_running_loop().time() >= deadline:
                    raise self._unreachable() from None
            except NoAnswerError:
                raise self._unreachable() from None

    def tell_written(self, begun_at: float) -> None:
        """A write that was begun then (by `SessionMonitor.now`) was answered: the session lives."""
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
            case thread.Connected(session, password, timeout_seconds, number):
                self.session, self._password, self.connection = session, password, number
                if self._monitor is None:
                    self.timeout_seconds = timeout_seconds
                self._prepare_anew()
            case thread.Disconnected():
                self._go_down()
                self._tell(Disconnected())
            case thread.Expired():
                self._go_down()
                self._tell(Expired())
            case thread.Refused():
                self._end(UnauthorizedError("ZooKeeper refuses the user or the password"))
                self._tell(AuthFailed())
            case thread.AttemptFailed(reason):
                self._take_failure(reason)

    def _take_failure(self, reason: BaseException) -> None:
        self._failure = reason
        self._asked_at = boot_time_seconds()
        if isinstance(reason, ssl.SSLCertVerificationError) and self._monitor is None:
            # Nothing gets better by waiting; later it may, when certificates are being replaced.
            self._end(self._unreachable())

    def _go_down(self) -> None:
        self._up.clear()
        if self._preparing is not None:
            self._preparing.cancel()

    def _end(self, error: BookieError) -> None:
        self._final = error
        self._up.set()  # everybody who waits looks at the error
        self._up = asyncio.Event()

    def _prepare_anew(self) -> None:
        if self._bridge is None:
            return  # the store is being closed
        if self._preparing is not None:
            self._preparing.cancel()
        self._preparing = self._tasks.create_task(self._prepare())

    async def _prepare(self) -> None:
        if self._has_been_up:
            # Before the watch is asked for, so before anything that it tells. Whoever lists because
            # of it waits until the link is usable, so until the watch is there.
            self._on_missed()
        try:
            await self.send(AddWatch(self._root)).answer
            if not self._has_been_up:
                await self.make_root()
        except (LostError, NotSentError, MetadataClosedError):
            return  # the next connection begins anew, if there is one
        except NoAnswerError:
            self._cut()  # nobody else would end it, if its pings are answered
            return
        except (UnauthorizedError, MetadataUnavailableError) as error:
            self._end(error)  # of the first connection, which makes the scope
            return
        except NodeError as error:
            if not self._has_been_up:
                self._end(self._explain(error))
                return
            # What worked before may work again.
            self._failure = self._explain(error)
            await asyncio.sleep(self.patience_seconds / 4)
            self._cut()
            return
        self._has_been_up = True
        self._failure = None
        self._up.set()
        self._tell(Connected())

    def _cut(self) -> None:
        if self._bridge is not None:
            self._bridge.cut()

    async def make_root(self) -> None:
        """Make the scope's own node, and those above it, if they do not exist.

        Like every birth theirs are counted: the node may lie in another scope, and was deleted.

        Raises:
            NodeError: the server refuses.
            UnauthorizedError: it does not let us create them, or count.
            MetadataUnavailableError: it refuses to count.
        """
        for path in reversed(ancestors(self._root)):
            await self._make(path, OPEN_ACL_UNSAFE)
        await self._make(self._root, self._acl)

    async def _make(self, path: str, acl: Sequence[ACL]) -> None:
        counter = counter_of(path)
        birth: list[NodeOperation] = [SetData(counter, None, -1), CreateNode(path, None, acl)]
        is_hidden = False
        while True:
            try:
                if await self.send(Exists(path, None)).answer is not None:
                    return
            except NodeError as error:
                if error.code != NO_AUTH:
                    raise
                is_hidden = True  # it may be there for what lies below it, but not for us
            try:
                await self.send(Multi(birth)).answer
            except MultiRefusedError as refused:
                if refused.index == 0 and refused.code == NO_NODE:
                    await make_counter(self, counter)
                elif refused.code == NODE_EXISTS or (refused.code == NO_AUTH and is_hidden):
                    return
                elif refused.code == NO_AUTH:
                    denied = (counter, path)[refused.index]
                    raise UnauthorizedError(
                        f"ZooKeeper does not let us make {path}: it refuses {denied}"
                    ) from refused
                else:
                    raise NodeError(refused.code) from refused
            else:
                return

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
        except thread.SessionEndedError as error:
            raise SessionLostError("the session with the metadata store ended") from error
        except (LostError, NotSentError, NoAnswerError, NodeError) as error:
            raise self._unreachable() from error

    async def _give_up_in_time(self) -> None:
        """Let nobody wait for an answer for ever: a silent connection is noticed late."""
        loop, patience = asyncio.get_running_loop(), self.patience_seconds
        while True:
            await asyncio.sleep(patience / 4)
            if self._bridge is not None:
                self._bridge.give_up(loop.time() - patience)

    async def _leave(self) -> None:
        self._final = MetadataClosedError("the metadata store is closed")
        bridge, self._bridge = self._bridge, None
        if self._preparing is not None:
            self._preparing.cancel()
        for task in self._workers:
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
