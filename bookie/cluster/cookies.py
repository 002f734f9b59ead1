"""Cookies in the metadata store: one per bookie, changed only under compare-and-set.

What a missing or different cookie means is decided by the bookie that starts; here it is only kept.
"""

from __future__ import annotations

from bookie.cluster import keys
from bookie.errors import KeyExistsError
from bookie.formats.cookie import Cookie, decode_cookie, encode_cookie
from bookie.formats.ledger_metadata import Versioned
from bookie.metadata.store import NOT_EXISTS, MetadataStore


class CookieManager:
    """The cookies of a cluster."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, bookie_id: str) -> Versioned[Cookie] | None:
        """The cookie of `bookie_id`, or None.

        Raises:
            FormatError: it is damaged, or written by a newer version.
        """
        record = await self._store.get(keys.cookie(bookie_id))
        return None if record is None else Versioned(decode_cookie(record.value), record.version)

    async def bookie_ids(self) -> list[str]:
        """The ids of all bookies that ever stamped their directories, sorted."""
        return await self._store.get_children(keys.COOKIES)

    async def create(self, cookie: Cookie) -> Versioned[Cookie]:
        """Store the first cookie of a bookie.

        Raises:
            KeyExistsError: it has one.
        """
        key = keys.cookie(cookie.bookie_id)
        try:
            stat = await self._store.put(key, encode_cookie(cookie), version=NOT_EXISTS)
        except KeyExistsError as error:
            raise KeyExistsError(f"bookie {cookie.bookie_id} has a cookie already") from error
        return Versioned(cookie, stat.version)

    async def write(self, cookie: Cookie, version: int) -> Versioned[Cookie]:
        """Replace the cookie that has `version`.

        Raises:
            BadVersionError: somebody changed or deleted it.
        """
        key = keys.cookie(cookie.bookie_id)
        assert version != NOT_EXISTS
        stat = await self._store.put(key, encode_cookie(cookie), version=version)
        return Versioned(cookie, stat.version)

    async def delete(self, bookie_id: str, version: int) -> None:
        """Forget a bookie whose data is gone for good.

        Raises:
            NoSuchKeyError: it has no cookie.
            BadVersionError: the cookie changed meanwhile.
        """
        await self._store.delete(keys.cookie(bookie_id), version=version)
