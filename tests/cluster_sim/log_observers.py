"""Sees rare things inside of logs while a seed runs; it changes nothing that they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import bookie.log.write.partition_writer
import bookie.log.write.takeover
from bookie.errors import LogTakenOverError
from bookie.ids import NO_ENTRY
from bookie.log.head.head_keeper import HeadKeeper
from bookie.log.publish.publisher import LogPublisher
from bookie.log.write.partition_writer import PartitionWriter
from bookie.log.write.takeover import _Takeover

LOGS_SOMETIMES = {
    "takeover with 1 open": 100,
    "takeover with 2 open": 5,
    "writer lost its log": 50,
    "writer was fenced": 100,
    "ledger switched": 60,
    "roll": 30,
    "log mended": 3,
    "empty ledger removed": 60,
    "recovered by somebody else": 8,
    "unknown append": 80,
    "duplicate": 15,
    "retry": 10,
    "cursor taken": 60,
    "reset": 8,
    "gap": 40,
    "truncation": 20,
    "joined": 30,
    "compaction overtaken": 4,
    "batch published": 80,
    "batch dropped": 15,
    "publication given up": 8,
    "publication in doubt: ours": 1,
    "process vanished": 80,
    "session expired": 3,
    "power cut": 3,
    "records": 1000,
}
"""What `LOGS_SOMETIMES_SEEDS` seeds together must reach, and how often at least."""

LOGS_SOMETIMES_SEEDS = 50


@contextmanager
def observed_logs(count: Callable[[str], None]) -> Iterator[None]:
    """Count while the block lasts."""
    begin, switch, mend, end = (
        _Takeover._begin,
        PartitionWriter._switch,
        PartitionWriter._mend,
        PartitionWriter._end,
    )
    is_ours, remove_empty = LogPublisher._is_ours, bookie.log.write.takeover.remove_empty

    async def seen_begin(self: Any, keeper: HeadKeeper, writer: Any) -> Any:
        is_open = len(keeper.head.open_ranges)
        if is_open:
            count(f"takeover with {is_open} open")
        return await begin(self, keeper, writer)

    def seen_switch(self: Any, base_offset: int) -> None:
        switch(self, base_offset)
        count("ledger switched")

    async def seen_mend(self: Any) -> None:
        await mend(self)
        count("log mended")

    def seen_end(self: Any, error: Any) -> None:
        if self._error is None and isinstance(error, LogTakenOverError):
            count("writer lost its log")
        end(self, error)

    async def seen_is_ours(self: Any, *args: Any) -> bool:
        ours = await is_ours(self, *args)
        count("publication in doubt: " + ("ours" if ours else "another's"))
        return ours

    async def seen_remove(client: Any, ends: Any) -> None:
        if any(one.last_entry_id == NO_ENTRY for one in ends):
            count("empty ledger removed")
        await remove_empty(client, ends)

    with ExitStack() as stack:
        for owner, name, value in (
            (_Takeover, "_begin", seen_begin),
            (PartitionWriter, "_switch", seen_switch),
            (PartitionWriter, "_mend", seen_mend),
            (PartitionWriter, "_end", seen_end),
            (LogPublisher, "_is_ours", seen_is_ours),
            (bookie.log.write.takeover, "remove_empty", seen_remove),
            (bookie.log.write.partition_writer, "remove_empty", seen_remove),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield
