"""A cluster for tests without an event loop; the cluster runs in the loop of `bookie.sync`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

import bookie.sync
from bookie.api import ClientOptions
from bookie.sync.client import SyncBookKeeper
from bookie.sync.forwarding import Shown, forwarded, shown
from bookie.sync.handles import SyncHandle
from bookie.sync.loop_thread import LoopThread, Resident, this_process
from bookie.testing.bookie_cluster import BookieCluster, cluster


class SyncBookieCluster(SyncHandle):
    """A `BookieCluster` for callers without an event loop; `sync_cluster` creates it."""

    def __init__(self, home: LoopThread, handle: BookieCluster) -> None:
        super().__init__(home)
        self._handle = handle

    @property
    def uri(self) -> str:
        """The metadata URI for clients of this process: ``memory://NAME``."""
        return self._handle.uri

    bookie_ids: Shown[tuple[str, ...]] = shown(BookieCluster.bookie_ids)

    def is_running(self, number: int) -> bool:
        """True between the start of the bookie and its end, even during a pause."""
        return self._handle.is_running(number)

    def connect(self, **options: Unpack[ClientOptions]) -> SyncBookKeeper:
        """Return a client like `bookie.sync.connect`, for use in ``with``."""
        return bookie.sync.connect(self.uri, **options)

    kill = forwarded(BookieCluster.kill)
    stop = forwarded(BookieCluster.stop)
    restart = forwarded(BookieCluster.restart)
    pause = forwarded(BookieCluster.pause)
    resume = forwarded(BookieCluster.resume)
    partition = forwarded(BookieCluster.partition)
    heal = forwarded(BookieCluster.heal)
    wipe = forwarded(BookieCluster.wipe)


@contextmanager
def sync_cluster(
    bookies: int = 3, *, fsync: bool = True, directory: Path | None = None
) -> Iterator[SyncBookieCluster]:
    """Run a new cluster for `bookie.sync`, with the arguments and promises of `cluster`."""
    home = this_process.home()
    resident = Resident(home, cluster(bookies, fsync=fsync, directory=directory))
    running = resident.open()
    try:
        yield SyncBookieCluster(home, running)
    finally:
        resident.close()
