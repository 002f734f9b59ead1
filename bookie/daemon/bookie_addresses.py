"""Collects the IP addresses of registered bookies, for which some connections are reserved."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from bookie.cluster.directory import BookieDirectory
from bookie.errors import MetadataClosedError, MetadataError, RequestError
from bookie.metadata.mirror import backoff
from bookie.metadata.store import MetadataStore

RESOLVE_SECONDS: Final = 60.0
"""The time between two resolutions of all host names, because a host may get another address."""


class BookieAddresses:
    """Tells if an IP address belongs to a bookie that was registered since this process started.

    An address stays known when its bookie is no longer registered, because a bookie without a
    session continues to serve and to repair. The test ``address in addresses`` asks no name server.

    Args:
        resolve: returns the IP addresses of a host; the call may block, and raise OSError.
    """

    def __init__(self, resolve: Callable[[str], frozenset[str]] | None = None) -> None:
        self._resolve = resolve or addresses_of
        self._hosts: dict[str, frozenset[str]] = {}
        self._found: dict[str, frozenset[str]] = {}
        """The last known IP addresses of each host."""
        self._known: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def __contains__(self, address: str) -> bool:
        return address in self._known

    async def follow(self, store: MetadataStore) -> None:
        """Follow the registrations until the store is closed.

        An outage of the store leaves all known hosts unchanged.
        """
        pauses = backoff()
        while True:
            try:
                async with BookieDirectory(store) as directory:
                    pauses.reset()
                    while True:
                        for bookie_id, registration in directory.all().items():
                            hosts = frozenset(each.host for each in registration.endpoints)
                            if self._hosts.get(bookie_id) != hosts:
                                self._hosts[bookie_id] = hosts
                                self._changed.set()
                        await directory.wait_for_change()
            except MetadataClosedError:
                return
            except (MetadataError, RequestError):
                await asyncio.sleep(pauses.next())

    async def keep_resolved(self) -> NoReturn:
        """Resolve the bookies' hosts once a minute and after each change, until cancelled.

        A host that cannot be resolved keeps its last known addresses.
        """
        while True:
            self._changed.clear()
            hosts = set().union(*self._hosts.values())
            self._found = {host: self._found.get(host, frozenset()) for host in hosts}
            for host in sorted(hosts):
                found = await _in_a_thread(self._resolve, host)
                if found:
                    self._found[host] = found
                    self._known = frozenset(set().union(*self._found.values()))
            try:
                async with asyncio.timeout(RESOLVE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue


def addresses_of(host: str) -> frozenset[str]:
    """Return the IP addresses of a host.

    Raises:
        OSError: the host cannot be resolved now.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return frozenset(str(address[0]) for *_, address in found)


async def _in_a_thread(resolve: Callable[[str], frozenset[str]], host: str) -> frozenset[str]:
    """Resolve a host in a thread; return an empty set if the host cannot be resolved.

    The thread is a daemon thread, so a silent name server cannot delay the end of the process. For
    a thread of the event loop's executor, the process would wait at its end.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[frozenset[str]] = loop.create_future()

    def work() -> None:
        try:
            found = resolve(host)
        except (OSError, UnicodeError):  # UnicodeError: the text cannot be a name in DNS
            found = frozenset()
        with suppress(RuntimeError):  # the event loop was closed during the resolution
            loop.call_soon_threadsafe(tell, found)

    def tell(found: frozenset[str]) -> None:
        if not answer.done():
            answer.set_result(found)

    threading.Thread(target=work, name="resolve-bookies", daemon=True).start()
    return await answer
