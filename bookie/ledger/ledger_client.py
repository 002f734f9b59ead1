"""The ledgers of a connected client: create, claim, open, recover and delete them.

`BookKeeper` and logs use `LedgerClient`. Callers of `LedgerClient` must check the arguments, and
must pass all settings, because the methods have no defaults for settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from bookie.cluster.cookies import CookieManager
from bookie.cluster.directory import BookieDirectory
from bookie.cluster.instance import read_instance_id
from bookie.config import RpcSettings, Sources
from bookie.entry.digest import DigestType, is_password, is_weaker, key_of_life
from bookie.env.clock import SystemClock
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    LedgerClosedError,
    LedgerExistsError,
    UnauthorizedError,
    WeakDigestError,
)
from bookie.ledger.catalog.ledger_ids import LedgerIdGenerator
from bookie.ledger.catalog.ledgers import LedgerManager, new_token
from bookie.ledger.connection.arguments import checked_bytes
from bookie.ledger.connection.pool import BookiePool
from bookie.ledger.metadata import WRITER, Fragment, LedgerMetadata, LedgerState
from bookie.ledger.place.ensembles import Ensembles
from bookie.ledger.place.placement_view import PlacementView
from bookie.ledger.quorum import Quorum
from bookie.ledger.read.handle import ReaderHandle
from bookie.ledger.recover.driver import recover_ledger
from bookie.ledger.write.handle import WriterHandle
from bookie.ledger.write.writer_record import WriterRecord
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from bookie.wire.grpc.credentials import ChannelSecurity

UNCLAIMED = "bookie.unclaimed"
"""The custom metadata key of a ledger that was created without a writer, and that no writer has
claimed yet (`claim`)."""

CREATE_ATTEMPTS_MAX = 10
"""The largest number of ids to try for a new ledger. An id may be in use, because another client
chose it itself."""


@dataclass(frozen=True, slots=True)
class LedgerShape:
    """Sizes, digest and password of a new ledger."""

    quorum: Quorum
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    deferred_sync: bool = False
    allow_degraded: bool = False


@asynccontextmanager
async def open_ledger_client(
    store: MetadataStore, sources: Sources, rpc: RpcSettings, *, names_writer: bool = True
) -> AsyncIterator[LedgerClient]:
    """Yield a connected client, with its view of bookies, its placement and its connections.

    Without `names_writer`, the client's ledgers do not name their writer, so no auditor recovers
    these ledgers automatically.

    Raises:
        ConfigurationError: a setting of the placement is wrong.
        MetadataError: the store does not answer, or holds no cluster.
    """
    instance_id = await read_instance_id(store)
    async with (
        BookieDirectory(store) as directory,
        PlacementView(store, directory, sources) as placement,
        AsyncExitStack() as steps,
    ):
        tasks = asyncio.TaskGroup()
        await tasks.__aenter__()
        # Hide the error of the block from the task group, which would wrap it in an ExceptionGroup.
        steps.push_async_callback(tasks.__aexit__, None, None, None)
        settings = sources.settings()
        security = ChannelSecurity(settings.security)
        pool = BookiePool(directory, instance_id, tasks, settings.client, rpc, security)
        steps.push_async_callback(pool.close)
        record = None
        if names_writer:
            record = WriterRecord(store, instance_id, pool.spawn)
            steps.push_async_callback(record.close)
        yield LedgerClient(
            instance_id,
            directory,
            Ensembles(directory, placement, CookieManager(store)),
            pool,
            LedgerManager(store),
            LedgerIdGenerator(store),
            record,
            digest_least=DigestType[settings.client.digest_least.upper()],
        )


class LedgerClient:
    """A connected client: its parts, and its operations on ledgers."""

    def __init__(
        self,
        instance_id: str,
        directory: BookieDirectory,
        ensembles: Ensembles,
        pool: BookiePool,
        ledgers: LedgerManager,
        ids: LedgerIdGenerator,
        writer_record: WriterRecord | None = None,
        *,
        digest_least: DigestType = DigestType.DUMMY,
    ) -> None:
        """Create the client; it refuses ledgers with a digest weaker than `digest_least`."""
        self.instance_id = instance_id
        self.directory = directory
        self.ensembles = ensembles
        self.pool = pool
        self.ledgers = ledgers
        self.ids = ids
        self._writer_record = writer_record
        self._digest_least = digest_least

    async def _writer_id(self) -> str:
        """Store this client's writer record; return its writer id ("" if it has no record)."""
        return "" if self._writer_record is None else await self._writer_record.ensure()

    async def create(
        self,
        shape: LedgerShape,
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        *,
        created_ms: int | None = None,
    ) -> WriterHandle:
        """Create a ledger and return its writer; raises the errors of `BookKeeper.create_ledger`.

        `created_ms` is the creation time in ms since 1970; None means now.
        """
        password = checked_bytes(shape.password, "the password")
        self._require_digest(shape.digest_type, "a new ledger")
        token = new_token()
        bookies = self.ensembles.choose(shape.quorum, allow_degraded=shape.allow_degraded)
        self.pool.require_permitted(bookies)
        incarnations = await self.ensembles.incarnations(bookies)
        custom = _custom(custom_metadata)
        metadata = LedgerMetadata(
            ledger_id=0,
            ensemble_size=shape.quorum.ensemble_size,
            write_quorum_size=shape.quorum.write_quorum_size,
            ack_quorum_size=shape.quorum.ack_quorum_size,
            state=LedgerState.OPEN,
            fragments=(Fragment(0, bookies),),
            digest_type=shape.digest_type,
            password_key=key_of_life(password, token),
            ctime_ms=SystemClock().now_ms() if created_ms is None else created_ms,
            custom_metadata=custom,
            c_token=token,
            writer_id="" if UNCLAIMED in custom else await self._writer_id(),
        )
        created = await self._store(metadata, ledger_id)
        lost = await self.ensembles.lost_since(incarnations)
        writer = WriterHandle(
            created,
            self.pool,
            self.ledgers,
            incarnations,
            self.ensembles,
            deferred_sync=shape.deferred_sync,
        )
        writer.start(lost)
        return writer

    async def _store(
        self, metadata: LedgerMetadata, ledger_id: int | None
    ) -> Versioned[LedgerMetadata]:
        """Store the metadata of a new ledger; assign a new id if `ledger_id` is None."""
        if ledger_id is not None:
            return await self.ledgers.create(replace(metadata, ledger_id=ledger_id))
        for _ in range(CREATE_ATTEMPTS_MAX):
            fresh = replace(metadata, ledger_id=await self.ids.next())
            try:
                return await self.ledgers.create(fresh, is_fresh=True)
            except LedgerExistsError:
                continue  # another client chose this id
        raise LedgerExistsError(f"{CREATE_ATTEMPTS_MAX} fresh ledger ids in a row were taken")

    async def claim(self, ledger_id: int, password: bytes = b"") -> WriterHandle:
        """Become the writer of an unclaimed ledger; see `BookKeeper.claim_ledger`."""
        found = await self.ledgers.read(ledger_id)
        self._admit(found.value, password)
        custom_metadata = dict(found.value.custom_metadata)
        unclaimed = custom_metadata.pop(UNCLAIMED, None) is not None
        if not unclaimed or found.value.state is not LedgerState.OPEN:
            raise _has_a_writer(ledger_id)
        claimed = self.ensembles.mended(replace(found.value, custom_metadata=custom_metadata))
        incarnations = await self.ensembles.incarnations(claimed.last_fragment.bookies)
        claimed = replace(claimed, writer_id=await self._writer_id())
        try:
            found = await self.ledgers.write(claimed, found.version)
        except BadVersionError as error:
            raise _has_a_writer(ledger_id) from error
        lost = await self.ensembles.lost_since(incarnations)
        writer = WriterHandle(found, self.pool, self.ledgers, incarnations, self.ensembles)
        writer.start(lost)
        return writer

    async def open(
        self,
        ledger_id: int,
        password: bytes = b"",
        *,
        recover: bool = False,
        asks_for_lac: bool = True,
    ) -> ReaderHandle:
        """Open a ledger for reading; see `BookKeeper.open_ledger`.

        Without `asks_for_lac`, the client asks no bookie for the LAC of an open ledger. Use such a
        reader, which does not know the LAC, only for `read_acknowledged`.
        """
        found = await self.ledgers.read(ledger_id)
        self._admit(found.value, password)
        if recover:
            found = await recover_ledger(found, self.pool, self.ledgers, self.ensembles)
            self._admit(found.value, password)  # the ledger may have changed
        reader = ReaderHandle(found, self.pool, self.ledgers)
        if asks_for_lac and not reader.is_closed:
            await reader.refresh()
        return reader

    async def check_password(self, ledger_id: int, password: bytes) -> None:
        """Check a password against a ledger's metadata.

        Raises:
            UnauthorizedError: the password is wrong.
            NoSuchLedgerError: the ledger does not exist.
        """
        _check_password((await self.ledgers.read(ledger_id)).value, password)

    async def recover(self, ledger_id: int, password: bytes = b"") -> LedgerMetadata:
        """Fence a ledger's writer and close the ledger; return the ledger's final metadata.

        Raises the errors of `BookKeeper.open_ledger` with `recover`.
        """
        found = await self.ledgers.read_latest(ledger_id)
        self._admit(found.value, password)
        return (await recover_ledger(found, self.pool, self.ledgers, self.ensembles)).value

    async def close_for_deletion(self, ledger_id: int) -> None:
        """Fence a ledger's writer and close the ledger, without a password.

        The ledger may have a digest of any type, because no client will read its entries.

        Raises the errors of `recover`.
        """
        found = await self.ledgers.read_latest(ledger_id)
        await recover_ledger(found, self.pool, self.ledgers, self.ensembles)

    def _admit(self, metadata: LedgerMetadata, password: bytes) -> None:
        """Check the password and the digest type of a ledger that the caller wants to use.

        Raises:
            UnauthorizedError: the ledger has another password.
            WeakDigestError: the ledger's digest is too weak for this client.
        """
        _check_password(metadata, password)
        self._require_digest(metadata.digest_type, f"ledger {metadata.ledger_id}")

    def _require_digest(self, digest_type: DigestType, ledger: str) -> None:
        if is_weaker(digest_type, self._digest_least):
            given, least = digest_type.name.lower(), self._digest_least.name.lower()
            raise WeakDigestError(
                f"{ledger} has the digest {given}, and client.digest_least is {least}"
            )


def _check_password(metadata: LedgerMetadata, password: bytes) -> None:
    password = checked_bytes(password, "the password")
    if not is_password(password, metadata.password_key, metadata.c_token):
        raise UnauthorizedError(f"the password of ledger {metadata.ledger_id} is another one")


def _custom(metadata: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """Check the caller's custom metadata, which must map text to bytes; return a copy."""
    if not isinstance(metadata, Mapping | None) or not all(
        isinstance(name, str) for name in metadata or {}
    ):
        raise BadRequestError("custom metadata must map strings to bytes")
    if WRITER in (metadata or {}):
        raise BadRequestError(f"custom metadata cannot have the name {WRITER}: it is reserved")
    return {
        name: checked_bytes(value, f"the custom metadata {name!r}")
        for name, value in (metadata or {}).items()
    }


def _has_a_writer(ledger_id: int) -> LedgerClosedError:
    return LedgerClosedError(
        f"ledger {ledger_id} has its writer already, and gets no second one; create another"
    )
