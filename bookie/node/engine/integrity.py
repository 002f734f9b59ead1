"""The durable verdict about the integrity of the data: sound, suspect, or in limbo."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from bookie.env import Environment
from bookie.errors import StorageFailedError
from bookie.node.engine.index.entry_index import (
    INTEGRITY_SOUND,
    INTEGRITY_SUSPECT,
    META_INTEGRITY,
    Index,
)
from bookie.node.engine.index.page_reads import delete_values, values_of
from bookie.telemetry import Metrics

P = ParamSpec("P")
R = TypeVar("R")


class Integrity:
    """Keeps the verdict, an ``INTEGRITY_`` value; a metric is 1 if an integrity check is needed."""

    def __init__(self, environment: Environment, index: Index, metrics: Metrics) -> None:
        self._env = environment
        self.index = index
        self._metrics = metrics
        self.value = INTEGRITY_SUSPECT
        """The current verdict; a damaged stored value counts as suspect."""
        self._show(index.integrity())

    async def set(self, value: bytes) -> None:
        """Store `value` as the verdict; the change is durable when this method returns.

        Raises:
            DiskFullError: there is no room for the change.
            StorageFailedError: the index failed; the process must end.
        """
        await self.put({META_INTEGRITY: value})

    async def put(self, values: dict[bytes, bytes]) -> None:
        """Set values in ``meta``, which may include the verdict; raises like `set`."""
        self._show(await self._in_index(self._put, values))

    def _put(self, values: dict[bytes, bytes]) -> bytes:
        self.index.put_meta(values)
        return self.index.integrity()

    async def values(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return the ``meta`` values whose names begin with `prefix`; see `values_of`."""
        return await self._env.workers.run("read", values_of, self.index.store, prefix)

    async def forget(self, names: list[bytes]) -> None:
        await self._in_index(delete_values, self.index.store, names)

    async def _in_index(self, change: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await self._env.workers.run("index", change, *args, **kwargs)
        except OSError as error:
            raise StorageFailedError(f"the index failed: {error}") from error

    def _show(self, value: bytes) -> None:
        self.value = value
        self._metrics.integrity_check_needed.set(value != INTEGRITY_SOUND)
