"""Compare the metadata of all ledgers with the copies that registered bookies store.

The comparison walks over all ledgers, in step with a listing of the ledgers on every bookie. Both
are in ascending order, so memory holds one page of each. First the comparison looks at the bookie's
row of a ledger (`_Bookie.lacks`). If the row counts too few entries, the bookie's entries of the
ledger are listed. Before this listing the metadata is read again, because the row may be old, or
the ledger deleted meanwhile.

A row only counts entries. A missing entry beside a surplus one leaves the count right. A deep
comparison finds the missing entry, because it lists every entry.

If a bookie does not answer in time, or answers with an error, all facts that only this bookie can
tell are unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field

from bookie.cluster.directory import ENDPOINT, BookieDirectory
from bookie.cluster.instance import ClusterStatus, read_status
from bookie.cluster.registration_record import Registration
from bookie.entry.digest import key_tag
from bookie.errors import BookieError, NoSuchLedgerError, UnauthorizedError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerMetadata
from bookie.metadata.store import MetadataStore
from bookie.node.holdings import Holding, Missing, holdings, missing_of, nothing_stored
from bookie.wire.commands import LedgerRow
from bookie.wire.grpc.client.channel import BookieChannel, Ranges

EXAMPLES_MAX = 5
"""The most ledgers that a finding names."""

LISTINGS_AT_ONCE = 16
COPIES_AT_ONCE = 1024
"""The number of copies, over all bookies, that are collected before they are listed."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One fact about a cluster; `count` is None if the fact is unknown."""

    name: str
    healthy: bool
    count: int | None
    found: str


@dataclass(slots=True)
class _Finding:
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


class _Bookie:
    """A registered bookie, and the listing of its ledgers in step with the walk."""

    def __init__(self, bookie_id: str, channel: BookieChannel | None, seconds: float) -> None:
        self.bookie_id = bookie_id
        self._channel = channel
        self._seconds = seconds
        self.problem = "" if channel is not None else "its registration names no address"
        """The reason why the bookie's listing failed; empty if the listing has not failed."""
        self.limbo, self.missing = _Finding(), _Finding()
        self._rows: list[LedgerRow] = []
        self._at = 0
        self._pages: AsyncIterator[list[LedgerRow]] | None = None

    @asynccontextmanager
    async def listing(self) -> AsyncIterator[None]:
        """List the bookie's ledgers for the duration of the block."""
        if self._channel is None:
            yield
            return
        async with aclosing(self._channel.list_ledgers()) as pages:  # type: ignore[type-var]
            self._pages = pages
            yield

    async def next_page(self) -> None:
        """Fetch the next rows; none at the end of the listing, or after a problem."""
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
        """Return the bookie's row of a ledger; call this with ascending ids."""
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
        """True if the bookie's row counts fewer entries than `metadata` demands; notes limbo."""
        row = await self.row(metadata.ledger_id)
        if row is not None and row.key_tag not in (b"", key_tag(metadata.password_key)):
            row = None  # of another ledger of this id; an older version does not tell
        if self.problem:
            return False
        if row is not None and row.limbo:
            self.limbo.add(metadata.ledger_id)
        wanted = sum(holding.entries for holding in holdings(metadata, self.bookie_id))
        return wanted > (0 if row is None else row.entries)

    async def compare(self, metadata: LedgerMetadata) -> int:
        """List the bookie's entries of a ledger, and note and count the missing ones."""
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
        listing = self._channel.list_entries(
            metadata.ledger_id, holding.first, holding.last, key=metadata.password_key
        )
        try:
            async with aclosing(self._in_time(listing)) as ranges:  # type: ignore[type-var]
                return await missing_of(holding, ranges)
        except (NoSuchLedgerError, UnauthorizedError):
            return await missing_of(holding, nothing_stored())

    async def _in_time(self, listing: AsyncIterator[Ranges]) -> AsyncIterator[Ranges]:
        async with aclosing(listing) as pages:  # type: ignore[type-var]
            while True:
                async with asyncio.timeout(self._seconds):
                    page = await anext(pages, None)
                if page is None:
                    return
                if len(page[0]):
                    yield page


class _Comparison:
    """The walk over all ledgers of a cluster."""

    def __init__(
        self, ledgers: LedgerManager, bookies: dict[str, _Bookie], *, is_deep: bool
    ) -> None:
        self._ledgers = ledgers
        self._bookies = bookies
        self._is_deep = is_deep
        self.limbo, self.missing, self.elsewhere = _Finding(), _Finding(), _Finding()
        self.damaged = _Finding()
        self.absent: dict[str, _Finding] = {}
        self._doubtful: list[tuple[int, list[_Bookie]]] = []
        self._copies = 0

    async def run(self) -> None:
        """Compare the metadata of all ledgers with the copies on the bookies.

        Raises:
            MetadataError, FormatError: the listing of the ledgers is not complete. Ledgers whose
                metadata cannot be read are counted in `damaged` instead.
        """
        # All bookies are asked at once, so silent ones cost one timeout together.
        async with asyncio.TaskGroup() as tasks:
            for bookie in self._bookies.values():
                tasks.create_task(bookie.next_page())
        async for versioned in self._ledgers.list_readable(self.damaged.add):
            await self._look_at(versioned.value)
            if self._copies >= COPIES_AT_ONCE:
                await self._compare_doubtful()
        await self._compare_doubtful()

    async def _look_at(self, metadata: LedgerMetadata) -> None:
        ledger_id = metadata.ledger_id
        names = {name for fragment in metadata.fragments for name in fragment.bookies}
        absent = names - self._bookies.keys()
        for name in absent:
            self.absent.setdefault(name, _Finding()).add(ledger_id)
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

        async def compare(ledger_id: int, bookies: list[_Bookie]) -> None:
            async with room:
                try:
                    metadata = (await self._ledgers.read(ledger_id)).value
                except NoSuchLedgerError:
                    return  # deleted since it was listed
                missing = [await bookie.compare(metadata) for bookie in bookies]
            if any(missing):
                self.missing.add(ledger_id, sum(missing))

        async with asyncio.TaskGroup() as tasks:
            for ledger_id, bookies in doubtful:
                tasks.create_task(compare(ledger_id, bookies))


async def check_cluster(
    store: MetadataStore, *, is_deep: bool, answer_seconds: float
) -> list[HealthCheck]:
    """Check a cluster as a whole: its bookies, and every copy that metadata promises.

    Args:
        store: the cluster's metadata.
        is_deep: list every entry of every copy, and not only where a row leaves doubt.
        answer_seconds: how long a bookie may take for each page of an answer.

    Raises:
        MetadataError: the store is away, or holds no cluster.
        FormatError: something that is not a ledger stands among the ledgers.
    """
    status = await read_status(store)
    async with BookieDirectory(store) as directory:
        known = dict(directory.all())
    registered = {*status.writable, *status.read_only, *known}
    async with _bookies(registered, known, status.instance_id, answer_seconds) as bookies:
        comparison = _Comparison(LedgerManager(store), bookies, is_deep=is_deep)
        await comparison.run()
    silent = {name: one.problem for name, one in bookies.items() if one.problem}
    absent = {name: f"{found.ledgers} ({found})" for name, found in comparison.absent.items()}
    missing = {
        name: f"{one.missing.entries} entries ({one.missing})"
        for name, one in bookies.items()
        if one.missing.ledgers
    }
    limbo = {
        name: f"{one.limbo.ledgers} ({one.limbo})"
        for name, one in bookies.items()
        if one.limbo.ledgers
    }
    damaged, elsewhere = comparison.damaged, comparison.elsewhere
    return [
        *_checks_of_bookies(status, registered),
        HealthCheck("bookies that do not answer", not silent, len(silent), _by_bookie(silent)),
        HealthCheck(
            "ledgers with damaged metadata",
            not damaged.ledgers,
            damaged.ledgers,
            str(damaged) if damaged.ledgers else "none",
        ),
        HealthCheck("ledgers on absent bookies", not absent, elsewhere.ledgers, _by_bookie(absent)),
        _unless_unknown("ledgers with missing copies", comparison.missing.ledgers, missing, silent),
        _unless_unknown("ledgers in limbo", comparison.limbo.ledgers, limbo, silent),
    ]


def _checks_of_bookies(status: ClusterStatus, registered: Iterable[str]) -> list[HealthCheck]:
    missing = sorted({*status.known} - {*registered})
    writable, read_only = len(status.writable), sorted(status.read_only)
    return [
        HealthCheck(
            "writable bookies", writable > 0, writable, f"{writable} of {len(status.known)}"
        ),
        HealthCheck("missing bookies", not missing, len(missing), ", ".join(missing) or "none"),
        HealthCheck(
            "read-only bookies", not read_only, len(read_only), ", ".join(read_only) or "none"
        ),
    ]


def _unless_unknown(
    name: str, count: int, found: Mapping[str, str], silent: Mapping[str, str]
) -> HealthCheck:
    """Make a check that needs the answers of all bookies; it fails while one is silent."""
    sentence, unknown = _by_bookie(found), ", ".join(sorted(silent))
    if unknown:
        sentence += f"; unknown on {unknown}"
    return HealthCheck(name, not (count or unknown), None if unknown else count, sentence)


def _by_bookie(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {what}" for name, what in sorted(found.items())) or "none"


@asynccontextmanager
async def _bookies(
    names: Iterable[str],
    registrations: Mapping[str, Registration],
    instance_id: str,
    answer_seconds: float,
) -> AsyncIterator[dict[str, _Bookie]]:
    """Yield the registered bookies, each with a listing of its ledgers under way."""
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        bookies: dict[str, _Bookie] = {}
        for name in sorted(names):
            channel = None
            registration = registrations.get(name)
            endpoint = None if registration is None else registration.endpoint(ENDPOINT)
            if endpoint is not None:
                channel = BookieChannel(
                    endpoint.address,
                    instance_id,
                    tasks,
                    bookie_id=name,
                    connect_timeout_seconds=answer_seconds,
                )
                stack.push_async_callback(channel.close)
            bookies[name] = _Bookie(name, channel, answer_seconds)
            await stack.enter_async_context(bookies[name].listing())
        yield bookies
