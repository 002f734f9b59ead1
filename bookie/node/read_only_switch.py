"""An operator's switch that makes a bookie read-only; the switch may survive a restart.

A file in the ledgers directory stores the switch. So the switch moves with the bookie's data, and
is lost with the data.
"""

from __future__ import annotations

import asyncio

from bookie.env import Environment, is_disk_full
from bookie.errors import DiskFullError, StorageFailedError
from bookie.node.bookie import COMMAND, Bookie
from bookie.node.engine.directories import Directories


class ReadOnlySwitch:
    """Adds the reason `COMMAND` to a bookie's reasons to be read-only, or removes it.

    Call `load` before the bookie is registered.
    """

    def __init__(self, environment: Environment, directories: Directories, bookie: Bookie) -> None:
        self._workers = environment.workers
        self._directories = directories
        self._bookie = bookie
        self._lock = asyncio.Lock()
        """Each change holds this lock, so that the file and the bookie agree."""
        self.persists = False
        """True if the bookie will be read-only after a restart, too."""

    async def load(self) -> None:
        """Make the bookie read-only if the switch was stored."""
        self.persists = await self._workers.run("read", self._directories.is_read_only)
        if self.persists:
            self._bookie.set_read_only(COMMAND, read_only=True)

    async def set(self, *, read_only: bool, persist: bool = False) -> None:
        """Refuse new entries, or accept them again.

        With `persist`, the switch to read-only is durable when this method returns. A switch to
        read-only without `persist` does not change a stored switch. A switch to writable is durable
        even without `persist`. After an error the running bookie is unchanged, and the next start
        may see either state.

        Raises:
            DiskFullError, StorageFailedError: the switch could not be stored or removed.
        """
        async with self._lock:
            if persist or not read_only:
                await self._keep(read_only)
                self.persists = read_only
            self._bookie.set_read_only(COMMAND, read_only=read_only)

    async def _keep(self, keep: bool) -> None:
        try:
            await self._workers.run("read", self._directories.keep_read_only, keep)
        except OSError as error:
            sentence = f"the switch could not be {'kept' if keep else 'removed'}: {error}"
            kind = DiskFullError if is_disk_full(error) else StorageFailedError
            raise kind(sentence) from error
