"""What is durably known about the integrity of the data: sound, suspect, or in limbo."""

from __future__ import annotations

from bookie.env import Environment
from bookie.storage.index import INTEGRITY_SOUND, META_INTEGRITY, Index
from bookie.telemetry import Metrics


class Integrity:
    """One of the ``INTEGRITY_`` values of the index, and the metric that shows it."""

    def __init__(self, environment: Environment, index: Index, metrics: Metrics) -> None:
        self._env = environment
        self._index = index
        self._metrics = metrics
        metrics.integrity_check_needed.set(self.value != INTEGRITY_SOUND)

    @property
    def value(self) -> bytes:
        """The value; a damaged one is suspect."""
        return self._index.integrity()

    async def set(self, value: bytes) -> None:
        """Remember `value`; durable when it returns."""
        await self._env.workers.run("index", self._index.put_meta, {META_INTEGRITY: value})
        self._metrics.integrity_check_needed.set(value != INTEGRITY_SOUND)
