"""The public surface: connect to a cluster, create, open, list and delete ledgers; coordinate.

::

    async with connect("local:///var/lib/bookie/metadata") as bk:
        async with bk.create_ledger() as writer:
            entry_id = await writer.append(b"...")
        reader = await bk.open_ledger(writer.ledger_id)
        async for entry in reader.read():
            print(entry.entry_id, entry.payload)

Services that need locks, elections, groups, queues or counters of their own have them in a metadata
store, with a scope of their own::

    async with coordinate("etcd://127.0.0.1:2379/orders") as me:
        async with await LockManager(me).acquire("/locks/billing") as lock:
            ...

Everything runs in the event loop that entered `connect` or `coordinate`. Any loop will do; uvloop
is faster.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self, TypedDict, Unpack

from bookie.client.arguments import checked_bytes
from bookie.client.creating import creating
from bookie.client.ensembles import Ensembles
from bookie.client.explain import explain_ledger
from bookie.client.explanation import LedgerExplanation
from bookie.client.pool import BookiePool
from bookie.client.reader import ReaderHandle
from bookie.client.recovery import recover_ledger
from bookie.client.writer import WriterHandle
from bookie.cluster.cookies import CookieManager
from bookie.cluster.directory import BookieDirectory
from bookie.cluster.instance import read_instance_id
from bookie.cluster.ledger_ids import LedgerIdGenerator
from bookie.cluster.ledgers import LedgerManager
from bookie.cluster.placement_view import PlacementView
from bookie.config import RpcSettings, Sources, load_settings
from bookie.coordination.barriers import DoubleBarrier
from bookie.coordination.cache import JsonCodec, MetadataCache
from bookie.coordination.counters import Counter
from bookie.coordination.discovery import Discovery
from bookie.coordination.election import Election, LeaderState
from bookie.coordination.lock import Lock, LockState
from bookie.coordination.locks import LockManager
from bookie.coordination.membership import Group
from bookie.coordination.participant import Participant
from bookie.coordination.queues import Queue
from bookie.coordination.read_write_locks import ReadWriteLocks
from bookie.env.clock import SystemClock
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    ClientClosedError,
    LedgerClosedError,
    LedgerExistsError,
    UnauthorizedError,
)
from bookie.formats.digest import DigestType, derive_key
from bookie.formats.entry import Entry
from bookie.formats.ledger_metadata import Fragment, LedgerMetadata, LedgerState, Versioned
from bookie.formats.registration import Registration
from bookie.formats.service_instance import ServiceInstance
from bookie.metadata.connect import SESSION_TIMEOUT_SECONDS, open_store
from bookie.metadata.model import Check, Delete, Put, Record, Resync, Stat
from bookie.metadata.security import MetadataSecurity, security_of
from bookie.metadata.store import MetadataStore
from bookie.protocol.quorum import Quorum

__all__ = [
    "UNCLAIMED",
    "BookKeeper",
    "Check",
    "ClientOptions",
    "Counter",
    "Delete",
    "DigestName",
    "Discovery",
    "DoubleBarrier",
    "Election",
    "Entry",
    "Group",
    "JsonCodec",
    "LeaderState",
    "LedgerExplanation",
    "LedgerMetadata",
    "Lock",
    "LockManager",
    "LockState",
    "MetadataCache",
    "MetadataStore",
    "Participant",
    "Put",
    "Queue",
    "ReadWriteLocks",
    "ReaderHandle",
    "Record",
    "Resync",
    "ServiceInstance",
    "Stat",
    "WriterHandle",
    "connect",
    "coordinate",
    "open_store",
]

UNCLAIMED = "bookie.unclaimed"
"""Key in custom metadata: the ledger was created and has no writer yet (see `claim_ledger`)."""

CREATE_ATTEMPTS_MAX = 10
"""Ids tried for a new ledger. An id may be taken by a ledger that was created with it by hand."""


DigestName = Literal["crc32c", "crc32", "hmac", "dummy"]


class ClientOptions(TypedDict, total=False):
    """Keywords of `connect`: the settings of the section ``[client]``."""

    add_timeout_seconds: float
    replace_after_seconds: float
    changes_per_minute_max: int
    read_timeout_seconds: float
    connect_timeout_seconds: float
    speculative_read_seconds: float
    in_flight_entries_max: int
    in_flight_bytes_max: int | str
    batch_entries_max: int
    batch_bytes_max: int | str
    tail_refresh_seconds: float


def connect(
    metadata_uri: str,
    *,
    session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
    rpc: RpcSettings | None = None,
    **settings: Unpack[ClientOptions],
) -> BookKeeper:
    """A client of the cluster whose metadata is at `metadata_uri`; enter it to connect.

    Args:
        metadata_uri: ``local:///directory``, ``zk://host:2181/scope``, ``etcd://host:2379/scope``
            or ``memory://name``. What servers need besides, TLS and credentials, comes from the
            settings of the section [metadata].
        session_timeout_seconds: of the session with the metadata store.
        rpc: message sizes and keepalive; those of the section ``[rpc]`` when None.
        settings: of the section ``[client]``, such as ``add_timeout_seconds=10``. What is not given
            comes from variables such as ``BOOKIE_CLIENT__ADD_TIMEOUT_SECONDS``, from the file that
            ``BOOKIE_CONFIG`` names, or has its default.

    Raises:
        ConfigurationError: a setting or the URI is wrong. Entering the client may raise it, too.
    """
    given = {f"client.{key}": str(value) for key, value in settings.items()}
    sources = Sources.read(None, given)
    loaded = sources.settings()
    return BookKeeper(
        metadata_uri,
        sources,
        rpc or loaded.rpc,
        session_timeout_seconds=session_timeout_seconds,
        security=security_of(loaded.metadata),
    )


@asynccontextmanager
async def coordinate(
    metadata_uri: str, *, session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS
) -> AsyncIterator[Participant]:
    """This process's part in a service's coordination; every recipe is made with it.

    It has a session of its own. At the end of the block, or of the session, it releases everything:
    locks, leadership, memberships, and items that are not done. A stopped process learns late that
    it has lost a lock. So guard what the lock protects: by `Lock.token`, or by `Lock.check` in a
    transaction of `Participant.store`.

    Args:
        metadata_uri: as for `connect`, but with a scope that no cluster of bookies uses. Foreign
            keys in a cluster's scope prevent its removal.
        session_timeout_seconds: how long others wait for a process that died or cannot be reached.

    Raises:
        ConfigurationError: the URI or a setting of [metadata] is wrong.
        MetadataUnavailableError: the store does not answer.
    """
    security = security_of(load_settings(None).metadata)
    async with (
        open_store(
            metadata_uri, session_timeout_seconds=session_timeout_seconds, security=security
        ) as store,
        Participant(store) as participant,
    ):
        yield participant


class BookKeeper:
    """A client of one cluster: an async context manager, made by `connect`.

    The end of the context, or `aclose`, closes all connections and abandons writers that are still
    open. Their ledgers stay open until a recovery. Appends that still wait raise ClientClosedError;
    their outcome is unknown.
    """

    def __init__(
        self,
        metadata_uri: str,
        sources: Sources,
        rpc: RpcSettings,
        *,
        session_timeout_seconds: float,
        security: MetadataSecurity | None = None,
    ) -> None:
        self._metadata_uri = metadata_uri
        self._session_timeout_seconds = session_timeout_seconds
        self._security = security
        self._sources = sources
        self._rpc = rpc
        self._tasks = asyncio.TaskGroup()
        self._resources = AsyncExitStack()
        self._entered: _Entered | None = None

    async def __aenter__(self) -> Self:
        if self._entered is not None:
            raise BadRequestError("the client is connected already")
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(
                open_store(
                    self._metadata_uri,
                    session_timeout_seconds=self._session_timeout_seconds,
                    security=self._security,
                )
            )
            instance_id = await read_instance_id(store)
            directory = await stack.enter_async_context(BookieDirectory(store))
            placement = await stack.enter_async_context(
                PlacementView(store, directory, self._sources)
            )
            self._tasks = asyncio.TaskGroup()
            await self._tasks.__aenter__()
            settings = self._sources.settings().client
            pool = BookiePool(directory, instance_id, self._tasks, settings, self._rpc)
            self._entered = _Entered(
                instance_id,
                directory,
                Ensembles(directory, placement, CookieManager(store)),
                pool,
                LedgerManager(store),
                LedgerIdGenerator(store),
            )
            self._resources = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Do what the end of the context does. It has no effect before the client is connected."""
        entered, self._entered = self._entered, None
        if entered is None:
            return
        try:
            await entered.pool.aclose()
        finally:
            try:
                # The group does not get the error of the body, because it would wrap it.
                await self._tasks.__aexit__(None, None, None)
            finally:
                await self._resources.aclose()

    def __repr__(self) -> str:
        state = "not connected" if self._entered is None else "connected"
        return f"<BookKeeper {self._metadata_uri!r}, {state}>"

    @property
    def instance_id(self) -> str:
        """The id of the cluster."""
        return self._connected.instance_id

    def bookies(self) -> Mapping[str, Registration]:
        """The registered bookies by id, read-only ones included, as of now."""
        return self._connected.directory.all()

    @creating
    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        password: bytes = b"",
        digest_type: DigestName | DigestType = "crc32c",
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
        allow_degraded: bool = False,
    ) -> WriterHandle:
        """Create a ledger and return its writer, the only one it will ever have.

        Await it, or enter it: ``async with bk.create_ledger() as writer`` closes the ledger at the
        end of the block.

        Args:
            ensemble_size: bookies that the ledger is spread over.
            write_quorum_size: bookies that each entry is written to.
            ack_quorum_size: bookies that must have stored an entry before `append` returns.
            password: admits readers and recovery; stored as a derived key only.
            digest_type: ``crc32c``, ``crc32``, ``hmac`` or ``dummy``.
            custom_metadata: kept with the ledger, for the user.
            ledger_id: a free id; None takes a fresh one.
            deferred_sync: `append` returns before entries are durable; `force` makes them so. The
                bookies of such a ledger are never replaced: one that fails is skipped.
            allow_degraded: create the ledger even with fewer writable bookies than `ensemble_size`,
                as long as each write set has an ack quorum of them. The slots that are left are
                vacant (``vacant.2``), as if their bookies had failed: entries have fewer copies,
                until bookies come.

        Raises:
            NotEnoughBookiesError: fewer writable bookies than `ensemble_size`, or than
                `allow_degraded` needs, or `placement.enforce` forbids what there is.
            LedgerExistsError: `ledger_id` is taken.
            BadRequestError: sizes or digest type are wrong.
            MetadataError: the metadata store failed; a ledger may have been created.
        """
        entered = self._connected
        key = _key_of(password)
        quorum = Quorum(ensemble_size, write_quorum_size, ack_quorum_size)
        ensembles = entered.ensembles
        bookies = ensembles.choose(quorum, allow_degraded=allow_degraded)
        incarnations = await ensembles.incarnations(bookies)
        metadata = LedgerMetadata(
            ledger_id=0,
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            state=LedgerState.OPEN,
            fragments=(Fragment(0, bookies),),
            digest_type=_digest_type(digest_type),
            password_key=key,
            ctime_ms=SystemClock().now_ms(),
            custom_metadata=_custom(custom_metadata),
        )
        created = await _create(entered, metadata, ledger_id)
        lost = await ensembles.lost_since(incarnations)
        writer = WriterHandle(
            created,
            entered.pool,
            entered.ledgers,
            incarnations,
            ensembles,
            deferred_sync=deferred_sync,
        )
        writer.start(lost)
        return writer

    @creating
    async def claim_ledger(self, ledger_id: int, *, password: bytes = b"") -> WriterHandle:
        """Become the writer of a ledger that another client created without writing it.

        Await it, or enter it, as `create_ledger`.

        Such a ledger has the key `UNCLAIMED` in its custom metadata, and no entry. Of several
        claims at once one wins: the key is removed by compare-and-set. The same step gives slots
        that were left vacant (`allow_degraded`) to bookies that have come since.

        Raises:
            NoSuchLedgerError: it does not exist.
            UnauthorizedError: the password is wrong.
            LedgerClosedError: it has, or had, its one writer.
            MetadataError: the metadata store failed; unknown whether it was claimed.
        """
        entered = self._connected
        found = await entered.ledgers.read(ledger_id)
        _check_password(found.value, password)
        custom_metadata = dict(found.value.custom_metadata)
        unclaimed = custom_metadata.pop(UNCLAIMED, None) is not None
        if not unclaimed or found.value.state is not LedgerState.OPEN:
            raise _has_a_writer(ledger_id)
        ensembles = entered.ensembles
        claimed = ensembles.mended(replace(found.value, custom_metadata=custom_metadata))
        incarnations = await ensembles.incarnations(claimed.last_fragment.bookies)
        try:
            found = await entered.ledgers.write(claimed, found.version)
        except BadVersionError as error:
            raise _has_a_writer(ledger_id) from error
        lost = await ensembles.lost_since(incarnations)
        writer = WriterHandle(found, entered.pool, entered.ledgers, incarnations, ensembles)
        writer.start(lost)
        return writer

    async def open_ledger(
        self, ledger_id: int, *, password: bytes = b"", recover: bool = False
    ) -> ReaderHandle:
        """Open a ledger for reading.

        Without `recover` the writer goes on. An open ledger is read up to its last add confirmed,
        and can be followed. With `recover` the ledger is taken from its writer and closed. Every
        acknowledged entry is in it, and the writer gets LedgerFencedError.

        Raises:
            NoSuchLedgerError: it does not exist.
            UnauthorizedError: the password is wrong.
            NotEnoughBookiesError: too few bookies answered to tell where the ledger ends.
            LedgerRecoveryError: likewise, while recovering; it may be tried again.
            MetadataError: the metadata store failed.
        """
        entered = self._connected
        found = await entered.ledgers.read(ledger_id)
        _check_password(found.value, password)
        if recover:
            found = await recover_ledger(found, entered.pool, entered.ledgers, entered.ensembles)
        reader = ReaderHandle(found, entered.pool, entered.ledgers)
        if not reader.is_closed:
            await reader.refresh()
        return reader

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger: it can never be opened again, and bookies give its space back later.

        A writer or reader that has it open is not warned. Bookies learn of deletions by listing
        the cluster's ledgers, in seconds or, in a large cluster, minutes. Until then such a writer
        may still be acknowledged; afterwards it is refused as if the ledger were fenced. Its
        `close` says that the ledger is gone.

        Raises:
            NoSuchLedgerError: it does not exist.
            MetadataError: the metadata store failed; unknown whether it was deleted.
        """
        await self._connected.ledgers.delete(ledger_id)

    async def list_ledgers(self, *, after: int = -1) -> AsyncIterator[int]:
        """The ids above `after` of all ledgers, ascending; complete, or it raises.

        Raises:
            MetadataError: the metadata store failed.
        """
        async for ledger_id in self._connected.ledgers.list_ids(after):
            yield ledger_id

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """The metadata of a ledger as of now.

        Raises:
            NoSuchLedgerError: it does not exist.
            MetadataError: the metadata store failed.
        """
        return (await self._connected.ledgers.read(ledger_id)).value

    async def explain_ledger(self, ledger_id: int) -> LedgerExplanation:
        """What a recovery of the ledger would decide now. Nothing is fenced or written.

        It asks the bookies of the last ensemble and tells what each of them says.

        Raises:
            NoSuchLedgerError: it does not exist.
            MetadataError: the metadata store failed.
        """
        entered = self._connected
        found = await entered.ledgers.read_latest(ledger_id)
        return await explain_ledger(found, entered.pool, entered.ensembles)

    @property
    def _connected(self) -> _Entered:
        if self._entered is None:
            raise ClientClosedError("the client is not connected; use it as `async with`")
        return self._entered


def _check_password(metadata: LedgerMetadata, password: bytes) -> None:
    if not hmac.compare_digest(_key_of(password), metadata.password_key):
        raise UnauthorizedError(f"the password of ledger {metadata.ledger_id} is another one")


def _key_of(password: bytes) -> bytes:
    return derive_key(checked_bytes(password, "the password"))


def _custom(metadata: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """Custom metadata as it is stored; it must be text to bytes."""
    if not isinstance(metadata, Mapping | None) or not all(
        isinstance(name, str) for name in metadata or {}
    ):
        raise BadRequestError("custom metadata must map strings to bytes")
    return {
        name: checked_bytes(value, f"the custom metadata {name!r}")
        for name, value in (metadata or {}).items()
    }


def _has_a_writer(ledger_id: int) -> LedgerClosedError:
    return LedgerClosedError(
        f"ledger {ledger_id} has its writer already, and gets no second one; create another"
    )


@dataclass(frozen=True, slots=True)
class _Entered:
    """What a client has while it is connected."""

    instance_id: str
    directory: BookieDirectory
    ensembles: Ensembles
    pool: BookiePool
    ledgers: LedgerManager
    ids: LedgerIdGenerator


async def _create(
    entered: _Entered, metadata: LedgerMetadata, ledger_id: int | None
) -> Versioned[LedgerMetadata]:
    """Store new metadata, under a given id or a fresh one."""
    if ledger_id is not None:
        return await entered.ledgers.create(replace(metadata, ledger_id=ledger_id))
    for _ in range(CREATE_ATTEMPTS_MAX):
        fresh = replace(metadata, ledger_id=await entered.ids.next())
        try:
            return await entered.ledgers.create(fresh, is_fresh=True)
        except LedgerExistsError:
            continue  # another client chose this id
    raise LedgerExistsError(f"{CREATE_ATTEMPTS_MAX} fresh ledger ids in a row were taken")


def _digest_type(named: str | DigestType) -> DigestType:
    if isinstance(named, DigestType):
        return named
    try:
        return DigestType[str(named).upper()]
    except KeyError:
        names = ", ".join(digest_type.name.lower() for digest_type in DigestType)
        raise BadRequestError(f"{named!r} is not a digest type; use one of {names}") from None
