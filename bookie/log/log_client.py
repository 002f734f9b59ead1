"""The access of a client to logs: to their ledgers, their metadata and their policies."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Mapping

from bookie.coordination.participant import Participant
from bookie.entry.digest import DigestType
from bookie.env import Clock, SystemClock
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    BookieError,
    ClientClosedError,
    KeyExistsError,
    LogExistsError,
    NoSuchKeyError,
    NoSuchLogError,
    NotEnoughBookiesError,
)
from bookie.ids import LOG_TAG
from bookie.ledger.connection.calls import ELSEWHERE
from bookie.ledger.connection.pool import ask_bookies
from bookie.ledger.ledger_client import LedgerClient, LedgerShape
from bookie.ledger.quorum import Quorum
from bookie.ledger.write.handle import WriterHandle
from bookie.log.catalog.log_metadata import LogDefinition, LogMode
from bookie.log.catalog.log_policy import DEFAULTS, LogPolicy
from bookie.log.catalog.logs import DEFAULT_NAMESPACE, LogManager, LogName, LogPartition
from bookie.log.catalog.namespaces import NamespaceManager
from bookie.log.clock_check import ANSWER_SECONDS_MAX, ClockCheck
from bookie.metadata.model import NOT_EXISTS, Check
from bookie.metadata.store import MetadataStore

PARTITION_TAG = "bookie.log.partition"
"""The key of the partition number in the custom metadata of a log's ledgers."""

CREATED_TAG = "bookie.log.created_ms"
"""The key of the creation time, in ms since 1970, in the custom metadata of a log's ledgers.

The creator of the ledger compares its clock with bookies' clocks first. A ledger that a compaction
creates has the time of the newest ledger that the compaction copied."""

ASKED_EACH = 4
"""The number of bookies that are asked for each bookie of a new ledger's ensemble."""


class LogClient:
    """The access of a connected client to all logs."""

    def __init__(
        self,
        ledgers: LedgerClient,
        store: MetadataStore,
        configuration: MetadataStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`configuration` is the metadata store of the namespaces; None means `store`."""
        self.ledgers = ledgers
        self.store = store
        self.clock = clock or SystemClock()
        self.clocks = ClockCheck(self.clock, ledgers)
        self.logs = LogManager(store, self.clock)
        self.namespaces = NamespaceManager(configuration or store)
        self._has_namespaces = configuration in (None, store)
        """True if the namespaces are in the same store as the logs."""
        self.identity = f"{socket.gethostname()}:{os.getpid()}"
        """The name of this process as an owner of partitions and cursors."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = asyncio.Event()
        self._participant: asyncio.Future[Participant] | None = None
        self._taking_part: asyncio.Task[None] | None = None

    def require_here(self) -> None:
        """Check that the running event loop is the loop of the client's first call.

        Raises:
            BadRequestError: another event loop is running.
        """
        here = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = here
        if self._loop is not here:
            raise BadRequestError(ELSEWHERE)

    async def participant(self) -> Participant:
        """Return the `Participant` that consumers and groups share; create it if necessary.

        Raises:
            ClientClosedError: the client was closed.
        """
        self.require_here()
        if self._leaving.is_set():
            raise ClientClosedError("the client was closed")
        if self._participant is None:
            self._participant = begun = asyncio.get_running_loop().create_future()
            # The participant has its own task, because the first caller may end before the others.
            name = "part in the coordination of consumers"
            self._taking_part = self.ledgers.pool.spawn(self._take_part(begun), name=name)
        return await asyncio.shield(self._participant)

    async def _take_part(self, begun: asyncio.Future[Participant]) -> None:
        try:
            async with Participant(self.store) as participant:
                begun.set_result(participant)
                await self._leaving.wait()
        except BookieError as error:
            if begun.done():
                raise
            self._participant = None  # the next caller tries again
            begun.set_exception(error)
            begun.exception()  # retrieve the error: all callers may have been cancelled

    async def close(self) -> None:
        """Release all cursors and leave all groups. Call `close` before the store is closed."""
        self._leaving.set()
        if self._taking_part is not None:
            await asyncio.wait([self._taking_part])

    async def create(
        self,
        name: LogName,
        *,
        mode: LogMode = LogMode.WRITER,
        partitions: int | None = None,
        policy: LogPolicy | None = None,
    ) -> LogDefinition:
        """Create a log. Fields that `policy` does not set are taken from the namespace's policy.

        The call creates the log first, and then replaces the stored policy of this name by
        `policy`. If the log cannot be created, the stored policy does not change. If `policy` is
        None, a stored policy of this name stays.

        Raises:
            LogExistsError: the name is taken.
            NoSuchKeyError: there is no such namespace.
            BadRequestError: a number is out of range, or `policy` contradicts the namespace's
                policy.
        """
        while True:
            conditions = await self._conditions(name.namespace)
            decided = await self._decided(name.namespace, name.log if policy is None else None)
            if policy is not None:
                decided = policy.over(decided)
            count = partitions if partitions is not None else decided.partitions
            assert count is not None, "the defaults decide everything"
            try:
                created = await self.logs.create(name, mode, count, conditions=conditions)
            except BadVersionError:
                continue  # the namespace was changed or deleted meanwhile
            if policy is not None:
                await self._decide(name, policy)
            return created.value

    async def _conditions(self, namespace: str) -> list[Check]:
        """Return the conditions for a new log of a namespace: the namespace stays as it is now.

        If the namespaces are in another store, a transaction cannot check them: there are no
        conditions. The namespace ``default`` need not exist.
        """
        if not self._has_namespaces:
            return []
        try:
            return [await self.namespaces.condition(namespace)]
        except NoSuchKeyError:
            if namespace == DEFAULT_NAMESPACE:
                return []
            raise

    async def _decide(self, name: LogName, policy: LogPolicy) -> None:
        if policy == LogPolicy():
            await self.namespaces.clear_log_policy(name.namespace, name.log)
            return
        if name.namespace == DEFAULT_NAMESPACE:
            await self._make_default_namespace()
        before = await self.namespaces.log_policy(name.namespace, name.log)
        version = NOT_EXISTS if before is None else before.version
        await self.namespaces.set_log_policy(name.namespace, name.log, policy, version)

    async def _make_default_namespace(self) -> None:
        try:
            await self.namespaces.create(DEFAULT_NAMESPACE)
        except KeyExistsError:
            return

    async def definition(self, name: LogName, *, create: bool = False) -> LogDefinition:
        """Read the definition of a log. With `create`, create the log if it does not exist.

        Raises:
            NoSuchLogError: there is no such log.
        """
        self.require_here()
        try:
            return (await self.logs.read(name)).value
        except NoSuchLogError:
            if not create:
                raise
        try:
            return await self.create(name)
        except LogExistsError:
            return (await self.logs.read(name)).value

    async def policy(self, name: LogName) -> LogPolicy:
        """Return a log's policy, with fields inherited from its namespace and from the defaults.

        Raises:
            NoSuchKeyError: the namespace does not exist, and is not the default namespace.
        """
        return await self._decided(name.namespace, name.log)

    async def _decided(self, namespace: str, log: str | None) -> LogPolicy:
        try:
            return await self.namespaces.policy(namespace, log)
        except NoSuchKeyError:
            if namespace == DEFAULT_NAMESPACE:
                return DEFAULTS
            raise

    async def create_ledger(
        self, shape: LedgerShape, custom_metadata: Mapping[str, bytes]
    ) -> WriterHandle:
        """Create a ledger of a log; store its creation time if a bookie's clock confirms the time.

        Raises:
            ClockError: the clock of this machine contradicts the clocks of all bookies.
            BookieError: the errors of `LedgerClient.create`.
        """
        created_ms = None
        if await self.clocks.require_right():
            created_ms = self.clock.now_ms()
            custom_metadata = {CREATED_TAG: str(created_ms).encode(), **custom_metadata}
        return await self.ledgers.create(shape, custom_metadata, created_ms=created_ms)

    async def require_answers(self, shape: LedgerShape) -> None:
        """Check, before a ledger is created, that enough bookies answer for this new ledger.

        Raises:
            NotEnoughBookiesError: too few bookies answer.
        """
        quorum = shape.quorum
        needed = quorum.ensemble_size - (quorum.write_quorum_size - quorum.ack_quorum_size)
        known = sorted(self.ledgers.directory.bookies())
        asked = random.sample(known, min(len(known), ASKED_EACH * quorum.ensemble_size))
        answers = await ask_bookies(self.ledgers.pool, asked, timeout_seconds=ANSWER_SECONDS_MAX)
        if len(answers) < needed:
            raise NotEnoughBookiesError(
                f"{len(answers)} of {len(asked)} registered bookies answer, and a ledger of this "
                f"log needs {needed}"
            )

    async def require_recoverable(self, ledger_id: int) -> None:
        """Check, without fencing, that enough bookies of a ledger answer to find the ledger's end.

        Raises:
            NotEnoughBookiesError: too few bookies of the last ensemble answer.
            NoSuchLedgerError: the ledger was deleted.
        """
        metadata = (await self.ledgers.ledgers.read(ledger_id)).value
        if metadata.is_closed:
            return
        bookies = metadata.last_fragment.bookies
        pool = self.ledgers.pool
        answers = await ask_bookies(pool, bookies, timeout_seconds=ANSWER_SECONDS_MAX)
        silent = [one for one in bookies if one not in answers]
        if len(silent) >= metadata.ack_quorum_size:
            raise NotEnoughBookiesError(
                f"too few bookies answer to tell where ledger {ledger_id} ends; not "
                f"{' and '.join(silent)}"
            )

    def shape(self, policy: LogPolicy, password: bytes = b"") -> LedgerShape:
        """Return the shape of new ledgers of a log with this policy: quorum, digest, password."""
        assert policy.ensemble_size
        assert policy.write_quorum_size
        assert policy.ack_quorum_size
        assert policy.digest
        quorum = Quorum(policy.ensemble_size, policy.write_quorum_size, policy.ack_quorum_size)
        return LedgerShape(
            quorum,
            DigestType[policy.digest.upper()],
            password,
            allow_degraded=bool(policy.allow_degraded),
        )

    @staticmethod
    def tags(partition: LogPartition, log_id: str) -> Mapping[str, bytes]:
        """Return the custom metadata by which a sweep recognises the ledgers of a log."""
        return {
            LOG_TAG: f"{partition.name.namespace}/{partition.name.log} {log_id}".encode(),
            PARTITION_TAG: str(partition.number).encode(),
        }
