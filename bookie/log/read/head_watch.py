"""Wait for changes of a partition's head, even while the metadata store does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from bookie.log.attempts import UNANSWERED
from bookie.log.catalog.log_metadata import LogHead
from bookie.log.catalog.logs import LogManager, LogPartition
from bookie.metadata.versioned import Versioned
from bookie.telemetry import event_log

METADATA_RETRY_SECONDS = 1.0

_log = event_log(__name__)


class HeadWatch:
    """A watch of a partition's head, from the first call of `next` to `close`."""

    def __init__(
        self,
        logs: LogManager,
        partition: LogPartition,
        log_id: str,
        *,
        retry_seconds: float = METADATA_RETRY_SECONDS,
    ) -> None:
        self._logs = logs
        self._partition = partition
        self._log_id = log_id
        self._retry_seconds = retry_seconds
        self._resources = AsyncExitStack()
        self._heads: AsyncIterator[Versioned[LogHead]] | None = None

    async def next(self) -> Versioned[LogHead]:
        """Wait for the next change of the head, and return the head.

        The first call begins a watch, and so does the first call after an error. A call that begins
        a watch returns the present head at once. While the store does not answer, a call waits.

        Raises:
            NoSuchLogError: the log was deleted.
            MetadataError: the metadata store was closed, or refused the watch.
        """
        while True:
            try:
                if self._heads is None:
                    self._heads = await self._resources.enter_async_context(
                        self._logs.watch_head(self._partition, self._log_id)
                    )
                return await anext(self._heads)
            except UNANSWERED as error:
                _log.warning("log_head_unknown", partition=str(self._partition), reason=str(error))
                await self.close()
                await asyncio.sleep(self._retry_seconds)
            except BaseException:
                # An interrupted watch cannot continue; the next call begins a new watch.
                await self.close()
                raise

    async def close(self) -> None:
        self._heads = None
        await self._resources.aclose()
