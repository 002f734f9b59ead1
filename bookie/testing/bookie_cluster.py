"""A cluster in this process: real bookies with real files and gRPC; the metadata is in memory."""

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
    """A cluster of bookies 0, 1, …, whose methods stop or disturb a bookie; see `cluster`.

    Each method that changes a bookie returns when the bookie is in its new state. Clients notice
    the change only as with a real bookie. So tests should wait for a condition, not for a time.

    Raises:
        BadRequestError: (all methods) the bookie does not exist, does not run, or already runs.
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
        """True between the start of the bookie and its end, even while it is paused."""
        return self._at(number).is_running

    def connect(self, **options: Unpack[ClientOptions]) -> BookKeeper:
        """Return a client to enter, as `bookie.connect` does; short timeouts suit tests."""
        return connect_client(self.uri, **options)

    async def kill(self, number: int) -> None:
        """End a bookie at once, like SIGKILL.

        The bookie's connections are reset and it sends no more answers. The bookie's memory is
        lost; the bytes in its files stay, synced or not. The bookie's registration vanishes at
        once, because its session ends, too. After a real kill the registration would stay until the
        session times out.
        """
        await self._at(number).kill()

    async def stop(self, number: int) -> None:
        """Stop a bookie in an orderly way, like SIGTERM."""
        await self._at(number).stop()

    async def restart(self, number: int) -> None:
        """Start a bookie on the files of its last life; if it is running, stop it first.

        After the restart the bookie listens on another port, which its registration names.
        """
        bookie = self._at(number)
        if bookie.is_running:
            await bookie.stop()
        await bookie.start()

    async def pause(self, number: int) -> None:
        """Make a bookie hang, like a SIGSTOP that is shorter than its session timeout.

        Connections stay open but silent, and the bookie stays registered. The bookie may store
        received entries during the pause; it answers after `resume`.
        """
        self._at(number).pause()

    async def resume(self, number: int) -> None:
        """End a pause; requests that were sent during the pause arrive."""
        self._at(number).resume()

    async def partition(self, number: int) -> None:
        """Cut off a bookie from clients and from the metadata store.

        Connections hang as in a pause. The bookie's session ends at once, so it is no longer
        registered.
        """
        self._at(number).partition()

    async def heal(self, number: int) -> None:
        """End a partition: the bookie gets a new session, and registers again soon."""
        self._at(number).resume()

    async def wipe(self, number: int) -> None:
        """Kill a bookie, replace its disks with empty disks, and delete its cookie.

        `restart` begins the bookie's next life. In its next life, the bookie has a new incarnation,
        and does not deny its former entries.
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
    clients before the end of the block. If a bookie fails on its own, the block is cancelled and
    the error is raised in a group.

    Args:
        bookies: the number of bookies.
        fsync: False makes syncs of journal files return at once. Without syncs, slow disks are
            faster, but the files are not durable if the machine stops. A kill loses no more than
            with syncs.
        directory: where the bookies store their files, which then stay; None means a temporary
            directory.
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
