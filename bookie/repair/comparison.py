"""Compares the metadata of all ledgers with the copies that registered bookies store.

A comparison lists the ledgers of the metadata store and the ledgers of every bookie side by side.
All listings ascend by ledger id, so memory holds only one page of each listing. A bookie's listing
has one row for each copy, with the number of the copy's entries. If this number is too low
(`ListedBookie.lacks`), the comparison reads the ledger's metadata once more, then lists the copy's
entries. The second read is needed because the first read may be outdated, or the ledger may be
deleted.

A copy that lacks one entry and has one surplus entry has the right number of entries. Only a deep
comparison finds this missing entry, because it lists the entries of every copy.

If a bookie does not answer in time, or answers with an error, the state of its copies is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field

from bookie.cluster.endpoints import ENTRIES, endpoint_for, speaks_tls
from bookie.cluster.registration_record import Registration
from bookie.entry.digest import key_tag
from bookie.env import gather
from bookie.errors import (
    BookieError,
    BookieUnreachableError,
    NoSuchLedgerError,
    TooManyRequestsError,
    UnauthorizedError,
)
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerMetadata
from bookie.node.holdings import Holding, Missing, holdings, missing_of, nothing_stored
from bookie.wire.client.channel import BookieChannel, Ranges
from bookie.wire.commands import LedgerRow
from bookie.wire.grpc.credentials import ChannelSecurity

EXAMPLES_MAX = 5
"""The most ledger ids that the text of a finding contains."""

LISTINGS_AT_ONCE = 16
COPIES_AT_ONCE = 1024
"""The number of copies, on all bookies together, that are collected before their entries are
listed."""

RATE_PATIENCE_SECONDS = 60.0
"""The longest wait, in seconds, for a bookie at which the rate limit is used up. After this wait,
the state of the bookie's copies is unknown."""


async def _nothing(*_: object) -> None:
    """The default callback; does nothing."""


@dataclass(slots=True)
class ListedFinding:
    """Ledgers with the same problem, on one bookie or on all bookies."""

    ledgers: int = 0
    entries: int = 0
    examples: list[int] = field(default_factory=list)

    def add(self, ledger_id: int, entries: int = 0) -> None:
        self.ledgers += 1
        self.entries += entries
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(ledger_id)

    def __str__(self) -> str:
        more = ", …" if self.ledgers > len(self.examples) else ""
        noun = "ledger" if self.ledgers == 1 else "ledgers"
        return f"{noun} {', '.join(map(str, self.examples))}{more}"


class ListedBookie:
    """A bookie, and a listing of its ledgers in ascending order of ids.

    The comparison asks for the rows of ledgers in the same order, so `row` never goes back.
    """

    def __init__(
        self, bookie_id: str, channel: BookieChannel | None, seconds: float, problem: str = ""
    ) -> None:
        self.bookie_id = bookie_id
        self._channel = channel
        self._seconds = seconds
        self.problem = "" if channel is not None else problem
        """The reason why the bookie's listing failed; empty if the listing has not failed."""
        self.limbo, self.missing = ListedFinding(), ListedFinding()
        self._rows: list[LedgerRow] = []
        self._at = 0
        self._pages: AsyncIterator[list[LedgerRow]] | None = None

    @asynccontextmanager
    async def listing(self) -> AsyncIterator[None]:
        """Open a listing of the bookie's ledgers, and close it at the end of the ``with`` block."""
        if self._channel is None:
            yield
            return
        async with aclosing(self._channel.list_ledgers()) as pages:  # type: ignore[type-var]
            self._pages = pages
            yield

    async def next_page(self) -> None:
        """Fetch the next rows of the listing; set `problem` if the bookie does not answer."""
        pages, self._pages = self._pages, None
        self._rows, self._at = [], 0
        if self.problem or pages is None:
            return
        try:
            async with asyncio.timeout(self._seconds):
                self._rows = await anext(pages, [])
        except TimeoutError:
            self.problem = f"no answer within {self._seconds:g} s"
        except BookieError as error:
            self.problem = str(error)
        if self._rows:
            self._pages = pages

    async def row(self, ledger_id: int) -> LedgerRow | None:
        """Return the bookie's row of a ledger; call this method with ascending ids."""
        while True:
            while self._at < len(self._rows):
                row = self._rows[self._at]
                if row.ledger_id >= ledger_id:
                    return row if row.ledger_id == ledger_id else None
                self._at += 1
            if self._pages is None:
                return None
            await self.next_page()

    async def lacks(self, metadata: LedgerMetadata) -> bool:
        """True if the bookie's row counts fewer entries than `metadata` requires.

        If the row says that the ledger is in limbo, the ledger is also added to `limbo`.
        """
        row = await self.row(metadata.ledger_id)
        if row is not None and row.key_tag not in (b"", key_tag(metadata.password_key)):
            row = None  # an earlier ledger with this id; older bookies send no tag
        if self.problem:
            return False
        if row is not None and row.limbo:
            self.limbo.add(metadata.ledger_id)
        wanted = sum(holding.entries for holding in holdings(metadata, self.bookie_id))
        return wanted > (0 if row is None else row.entries)

    async def compare(self, metadata: LedgerMetadata) -> int:
        """List the bookie's entries of a ledger; return the number of missing entries.

        A ledger with missing entries is added to `missing`.
        """
        missing = Missing()
        try:
            for holding in holdings(metadata, self.bookie_id):
                missing = missing.plus(await self._missing(metadata, holding))
        except TimeoutError:
            self.problem = f"no answer within {self._seconds:g} s"
        except BookieError as error:
            self.problem = str(error)
        if missing.count:
            self.missing.add(metadata.ledger_id, missing.count)
        return missing.count

    async def _missing(self, metadata: LedgerMetadata, holding: Holding) -> Missing:
        if self.problem or self._channel is None:
            return Missing()
        waited = 0.0
        while True:
            listing = self._channel.list_entries(
                metadata.ledger_id, holding.first, holding.last, key=metadata.password_key
            )
            try:
                async with aclosing(self._in_time(listing)) as ranges:  # type: ignore[type-var]
                    return await missing_of(holding, ranges)
            except (NoSuchLedgerError, UnauthorizedError):
                return await missing_of(holding, nothing_stored())
            except TooManyRequestsError as error:
                # Without roles, a bookie cannot know that the call is for a repair, so its rate
                # limit applies.
                waited += error.retry_after_seconds
                if not error.retry_after_seconds or waited > RATE_PATIENCE_SECONDS:
                    raise
                await asyncio.sleep(error.retry_after_seconds)

    async def _in_time(self, listing: AsyncIterator[Ranges]) -> AsyncIterator[Ranges]:
        async with aclosing(listing) as pages:  # type: ignore[type-var]
            while True:
                async with asyncio.timeout(self._seconds):
                    page = await anext(pages, None)
                if page is None:
                    return
                if len(page[0]):
                    yield page


class CopyComparison:
    """Compares all ledgers of a cluster with the copies on its bookies."""

    def __init__(
        self,
        ledgers: LedgerManager,
        bookies: dict[str, ListedBookie],
        *,
        is_deep: bool,
        on_ledger: Callable[[LedgerMetadata], Awaitable[None]] = _nothing,
        on_lacking: Callable[[LedgerMetadata, set[str]], Awaitable[None]] = _nothing,
    ) -> None:
        """`on_ledger` is called for every ledger, `on_lacking` for a ledger with missing entries.

        `on_lacking` also gets the bookies that lack entries.
        """
        self._ledgers = ledgers
        self._bookies = bookies
        self._is_deep = is_deep
        self._on_ledger = on_ledger
        self._on_lacking = on_lacking
        self.limbo, self.missing, self.elsewhere = ListedFinding(), ListedFinding(), ListedFinding()
        self.damaged = ListedFinding()
        self.absent: dict[str, ListedFinding] = {}
        self._doubtful: list[tuple[int, list[ListedBookie]]] = []
        self._copies = 0

    async def run(self) -> None:
        """Compare the metadata of all ledgers with the copies on the bookies.

        A ledger with damaged metadata is added to `damaged`, and the comparison continues.

        Raises:
            MetadataError, FormatError: the listing of the ledgers failed before its end.
        """
        # All bookies are asked at once, so all silent bookies together cost one timeout.
        await gather(bookie.next_page() for bookie in self._bookies.values())
        async for versioned in self._ledgers.list_readable(self.damaged.add):
            await self._look_at(versioned.value)
            if self._copies >= COPIES_AT_ONCE:
                await self._compare_doubtful()
        await self._compare_doubtful()

    async def _look_at(self, metadata: LedgerMetadata) -> None:
        await self._on_ledger(metadata)
        ledger_id = metadata.ledger_id
        names = {name for fragment in metadata.fragments for name in fragment.bookies}
        absent = names - self._bookies.keys()
        for name in absent:
            self.absent.setdefault(name, ListedFinding()).add(ledger_id)
        if absent:
            self.elsewhere.add(ledger_id)
        bookies = [self._bookies[name] for name in sorted(names - absent)]
        in_limbo = [bookie.limbo.ledgers for bookie in bookies]
        lacking = [bookie for bookie in bookies if await bookie.lacks(metadata) or self._is_deep]
        if in_limbo != [bookie.limbo.ledgers for bookie in bookies]:
            self.limbo.add(ledger_id)
        if lacking:
            self._doubtful.append((ledger_id, lacking))
            self._copies += len(lacking)

    async def _compare_doubtful(self) -> None:
        doubtful, self._doubtful, self._copies = self._doubtful, [], 0
        room = asyncio.Semaphore(LISTINGS_AT_ONCE)

        async def compare(ledger_id: int, bookies: list[ListedBookie]) -> None:
            async with room:
                try:
                    metadata = (await self._ledgers.read(ledger_id)).value
                except NoSuchLedgerError:
                    return  # the ledger was deleted after the listing
                missing = {one.bookie_id: await one.compare(metadata) for one in bookies}
            lacking = {bookie_id for bookie_id, count in missing.items() if count}
            if lacking:
                self.missing.add(ledger_id, sum(missing.values()))
                await self._on_lacking(metadata, lacking)

        await gather(compare(ledger_id, bookies) for ledger_id, bookies in doubtful)


@asynccontextmanager
async def listed_bookies(
    names: Iterable[str],
    registrations: Mapping[str, Registration],
    instance_id: str,
    answer_seconds: float,
    security: ChannelSecurity,
) -> AsyncIterator[dict[str, ListedBookie]]:
    """Yield a dictionary: id of a bookie in `names` → the bookie, with an open listing.

    A bookie that is not registered, or has no usable endpoint, gets a `problem` and no listing.
    """
    async with AsyncExitStack() as stack:
        tasks = asyncio.TaskGroup()
        await tasks.__aenter__()
        # The task group is not told about an error of the block, because it would wrap the error in
        # an ExceptionGroup.
        stack.push_async_callback(tasks.__aexit__, None, None, None)
        bookies: dict[str, ListedBookie] = {}
        for name in sorted(names):
            channel, problem = None, "it is not registered"
            if registration := registrations.get(name):
                try:
                    endpoint = endpoint_for(registration, ENTRIES, security.settings)
                except BookieUnreachableError as error:
                    problem = str(error)
                else:
                    channel = BookieChannel(
                        endpoint.address,
                        instance_id,
                        tasks,
                        bookie_id=name,
                        connect_timeout_seconds=answer_seconds,
                        security=security if speaks_tls(endpoint) else None,
                    )
                    stack.push_async_callback(channel.close)
            bookies[name] = ListedBookie(name, channel, answer_seconds, problem)
            await stack.enter_async_context(bookies[name].listing())
        yield bookies
