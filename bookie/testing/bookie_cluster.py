"""A cluster in this process: real bookies on real files behind real gRPC, metadata in memory."""

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

    Each method that changes a bookie returns when the bookie is in its new state. Clients notice
    the change only as they would with a real bookie. So tests should wait for a condition, and not
    for a time.

    Raises:
        BadRequestError: (all verbs) there is no such bookie, or it does not run, or runs already.
    """

    def __init__(
        self,
        uri: str,
        store: MetadataStore,
        lives: tuple[BookieLives, ...],
    ) -> None:
        self.uri = uri
        """The metadata URI, for clients of this process: ``memory://NAME``."""
        self._cookies = CookieManager(store)
        self._lives = lives

    @property
    def bookie_ids(self) -> tuple[str, ...]:
        """The ids of the bookies, as metadata and errors name them."""
        return tuple(one.bookie_id for one in self._lives)

    def is_running(self, number: int) -> bool:
        """True between the start of the bookie and its end, even while it is paused."""
        return self._at(number).is_running

    def connect(self, **options: Unpack[ClientOptions]) -> BookKeeper:
        """Return a client as `bookie.connect` does, to be entered; short timeouts suit tests."""
        return connect_client(self.uri, **options)

    async def kill(self, number: int) -> None:
        """End a bookie at once, as SIGKILL does.

        The bookie's connections are reset and it sends no more answers. The bookie's memory is
        lost; the bytes in its files stay, synced or not. The bookie's registration vanishes at
        once, because its session ends with it. After a real kill the registration would stay until
        the session times out.
        """
        await self._at(number).kill()

    async def stop(self, number: int) -> None:
        """Stop a bookie in order, as SIGTERM does."""
        await self._at(number).stop()

    async def restart(self, number: int) -> None:
        """Start a bookie on the files of its last life; stop it in order before if it is running.

        After the restart the bookie listens on another port, as its registration says.
        """
        bookie = self._at(number)
        if bookie.is_running:
            await bookie.stop()
        await bookie.start()

    async def pause(self, number: int) -> None:
        """Let a bookie hang, as SIGSTOP does for a time shorter than its session timeout.

        Connections stay open but silent, and the bookie stays registered. Entries that the bookie
        had received may be stored during the pause; it answers them after `resume`.
        """
        self._at(number).pause()

    async def resume(self, number: int) -> None:
        """End a pause; requests that were sent during the pause arrive."""
        self._at(number).resume()

    async def partition(self, number: int) -> None:
        """Cut a bookie off from clients and from the metadata store.

        Connections hang as in a pause. The bookie's session ends at once, so it is no longer
        registered.
        """
        self._at(number).partition()

    async def heal(self, number: int) -> None:
        """End a partition: the bookie gets a new session, and registers again soon."""
        self._at(number).resume()

    async def wipe(self, number: int) -> None:
        """Kill a bookie, replace its disks by empty ones and delete its cookie.

        `restart` begins the bookie's next life. In its next life the bookie has a new incarnation,
        and does not deny that its former entries exist.
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
    clients before that. If a bookie fails by itself, the block is cancelled and the error is raised
    in a group.

    Args:
        bookies: how many.
        fsync: False lets syncs of journal files return at once. This is faster on slow disks, and
            nothing is promised for the files if the machine stops. A kill loses as much as before.
        directory: where the bookies store, and where their files stay; a temporary one when None.
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
