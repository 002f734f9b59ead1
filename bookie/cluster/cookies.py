"""Cookies in the metadata store: one per bookie, changed only by compare-and-set.

This module only stores cookies. Each bookie checks at its start whether one of its cookies is
missing or wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie.cluster import keys
from bookie.cluster.cookie import Cookie, decode_cookie, encode_cookie
from bookie.cluster.instance import require_instance
from bookie.errors import FormatError, KeyExistsError
from bookie.metadata.model import NOT_EXISTS, Check
from bookie.metadata.store import MetadataStore
from bookie.metadata.versioned import Versioned
from bookie.telemetry import event_log

_log = event_log(__name__)


class CookieManager:
    """The cookies of a cluster in its metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, bookie_id: str) -> Versioned[Cookie] | None:
        """Return the cookie of `bookie_id`, or None if there is no cookie.

        Raises:
            FormatError: the cookie is damaged, or a newer version wrote it.
        """
        record = await self._store.get(keys.cookie(bookie_id))
        return None if record is None else Versioned(decode_cookie(record.value), record.version)

    async def read_latest(self, bookie_id: str) -> Versioned[Cookie] | None:
        """Return the cookie like `read`; the result shows all changes made before this call."""
        await self._store.sync()
        return await self.read(bookie_id)

    def unchanged(self, bookie_id: str, version: int) -> Check:
        """Return the transaction condition that the cookie still has `version`."""
        return Check(keys.cookie(bookie_id), version)

    async def require_instance(self, instance_id: str) -> None:
        """Check that the store holds the cluster `instance_id`.

        Without a check of the cluster, a missing cookie proves nothing: a wrong store also has no
        cookie.

        Raises:
            WrongClusterError: the store holds another cluster, or none.
        """
        await require_instance(self._store, instance_id)

    async def bookie_ids(self) -> list[str]:
        """Return the ids of all bookies that have a cookie, sorted."""
        return await self._store.get_children(keys.COOKIES)

    async def list_readable(self, on_damaged: Callable[[str], object]) -> list[Cookie]:
        """Return all readable cookies, sorted by bookie id.

        `on_damaged` is called with the bookie id of each unreadable cookie. Use the result only for
        display, because the result omits unreadable cookies.
        """
        found = []
        for bookie_id in await self.bookie_ids():
            try:
                cookie = await self.read(bookie_id)
            except FormatError as error:
                _log.warning("cookie_damaged", key=keys.cookie(bookie_id), reason=str(error))
                on_damaged(bookie_id)
                continue
            if cookie is not None:
                found.append(cookie.value)
        return found

    async def create(self, cookie: Cookie) -> Versioned[Cookie]:
        """Store the first cookie of a bookie.

        Raises:
            KeyExistsError: the bookie already has a cookie.
        """
        key = keys.cookie(cookie.bookie_id)
        try:
            stat = await self._store.put(key, encode_cookie(cookie), version=NOT_EXISTS)
        except KeyExistsError as error:
            raise KeyExistsError(f"bookie {cookie.bookie_id} has a cookie already") from error
        return Versioned(cookie, stat.version)

    async def write(self, cookie: Cookie, version: int) -> Versioned[Cookie]:
        """Replace the cookie, if its version in the store is `version`.

        Raises:
            BadVersionError: the cookie was changed or deleted.
        """
        key = keys.cookie(cookie.bookie_id)
        assert version != NOT_EXISTS
        stat = await self._store.put(key, encode_cookie(cookie), version=version)
        return Versioned(cookie, stat.version)

    async def delete(self, bookie_id: str, version: int) -> None:
        """Delete the cookie of a bookie whose data is permanently lost.

        Raises:
            NoSuchKeyError: the bookie has no cookie.
            BadVersionError: the cookie no longer has `version`.
        """
        await self._store.delete(keys.cookie(bookie_id), version=version)
