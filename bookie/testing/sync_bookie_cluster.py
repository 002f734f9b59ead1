"""The cluster for tests without an event loop: it runs in the loop of `bookie.sync`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

import bookie.sync
from bookie.api import ClientOptions
from bookie.sync.client import SyncBookKeeper
from bookie.sync.handles import SyncHandle
from bookie.sync.loop_thread import LoopThread, Resident, this_process
from bookie.testing.bookie_cluster import BookieCluster, cluster


class SyncBookieCluster(SyncHandle):
    """`BookieCluster` without an event loop; see its verbs. Made by `sync_cluster`."""

    def __init__(self, home: LoopThread, handle: BookieCluster) -> None:
        super().__init__(home)
        self._handle = handle

    @property
    def uri(self) -> str:
        """The metadata URI, for clients of this process: ``memory://NAME``."""
        return self._handle.uri

    @property
    def bookie_ids(self) -> tuple[str, ...]:
        """The ids of the bookies, as metadata and errors name them."""
        return self._handle.bookie_ids

    def is_running(self, number: int) -> bool:
        """See `BookieCluster.is_running`."""
        return self._handle.is_running(number)

    def connect(self, **options: Unpack[ClientOptions]) -> SyncBookKeeper:
        """A client to be entered, as of `bookie.sync.connect`."""
        return bookie.sync.connect(self.uri, **options)

    def kill(self, number: int) -> None:
        """See `BookieCluster.kill`."""
        self._run(self._handle.kill(number))

    def stop(self, number: int) -> None:
        """See `BookieCluster.stop`."""
        self._run(self._handle.stop(number))

    def restart(self, number: int) -> None:
        """See `BookieCluster.restart`."""
        self._run(self._handle.restart(number))

    def pause(self, number: int) -> None:
        """See `BookieCluster.pause`."""
        self._run(self._handle.pause(number))

    def resume(self, number: int) -> None:
        """See `BookieCluster.resume`."""
        self._run(self._handle.resume(number))

    def partition(self, number: int) -> None:
        """See `BookieCluster.partition`."""
        self._run(self._handle.partition(number))

    def heal(self, number: int) -> None:
        """See `BookieCluster.heal`."""
        self._run(self._handle.heal(number))

    def wipe(self, number: int) -> None:
        """See `BookieCluster.wipe`."""
        self._run(self._handle.wipe(number))


@contextmanager
def sync_cluster(
    bookies: int = 3, *, fsync: bool = True, directory: Path | None = None
) -> Iterator[SyncBookieCluster]:
    """A new cluster for `bookie.sync`; arguments and promises are those of `cluster`."""
    home = this_process.home()
    resident = Resident(home, cluster(bookies, fsync=fsync, directory=directory))
    running = resident.open()
    try:
        yield SyncBookieCluster(home, running)
    finally:
        resident.close()
