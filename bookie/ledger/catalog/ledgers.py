"""Stores the metadata of ledgers, and changes it by compare-and-set.

A new ledger gets a random creation token. If the store's reply was lost, the client recognizes its
own ledger by this token. A listing is complete or raises an error, because bookies delete the data
of each ledger that is missing from a listing. A deletion leaves a record that proves the deletion
(`deletion_proofs`).
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from bookie.cluster.instance import require_instance
from bookie.cluster.layout import FLAT, LedgerLayout, read_layout
from bookie.env import Clock, SystemClock
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    FormatError,
    KeyExistsError,
    LedgerExistsError,
    NoSuchKeyError,
    NoSuchLedgerError,
)
from bookie.ids import NO_ENTRY
from bookie.ledger.catalog.deletion_proofs import find_proofs, keys_of_today, proof_of, sweep_proofs
from bookie.ledger.catalog.store_marks import StoreMarks, read_marks
from bookie.ledger.deletion_proof import DeletionProof
from bookie.ledger.metadata import LedgerMetadata, decode, encode
from bookie.metadata.model import NOT_EXISTS, Change, Check, Delete, Operation, Put, Record, Stat
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from bookie.telemetry import event_log

_log = event_log(__name__)


class LedgerManager:
    """The metadata of all ledgers of a cluster."""

    def __init__(
        self, store: MetadataStore, layout: LedgerLayout | None = None, clock: Clock | None = None
    ) -> None:
        """Without `layout`, the manager reads the layout from the store at first use."""
        self._store = store
        self._layout = layout
        self._clock = clock or SystemClock()

    async def read_marks(self, bookie_id: str) -> StoreMarks:
        """Read the marks that show whether the store was restored from an older copy."""
        return await read_marks(self._store, bookie_id)

    async def require_instance(self, instance_id: str) -> None:
        """Check that the store holds this cluster; raise WrongClusterError if it does not."""
        await require_instance(self._store, instance_id)

    async def create(
        self, metadata: LedgerMetadata, *, is_fresh: bool = False
    ) -> Versioned[LedgerMetadata]:
        """Store the metadata of a new ledger; return the metadata with its creation token.

        A creation token of 0 is replaced by a random token. After MetadataUnavailableError, a
        caller that chose the token itself may repeat the call with the same token.

        An id should be used once, because bookies may still hold entries of a former ledger with
        the same id. The former ledger's writer may also know a version number of the metadata, and
        could then change the new ledger. While the store has a proof that a ledger with this id was
        deleted, the id is refused. After the proof is removed, only the ledger key distinguishes
        the former ledger from the new ledger. Pass `is_fresh` for a new id of a
        `LedgerIdGenerator`: such an id has no proof of deletion.

        Raises:
            LedgerExistsError: another ledger has the id, or a deleted ledger had the id.
        """
        if metadata.c_token == 0:
            metadata = replace(metadata, c_token=new_token())
        key = await self._key(metadata.ledger_id)
        try:
            value = encode(metadata)
            if is_fresh:
                stat = await self._store.put(key, value, version=NOT_EXISTS)
            else:
                stat = await self._create_unused(Put(key, value, NOT_EXISTS), metadata.ledger_id)
        except KeyExistsError as error:
            record = await self._store.get(key)
            if record is None:
                raise _was_deleted(metadata.ledger_id) from error
            found = _versioned(metadata.ledger_id, record)
            if found.value.c_token == metadata.c_token:
                return found
            raise LedgerExistsError(f"ledger {metadata.ledger_id} exists") from error
        return Versioned(metadata, stat.version)

    async def _create_unused(self, put: Put, ledger_id: int) -> Stat:
        """Create a ledger with an id from the caller, unless the id was used before."""
        layout = await self._read_layout()
        if await self._proofs([ledger_id]):
            raise _was_deleted(ledger_id)
        # Between the read and the transaction, another client may create and delete a ledger with
        # this id. The clock of that client may show the day before or the day after.
        checks = [Check(key, NOT_EXISTS) for key in keys_of_today(layout, ledger_id, self._proof())]
        stats = await self._store.transaction([put, *checks])
        assert stats[0] is not None, "a put has a result"
        return stats[0]

    async def read(self, ledger_id: int, token: int | None = None) -> Versioned[LedgerMetadata]:
        """Read a ledger's metadata; with `token`, only of the ledger created with this token.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            FormatError: the metadata is damaged, or a newer version wrote it.
        """
        found = await self._find(ledger_id)
        if found is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        if token is not None and found.value.c_token != token:
            raise NoSuchLedgerError(f"ledger {ledger_id} was deleted; another one has its id now")
        return found

    async def read_latest(
        self, ledger_id: int, token: int | None = None
    ) -> Versioned[LedgerMetadata]:
        """Sync the store, then `read`: the result includes every change finished before this call.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            FormatError: the metadata is damaged, or a newer version wrote it.
        """
        await self._store.sync()
        return await self.read(ledger_id, token)

    async def write(
        self, metadata: LedgerMetadata, version: int, conditions: Sequence[Check] = ()
    ) -> Versioned[LedgerMetadata]:
        """Replace the metadata, if the stored metadata has `version` and the `conditions` hold.

        Raises:
            BadVersionError: the metadata has another version, or a condition does not hold; read
                the metadata again.
            NoSuchLedgerError: the ledger was deleted.
        """
        if version < 0:
            raise BadRequestError(f"{version} is not a version of ledger {metadata.ledger_id}")
        key = await self._key(metadata.ledger_id)
        try:
            if conditions:
                put = Put(key, encode(metadata), version)
                stat, *_ = await self._store.transaction([put, *conditions])
                assert stat is not None, "a put has a result"
            else:
                stat = await self._store.put(key, encode(metadata), version=version)
        except BadVersionError as error:
            if await self._store.get(key) is None:
                raise NoSuchLedgerError(f"ledger {metadata.ledger_id} does not exist") from error
            raise
        return Versioned(metadata, stat.version)

    async def delete(self, ledger_id: int, version: int | None = None) -> None:
        """Delete the metadata of a ledger; with `version`, only if the metadata has this version.

        The same transaction writes a proof of the deletion, so that bookies reclaim the ledger.

        Raises:
            NoSuchLedgerError: the ledger does not exist.
            BadVersionError: the metadata has another version.
        """
        layout = await self._read_layout()
        delete = Delete(layout.key(ledger_id), version)
        put = proof_of(layout, ledger_id, self._proof())
        try:
            try:
                await self._store.transaction([delete, put])
            except KeyExistsError:
                # A proof of the same day exists: another ledger with this id was deleted earlier
                # today.
                await self._store.transaction([delete, replace(put, version=None)])
        except NoSuchKeyError as error:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist") from error

    async def deletion(self, ledger_id: int, version: int) -> tuple[Operation, Operation]:
        """Return the operations of a larger transaction that delete a ledger with `version`.

        The transaction raises BadVersionError if the ledger has another version, and NoSuchKeyError
        if the ledger does not exist.
        """
        layout = await self._read_layout()
        put = proof_of(layout, ledger_id, self._proof())
        return Delete(layout.key(ledger_id), version), replace(put, version=None)

    def _proof(self) -> DeletionProof:
        return DeletionProof(self._clock.now_ms(), f"{socket.gethostname()}:{os.getpid()}")

    async def find_deleted(self, ledger_ids: Collection[int]) -> set[int]:
        """Return the ledgers whose deletion is proven; pass only ledgers that do not exist.

        All reads run concurrently, so pass few ledgers at a time.

        Raises:
            MetadataUnavailableError: the store does not answer.
        """
        return set(await self._proofs(ledger_ids))

    async def sweep_deletions(self, keep_seconds: float, count_max: int) -> int:
        """Remove at most `count_max` proofs of deletion that are older than `keep_seconds`."""
        layout = await self._read_layout()
        now_ms = self._clock.now_ms()
        return await sweep_proofs(self._store, layout, now_ms, keep_seconds, count_max)

    async def _proofs(self, ledger_ids: Collection[int]) -> dict[int, list[Record]]:
        return await find_proofs(self._store, await self._read_layout(), ledger_ids)

    async def list_ids(self, after: int = NO_ENTRY) -> AsyncIterator[int]:
        """List the ids of all ledgers with ids greater than `after`, in ascending order.

        The listing contains every ledger that exists during the whole listing, or raises an error.
        The listing reads no metadata.

        Raises:
            MetadataUnavailableError: the listing could not be completed.
            FormatError: a key below ``ledgers/`` does not name a ledger.
        """
        layout = await self._read_layout()
        async for ledger_id in layout.scan_ids(self._store, after=after):
            yield ledger_id

    async def list_readable(
        self, on_damaged: Callable[[int], object], after: int = NO_ENTRY
    ) -> AsyncIterator[Versioned[LedgerMetadata]]:
        """List the ledgers above `after` in ascending order; skip ledgers with unreadable metadata.

        `on_damaged` is called with the id of each skipped ledger. Like `list_ids`, the listing is
        complete or raises an error. Do not delete data because this listing omits a ledger. An
        omitted ledger exists, and any bookie may store its entries.
        """
        layout = await self._read_layout()
        async for ledger_id, record in layout.scan(self._store, after=after):
            try:
                found = _versioned(ledger_id, record)
            except FormatError as error:
                _log.warning("ledger_metadata_damaged", key=record.key, reason=str(error))
                on_damaged(ledger_id)
            else:
                yield found

    async def _key(self, ledger_id: int) -> str:
        return (await self._read_layout()).key(ledger_id)

    async def _read_layout(self) -> LedgerLayout:
        if self._layout is not None:
            return self._layout
        try:
            self._layout = await read_layout(self._store)
        except NoSuchKeyError:
            return FLAT  # no cluster exists yet; reading its id reports the error
        return self._layout

    @asynccontextmanager
    async def watch(
        self, ledger_id: int
    ) -> AsyncIterator[AsyncIterator[Versioned[LedgerMetadata] | None]]:
        """Yield a ledger's metadata now and after each change; None if the ledger is missing.

        Several quick changes may be reported as one change.
        """
        async with (
            self._store.watch(await self._key(ledger_id)) as changes,
            aclosing(self._follow(ledger_id, changes)) as states,
        ):
            yield states

    async def _follow(
        self, ledger_id: int, changes: AsyncIterator[Change]
    ) -> AsyncGenerator[Versioned[LedgerMetadata] | None, None]:
        last = await self._find(ledger_id)
        yield last
        async for _ in changes:
            found = await self._find(ledger_id)
            if (found and found.version) != (last and last.version):
                last = found
                yield found

    async def _find(self, ledger_id: int) -> Versioned[LedgerMetadata] | None:
        record = await self._store.get(await self._key(ledger_id))
        return None if record is None else _versioned(ledger_id, record)


def _was_deleted(ledger_id: int) -> LedgerExistsError:
    return LedgerExistsError(f"ledger {ledger_id} was deleted; an id is used once: take another")


def new_token() -> int:
    """Return a random creation token, never 0."""
    return secrets.randbits(63) | 1


def _versioned(ledger_id: int, record: Record) -> Versioned[LedgerMetadata]:
    try:
        return Versioned(decode(ledger_id, record.value), record.version)
    except FormatError as error:
        raise type(error)(f"the metadata key {record.key}: {error}") from error
