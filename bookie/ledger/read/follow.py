"""Reads the LAC of an open ledger once, or follows the LAC and the ledger's metadata.

Bookies send hints about a ledger's LAC. If a hint contains the writer's LAC packet, the packet's
digest proves the LAC. After another hint with a higher LAC, the follower asks the bookie that sent
the hint for packets. If no bookie sends a hint for a long time, the follower asks all bookies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from bookie.entry.digest import Digester, key_tag
from bookie.errors import (
    BookieError,
    ClientClosedError,
    MetadataClosedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    error_for_status,
)
from bookie.ids import NO_ENTRY, Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.connection.calls import Calls, patiently
from bookie.ledger.connection.pool import BookiePool, OnLac
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.quorum import Quorum
from bookie.ledger.read.verification import VerifiedLac, verify_lac
from bookie.metadata.versioned import Versioned
from bookie.wire.client.channel import LacReply, LacState

METADATA_RETRY_SECONDS = 1.0

_CALLER_TO_BLAME = frozenset({Status.NOT_PERMITTED, Status.WRONG_CLUSTER, Status.BAD_REQUEST})


async def ask_lac(
    pool: BookiePool, metadata: LedgerMetadata, slot: int, digester: Digester
) -> tuple[int, VerifiedLac]:
    """Ask the bookie in `slot` for the LAC; return the slot, and the proven LAC or the failure."""
    connection, settings = pool.connection(metadata.last_fragment.bookies[slot]), pool.settings

    def ask() -> Awaitable[LacReply]:
        return connection.channel().read_lac(
            metadata.ledger_id, metadata.password_key, timeout=settings.read_timeout_seconds
        )

    try:
        reply = await patiently(ask, settings.rate_patience_seconds)
    except BookieError as error:
        return slot, VerifiedLac(error.status, message=str(error))
    return slot, verify_lac(metadata.ledger_id, reply, digester)


async def read_lac(pool: BookiePool, metadata: LedgerMetadata, digester: Digester) -> int:
    """Ask bookies until their answers cover the last ensemble; return the highest LAC, or -1.

    The writer acknowledged all entries up to this LAC, and perhaps later entries. `read_lac`
    returns as soon as enough bookies have answered.

    Raises:
        NotEnoughBookiesError: too few bookies answered.
        NotPermittedError, WrongClusterError, BadRequestError: a bookie refused the caller.
        ClientClosedError: the client was closed.
    """
    quorum = Quorum.of(metadata)
    answered, lac, silence = 0, NO_ENTRY, ""
    async with Calls[tuple[int, VerifiedLac]]() as calls:
        for slot in range(metadata.ensemble_size):
            calls.start(
                ask_lac(pool, metadata, slot, digester), name=f"LAC of {metadata.ledger_id}"
            )
        for _ in range(metadata.ensemble_size):
            slot, answer = await calls.next()
            if answer.status in _CALLER_TO_BLAME:
                # Calls also fail with such a status if the client was closed; then raise
                # ClientClosedError.
                pool.require_open()
                raise error_for_status(answer.status, answer.message)
            if answer.status is Status.OK or answer.status.is_definite_negative:
                answered |= 1 << slot
                lac = max(lac, answer.last_add_confirmed)
                if quorum.covers(answered):
                    return lac
            else:
                silence = answer.message or answer.status.name
    raise NotEnoughBookiesError(
        f"too few bookies of ledger {metadata.ledger_id} answered to tell where it ends: {silence}"
    )


class Follower:
    """Learns newer LACs and newer metadata of a ledger for one read of its tail."""

    def __init__(
        self,
        found: Versioned[LedgerMetadata],
        pool: BookiePool,
        ledgers: LedgerManager,
        digester: Digester,
    ) -> None:
        self.found = found
        """The ledger's metadata as this follower last read it."""
        self._pool = pool
        self._ledgers = ledgers
        self._digester = digester
        self._key_tag = key_tag(found.value.password_key)
        self._error: BookieError | None = None
        self._hints: dict[int, LacState] = {}
        """Maps a slot of the last ensemble to its bookie's hint with the highest LAC since the last
        `advance`."""
        self._news = asyncio.Event()
        self._unsubscribe: list[Callable[[], None]] = []
        self._watcher: asyncio.Task[None] | None = None

    @property
    def metadata(self) -> LedgerMetadata:
        return self.found.value

    def start(self) -> None:
        self._pool.on_close(self._on_pool_closed)
        self._subscribe()
        name = f"metadata of ledger {self.metadata.ledger_id}"
        self._watcher = self._pool.spawn(self._watch_metadata(), name=name)

    async def close(self) -> None:
        self._pool.off_close(self._on_pool_closed)
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])

    async def advance(self, last_add_confirmed: int) -> int:
        """Wait for a hint of a higher LAC or for newer metadata; return the highest proven LAC.

        When `advance` returns, `found` is the newest metadata. `advance` may also return if nothing
        has changed. The returned LAC is never below `last_add_confirmed`.

        Raises:
            NoSuchLedgerError: the ledger was deleted.
            ClientClosedError: the client was closed.
            NotPermittedError, WrongClusterError, BadRequestError: as in `read_lac`.
        """
        try:
            async with asyncio.timeout(self._pool.settings.tail_refresh_seconds):
                await self._news.wait()
        except TimeoutError:
            return await self._ask_everybody(last_add_confirmed)
        self._news.clear()
        if self._error is not None:
            raise self._error
        hints, self._hints = self._hints, {}
        lac = last_add_confirmed
        for slot, hint in sorted(hints.items(), key=lambda item: -item[1].max_lac):
            if hint.max_lac > lac and not self.metadata.is_closed:
                lac = max(lac, self._proven_by(hint))
            if hint.max_lac > lac and not self.metadata.is_closed:
                _, told = await ask_lac(self._pool, self.metadata, slot, self._digester)
                lac = max(lac, told.last_add_confirmed)
        return lac

    def _proven_by(self, hint: LacState) -> int:
        """Return the LAC that the packet in a hint proves; -1 if the hint has no intact packet."""
        reply = LacReply(hint.status, lac_packet=hint.lac_packet)
        return verify_lac(self.metadata.ledger_id, reply, self._digester).last_add_confirmed

    async def _ask_everybody(self, last_add_confirmed: int) -> int:
        try:
            lac = await read_lac(self._pool, self.metadata, self._digester)
        except NotEnoughBookiesError:
            lac = NO_ENTRY  # bookies will send hints when they can be reached again
        return max(lac, last_add_confirmed)

    def _subscribe(self) -> None:
        ledger_id = self.metadata.ledger_id
        for slot, bookie_id in enumerate(self.metadata.last_fragment.bookies):
            lacs = self._pool.connection(bookie_id).lacs
            callback: OnLac = partial(self._on_hint, slot)
            lacs.subscribe(ledger_id, callback)
            self._unsubscribe.append(partial(lacs.unsubscribe, ledger_id, callback))

    def _on_hint(self, slot: int, state: LacState) -> None:
        if state.key_tag not in (b"", self._key_tag):
            return  # another ledger has this id now; older bookies send no tag
        known = self._hints.get(slot)
        if state.max_lac > (NO_ENTRY if known is None else known.max_lac):
            self._hints[slot] = state
            self._news.set()

    def _on_pool_closed(self) -> None:
        self._error = ClientClosedError("the client was closed while a ledger was followed")
        self._news.set()

    async def _watch_metadata(self) -> None:
        while True:
            try:
                async with self._ledgers.watch(self.metadata.ledger_id) as states:
                    async for state in states:
                        if self._take(state):
                            return
            except MetadataClosedError:
                return
            except BookieError:
                # Keep the last metadata, which is still correct; meanwhile the bookies report the
                # LAC.
                await asyncio.sleep(METADATA_RETRY_SECONDS)

    def _take(self, state: Versioned[LedgerMetadata] | None) -> bool:
        """Adopt the store's current metadata; return True if the ledger is closed or deleted."""
        if state is None or state.value.c_token != self.metadata.c_token:
            self._error = NoSuchLedgerError(f"ledger {self.metadata.ledger_id} was deleted")
            self._news.set()
            return True
        if state.version > self.found.version:
            before = self.metadata
            self.found = state
            if before.last_fragment != self.metadata.last_fragment:
                for unsubscribe in self._unsubscribe:
                    unsubscribe()
                self._unsubscribe.clear()
                self._hints.clear()
                self._subscribe()
            self._news.set()
        return self.metadata.is_closed
