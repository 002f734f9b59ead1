"""What is durably known about the integrity of the data: sound, suspect, or in limbo."""

from __future__ import annotations

from bookie.env import Environment
from bookie.errors import StorageFailedError
from bookie.storage.index import INTEGRITY_SOUND, META_INTEGRITY, Index
from bookie.storage.page_walk import delete_values
from bookie.telemetry import Metrics


class Integrity:
    """One of the ``INTEGRITY_`` values of the index, and the metric that shows it."""

    def __init__(self, environment: Environment, index: Index, metrics: Metrics) -> None:
        self._env = environment
        self.index = index
        self._metrics = metrics
        self.show()

    @property
    def value(self) -> bytes:
        """The value; a damaged one is suspect."""
        return self.index.integrity()

    async def set(self, value: bytes) -> None:
        """Remember `value`; durable when it returns.

        Raises:
            DiskFullError: there is no room; nothing happened.
            StorageFailedError: the index failed; the process must end.
        """
        await self.put({META_INTEGRITY: value})

    async def put(self, values: dict[bytes, bytes]) -> None:
        """Set values of ``meta``, this one among them or not; raises like `set`."""
        try:
            await self._env.workers.run("index", self.index.put_meta, values)
        except OSError as error:
            raise StorageFailedError(f"the index failed: {error}") from error
        self.show()

    async def forget(self, names: list[bytes]) -> None:
        """Remove values of ``meta``; raises like `set`."""
        try:
            await self._env.workers.run("index", delete_values, self.index.store, names)
        except OSError as error:
            raise StorageFailedError(f"the index failed: {error}") from error

    def show(self) -> None:
        """Bring the metric up to date."""
        self._metrics.integrity_check_needed.set(self.value != INTEGRITY_SOUND)
