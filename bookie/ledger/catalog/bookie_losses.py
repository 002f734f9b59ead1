"""Forgets a bookie whose data is lost, unless the bookie may have had the last copy of an entry.

To forget a bookie, `BookieLosses` deletes or replaces the bookie's cookie. No other bookie may be
forgotten between the examination of the ledgers and the change of the cookie. Without this rule,
two concurrent calls could forget two bookies, because each call counts copies on the bookie that
the other call forgets. So each change of a cookie also writes the parent key of all cookies. The
change fails if the version of this key has changed since the examination. So one of two concurrent
changes fails. The caller of the failed change examines the ledgers again, and sees that the other
bookie is lost.

A cookie does not prove that its bookie's disks still exist. So if a bookie starts empty without an
operator's command, only copies on registered bookies count. An operator can know which disks still
exist, and may count the copies of all bookies with cookies.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, encode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import read_status
from bookie.cluster.registration_record import decode_registration
from bookie.errors import BadVersionError, CookieError, IdentityError, NoSuchKeyError
from bookie.ledger.catalog.dependents import Dependents, find_dependents, reliable_bookies
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.metadata.model import NOT_EXISTS, Delete, Put
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned


class DataNotExpendableError(CookieError):
    """Error: the bookie may have the last copy of an entry; a later attempt may succeed."""


@dataclass(frozen=True, slots=True)
class ExaminedLoss:
    """The result of `BookieLosses.examine`; `forget` and `replace` refuse an outdated result."""

    bookie_id: str
    version: int
    """Version of the bookie's cookie; `order` is the version of the parent key of all cookies."""
    order: int
    reliable: frozenset[str]
    """The bookies whose copies counted in the examination."""
    dependents: Dependents
    live_only: bool = False
    """True if the examination counted only the copies of registered bookies."""


class BookieLosses:
    """Examines a bookie whose data is lost, and deletes or replaces its cookie."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._cookies = CookieManager(store)

    async def examine(
        self, bookie_id: str, also_lost: Collection[str] = (), *, live_only: bool = False
    ) -> ExaminedLoss:
        """Find the ledgers that depend on a stopped bookie. The method lists all ledgers.

        Args:
            bookie_id: the bookie whose data is lost.
            also_lost: further bookies whose copies do not count.
            live_only: count only copies of registered bookies that no auditor has found lost.

        Raises:
            DataNotExpendableError: with `live_only`, a registered bookie reports that the metadata
                store may be an older copy.
            NoSuchKeyError: the bookie has no cookie.
            IdentityError: the bookie is registered, so it may run.
            FormatError: a cookie is damaged.
            MetadataError: the metadata store failed.
        """
        await self._store.sync()
        order = await self._order()
        found = await self._cookies.read(bookie_id)
        if found is None:
            raise NoSuchKeyError(f"bookie {bookie_id} has no cookie in this cluster")
        await self.refuse_running(bookie_id)
        reliable = (await self._reliable(live_only=live_only)).difference(also_lost)
        dependents = await find_dependents(LedgerManager(self._store), bookie_id, reliable)
        return ExaminedLoss(bookie_id, found.version, order, reliable, dependents, live_only)

    async def forget(self, examined: ExaminedLoss) -> None:
        """Delete the cookie of a bookie; raises the errors of `replace`."""
        await self._change(
            examined, Delete(keys.cookie(examined.bookie_id), version=examined.version)
        )

    async def replace(self, examined: ExaminedLoss, cookie: Cookie) -> Versioned[Cookie]:
        """Replace the former cookie of a bookie that starts empty.

        Raises:
            BadVersionError: a cookie changed since `examine`; examine again.
            DataNotExpendableError: see `examine`.
            IdentityError: the bookie is registered now.
            MetadataError: the metadata store failed; the outcome may be unknown.
        """
        key = keys.cookie(examined.bookie_id)
        version = await self._change(examined, Put(key, encode_cookie(cookie), examined.version))
        return Versioned(cookie, version)

    async def refuse_running(self, bookie_id: str) -> None:
        """Raise IdentityError if the bookie is registered."""
        status = await read_status(self._store)
        if bookie_id in {*status.writable, *status.read_only}:
            raise IdentityError(
                f"bookie {bookie_id} is running; stop it first, or wait for its session to end if "
                "it was killed"
            )

    async def _reliable(self, *, live_only: bool) -> frozenset[str]:
        found = await reliable_bookies(self._cookies)
        return found & await self._live() if live_only else found

    async def _live(self) -> frozenset[str]:
        """Return the registered bookies, except bookies that the auditor has found lost.

        Raises:
            DataNotExpendableError: a bookie reports that the store may be an older copy, which may
                lack ledgers.
        """
        found: set[str] = set()
        for kind in (keys.WRITABLE, keys.READ_ONLY):
            for bookie_id in await self._store.get_children(kind):
                record = await self._store.get(f"{kind}/{bookie_id}")
                if record is None:
                    continue  # the bookie left, or changed between writable and read-only
                if doubt := decode_registration(record.value).store_doubt:
                    raise DataNotExpendableError(
                        f"no lost data is replaced: bookie {bookie_id} says that {doubt}; an "
                        f"operator must confirm the store by `bookie node gc {bookie_id} "
                        "--confirm-store`"
                    )
                found.add(bookie_id)
        return frozenset(found).difference(await self._store.get_children(keys.LOST_BOOKIES))

    async def _order(self) -> int:
        record = await self._store.get(keys.COOKIES)
        return NOT_EXISTS if record is None else record.version

    async def _change(self, examined: ExaminedLoss, change: Put | Delete) -> int:
        """Change the cookie; return the cookie's new version, or `NOT_EXISTS` after a deletion."""
        bookie_id = examined.bookie_id
        await self._store.sync()
        await self.refuse_running(bookie_id)
        # Read the cookies again, because a bookie may have marked its cookie as in doubt since
        # `examine`.
        reliable = await self._reliable(live_only=examined.live_only)
        if lost := examined.reliable - reliable - {bookie_id}:
            went = "ended, " if examined.live_only else ""
            raise BadVersionError(
                f"bookie {min(lost)} {went}was deleted or came into doubt meanwhile: look again"
            )
        try:
            _, stat = await self._store.transaction(
                [Put(keys.COOKIES, b"", examined.order), change]
            )
        except (BadVersionError, NoSuchKeyError) as error:
            changed = f"the cookie of bookie {bookie_id} changed"
            if await self._order() != examined.order:
                changed = "another bookie was forgotten"
            raise BadVersionError(f"{changed} meanwhile: look again") from error
        return NOT_EXISTS if stat is None else stat.version
