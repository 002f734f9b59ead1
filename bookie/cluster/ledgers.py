"""Ledger metadata under compare-and-set.

A create carries a random token, so that a client whose answer was lost recognises its own ledger
when it asks again. A listing is complete or raises: whoever deletes data because a ledger is not
listed must be able to believe it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from bookie.cluster.instance import read_instance_id
from bookie.cluster.layout import FLAT, LayoutManager, LedgerLayout
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    FormatError,
    KeyExistsError,
    LedgerExistsError,
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
)
from bookie.formats.ledger_metadata import LedgerMetadata, Versioned, decode, encode
from bookie.ids import NO_ENTRY
from bookie.metadata.store import NOT_EXISTS, Change, MetadataStore, Record


class LedgerManager:
    """The metadata of all ledgers of a cluster."""

    def __init__(self, store: MetadataStore, layout: LedgerLayout | None = None) -> None:
        """The layout is read from the store when it is first needed, unless it is given."""
        self._store = store
        self._layout = layout

    async def instance_id(self) -> str:
        """The instance id of the cluster whose ledgers these are, as the store says now.

        Raises:
            MetadataError: the store does not answer, or holds no cluster any more.
            FormatError: the id is damaged, or a newer version wrote the layout.
        """
        return await read_instance_id(self._store)

    async def create(self, metadata: LedgerMetadata) -> Versioned[LedgerMetadata]:
        """Store the metadata of a new ledger; returns it with its token.

        A token of 0 is replaced by a random one. A caller whose create ended in
        MetadataUnavailableError may try again with the same token of its own.

        Raises:
            LedgerExistsError: the id is taken, by another create.
        """
        if metadata.c_token == 0:
            metadata = replace(metadata, c_token=secrets.randbits(63) | 1)
        key = await self._key(metadata.ledger_id)
        try:
            stat = await self._store.put(key, encode(metadata), version=NOT_EXISTS)
        except KeyExistsError as error:
            record = await self._store.get(key)
            if record is not None:
                found = _versioned(metadata.ledger_id, record)
                if found.value.c_token == metadata.c_token:
                    return found
            raise LedgerExistsError(f"ledger {metadata.ledger_id} exists") from error
        return Versioned(metadata, stat.version)

    async def read(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        """The metadata of a ledger.

        Raises:
            NoSuchLedgerError: there is none.
            FormatError: it is damaged, or written by a newer version.
        """
        found = await self._find(ledger_id)
        if found is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return found

    async def write(self, metadata: LedgerMetadata, version: int) -> Versioned[LedgerMetadata]:
        """Replace the metadata that has `version`.

        Raises:
            BadVersionError: somebody changed it; read again.
            NoSuchLedgerError: it was deleted.
        """
        if version < 0:
            raise BadRequestError(f"{version} is not a version of ledger {metadata.ledger_id}")
        key = await self._key(metadata.ledger_id)
        try:
            stat = await self._store.put(key, encode(metadata), version=version)
        except BadVersionError as error:
            if await self._store.get(key) is None:
                raise NoSuchLedgerError(f"ledger {metadata.ledger_id} does not exist") from error
            raise
        return Versioned(metadata, stat.version)

    async def delete(self, ledger_id: int, version: int | None = None) -> None:
        """Delete the metadata of a ledger, of any version or of exactly `version`.

        Raises:
            NoSuchLedgerError: there is none.
            BadVersionError: it has another version.
        """
        try:
            await self._store.delete(await self._key(ledger_id), version=version)
        except NoSuchKeyError as error:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist") from error

    async def list_ids(self, after: int = NO_ENTRY) -> AsyncIterator[int]:
        """The ids greater than `after` of all ledgers, ascending.

        Complete for every ledger that exists during the whole listing; any doubt raises.

        Raises:
            MetadataUnavailableError: the listing could not be completed.
            FormatError: something that is not a ledger stands among the ledgers.
        """
        async for ledger_id, _ in self._records(after):
            yield ledger_id

    async def list_all(self, after: int = NO_ENTRY) -> AsyncIterator[Versioned[LedgerMetadata]]:
        """The ledgers with ids greater than `after`, ascending, each as the listing found it.

        Complete like `list_ids`, whose pages hold the metadata anyway: nothing is read twice.

        Raises:
            MetadataUnavailableError: the listing could not be completed.
            FormatError: a ledger's metadata, or something among the ledgers, cannot be read.
        """
        async for ledger_id, record in self._records(after):
            yield _versioned(ledger_id, record)

    async def _records(self, after: int) -> AsyncIterator[tuple[int, Record]]:
        layout = await self._read_layout()
        async for ledger_id, record in layout.scan(self._store, after=after):
            if ledger_id <= after:
                raise MetadataUnavailableError("the metadata store listed ledgers out of order")
            after = ledger_id
            yield ledger_id, record

    async def _key(self, ledger_id: int) -> str:
        return (await self._read_layout()).key(ledger_id)

    async def _read_layout(self) -> LedgerLayout:
        if self._layout is not None:
            return self._layout
        try:
            self._layout = await LayoutManager(self._store).read()
        except NoSuchKeyError:
            return FLAT  # nothing is there yet; who cares asks for the instance id first
        return self._layout

    @asynccontextmanager
    async def watch(
        self, ledger_id: int
    ) -> AsyncIterator[AsyncIterator[Versioned[LedgerMetadata] | None]]:
        """What a ledger is now and after each change; None while it does not exist.

        Quick changes may be seen as one.
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


def _versioned(ledger_id: int, record: Record) -> Versioned[LedgerMetadata]:
    try:
        return Versioned(decode(ledger_id, record.value), record.version)
    except FormatError as error:
        raise type(error)(f"the metadata key {record.key}: {error}") from error
