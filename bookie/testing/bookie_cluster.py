"""A cluster in this process: real bookies with real files and gRPC, and metadata in memory."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Unpack

from bookie.api import BookKeeper, ClientOptions
from bookie.api import connect as connect_client
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import initialize_cluster
from bookie.env import gather
from bookie.errors import BadRequestError
from bookie.metadata.connect import open_store
from bookie.metadata.memory.tree import forget_tree
from bookie.metadata.store import MetadataStore
from bookie.testing.bookie_lives import BookieLives


class BookieCluster:
    """A cluster of bookies 0, 1, …, with methods that stop or disturb a bookie; see `cluster`.

    When a method returns, the bookie is in its new state. Clients notice the change later, as with
    a real bookie. So tests should wait for a condition, not for a fixed time.

    Raises:
        BadRequestError: a method got the number of a bookie that does not exist or does not run.
    """

    def __init__(
        self,
        uri: str,
        store: MetadataStore,
        lives: tuple[BookieLives, ...],
    ) -> None:
        self.uri = uri
        """The metadata URI for clients of this process: ``memory://NAME``."""
        self._cookies = CookieManager(store)
        self._lives = lives

    @property
    def bookie_ids(self) -> tuple[str, ...]:
        """The ids of the bookies, as in metadata and errors."""
        return tuple(one.bookie_id for one in self._lives)

    def is_running(self, number: int) -> bool:
        """True between the start of the bookie and its end, even during a pause."""
        return self._at(number).is_running

    def connect(self, **options: Unpack[ClientOptions]) -> BookKeeper:
        """Return a client like `bookie.connect`, for ``async with``; use short timeouts."""
        return connect_client(self.uri, **options)

    async def kill(self, number: int) -> None:
        """End a bookie at once, like SIGKILL.

        The bookie's connections are reset and it sends no more answers. The bookie's memory is
        lost; the bytes in its files stay, even without a sync. The bookie's session and
        registration end at once; after a real SIGKILL, both last until the session timeout.
        """
        await self._at(number).kill()

    async def stop(self, number: int) -> None:
        """Stop a bookie in an orderly way, like SIGTERM."""
        await self._at(number).stop()

    async def restart(self, number: int) -> None:
        """Start a bookie with the files of its previous run; first stop a running bookie.

        After the restart the bookie listens on another port, which its registration names.
        """
        bookie = self._at(number)
        if bookie.is_running:
            await bookie.stop()
        await bookie.start()

    async def pause(self, number: int) -> None:
        """Make a bookie hang, like SIGSTOP for less than the session timeout.

        Connections stay open but silent, and the bookie stays registered. During the pause, the
        bookie may still store entries that it has received. The answers arrive after `resume`.
        """
        self._at(number).pause()

    async def resume(self, number: int) -> None:
        """End a pause; requests that were sent during the pause arrive."""
        self._at(number).resume()

    async def partition(self, number: int) -> None:
        """Separate a bookie from clients and from the metadata store.

        Connections hang as in a pause. The bookie's session ends at once, so it is no longer
        registered.
        """
        self._at(number).partition()

    async def heal(self, number: int) -> None:
        """End a partition: the bookie gets a new session at once, and registers again soon."""
        self._at(number).resume()

    async def wipe(self, number: int) -> None:
        """Kill a bookie, replace its disks with empty disks, and delete its cookie.

        Start the bookie again with `restart`. The bookie then has a new incarnation. If the bookie
        may have stored an entry before, it never answers that the entry does not exist.
        """
        await self._at(number).wipe(self._cookies)

    def _at(self, number: int) -> BookieLives:
        if not 0 <= number < len(self._lives):
            raise BadRequestError(
                f"there is no bookie {number}; the last is {len(self._lives) - 1}"
            )
        return self._lives[number]


@asynccontextmanager
async def cluster(
    bookies: int = 3, *, fsync: bool = True, directory: Path | None = None
) -> AsyncIterator[BookieCluster]:
    """Run a new cluster in the event loop; all bookies are registered when the block begins.

    At the end of the block the bookies stop, and their files and metadata are deleted. Close
    clients before the end of the block. If a bookie fails although the test did not kill it, the
    block is cancelled, and an exception group with the error is raised.

    Args:
        bookies: the number of bookies.
        fsync: If False, syncs of files and directories do nothing, except syncs of the index, so
            tests on slow disks are faster. Files may be lost if the machine stops, but not by
            `kill`.
        directory: the directory for the bookies' files, which remain after the block. None means a
            temporary directory.
    """
    name = f"testing-{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix="bookie-testing-") as temporary:
        root = directory or Path(temporary)
        try:
            async with (
                open_store(f"memory://{name}") as store,
                asyncio.TaskGroup() as tasks,
            ):
                await initialize_cluster(store)
                lives = tuple(
                    BookieLives(f"bookie-{number}", root / f"bookie-{number}", name, tasks, fsync)
                    for number in range(bookies)
                )
                try:
                    await gather(one.start() for one in lives)
                    yield BookieCluster(f"memory://{name}", store, lives)
                finally:
                    await gather(one.stop() for one in lives if one.is_running)
        finally:
            forget_tree(name)
