"""Sweep logs: finish the work that crashed processes left unfinished.

============================ =====================================================================
unfinished work              the sweep
============================ =====================================================================
the deletion of a log        finishes the deletion
a truncation, compaction or  deletes ledgers that have the tags of a log and that no range names,
takeover; an empty ledger    and chunks that the head does not name
a publisher died             deletes the publisher's ledgers that no range names
retention, because an owner  applies the retention of each partition, even if a live owner also
crashed or there is no owner applies the retention
============================ =====================================================================

A sweep deletes a ledger that no range names only if the ledger is older than `older_than_seconds`,
by default a day. A publisher begins no range in a ledger that is older than half a day, and should
publish a range within half a day. The age of a ledger is computed from the clock of its creator and
the clock of the sweep. The creator and the sweep compared their clocks with bookies' clocks
(`clock_check`).

Safety does not depend on clocks. If the ledger of a range was deleted, the publication of the range
fails (:mod:`bookie.log.tidy.unnamed_ledgers`). The batch must then be written again.

Any number of sweeps may run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bookie.errors import BadRequestError, BookieError, NoSuchLedgerError
from bookie.ids import LOG_TAG
from bookie.ledger.metadata import LedgerMetadata
from bookie.log.catalog.log_metadata import LogDefinition
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.log.log_client import PARTITION_TAG, LogClient
from bookie.log.tidy.deletion import delete_log
from bookie.log.tidy.truncation import apply_retention, retention_offset
from bookie.log.tidy.unnamed_ledgers import delete_unnamed, named_among
from bookie.telemetry import event_log

OLDER_THAN_SECONDS = 24 * 3600

_log = event_log(__name__)


@dataclass(slots=True)
class LogSweep:
    """The result of a sweep; with `dry_run`, the result that a real sweep would have now."""

    ledgers: list[int] = field(default_factory=list)
    """The ledgers that were deleted because no log names them."""
    chunks: dict[LogPartition, list[int]] = field(default_factory=dict)
    """For each partition: the chunks that were deleted because the head does not name them."""
    deletions: list[LogName] = field(default_factory=list)
    """The logs whose deletion was finished."""
    truncated: dict[LogPartition, int] = field(default_factory=dict)
    """For each truncated partition: the first offset that retention kept."""
    failures: dict[str, str] = field(default_factory=dict)
    """For each log, partition or ledger with unfinished work: the reason why the work remains."""


async def sweep_logs(
    client: LogClient, *, older_than_seconds: float = OLDER_THAN_SECONDS, dry_run: bool = False
) -> LogSweep:
    """Sweep all logs once. A failure in one log does not stop the sweep of other logs.

    Raises:
        MetadataError: the logs or the ledgers cannot be listed.
        NotEnoughBookiesError: too few bookies told their time; nothing was swept.
    """
    sweep = _Sweep(client, older_than_seconds, dry_run=dry_run)
    await sweep.run()
    return sweep.done


@dataclass(frozen=True, slots=True, order=True)
class _Tags:
    """The log and partition to which a ledger belongs, according to the ledger's tags."""

    partition: LogPartition
    log_id: str


class _Sweep:
    def __init__(self, client: LogClient, older_than_seconds: float, *, dry_run: bool) -> None:
        self._client = client
        self._older_than_ms = int(1000 * older_than_seconds)
        self._before_ms = 0
        """The time in ms since 1970; all ledgers that were created later stay."""
        self._dry_run = dry_run
        self.done = LogSweep()

    async def run(self) -> None:
        """Finish deletions and apply retention, then delete old ledgers that no range names.

        The sweep lists all ledgers before it reads the heads of their partitions.
        """
        self._before_ms = await self._client.clocks.deletion_ms() - self._older_than_ms
        for name in [name async for name in self._client.logs.list_logs()]:
            try:
                await self._visit(name)
            except BookieError as error:
                self._fail(str(name), error)
        for tags, ledger_ids in sorted((await self._candidates()).items()):
            try:
                await self._sweep_ledgers(tags, ledger_ids)
            except BookieError as error:
                self._fail(str(tags.partition), error)
        _log.info(
            "logs_swept",
            ledgers=len(self.done.ledgers),
            deletions=len(self.done.deletions),
            truncated=len(self.done.truncated),
            failures=len(self.done.failures),
        )

    def _fail(self, what: str, error: BookieError) -> None:
        self.done.failures[what] = str(error)
        _log.warning("log_not_swept", what=what, reason=str(error))

    async def _visit(self, name: LogName) -> None:
        found = await self._client.logs.find(name)
        if found is None:
            return
        if found.value.is_deleted:
            if not self._dry_run:
                await delete_log(self._client, name)
            self.done.deletions.append(name)
            return
        for number in range(found.value.partitions):
            partition = LogPartition(name, number)
            try:
                await self._visit_partition(partition, found.value)
            except BookieError as error:
                self._fail(str(partition), error)

    async def _visit_partition(self, partition: LogPartition, definition: LogDefinition) -> None:
        client = self._client
        head = (await client.logs.read_latest_head(partition, definition.log_id)).value
        # The head never again names a chunk whose number is smaller than its first chunk.
        numbers = await client.logs.chunk_numbers(partition)
        left = [number for number in numbers if number < head.first_chunk]
        if left:
            if not self._dry_run:
                await client.logs.delete_chunks(partition, left)
            self.done.chunks[partition] = left
        if self._dry_run:
            start = await retention_offset(client, partition, head)
        else:
            start = await apply_retention(client, partition)
        if start > head.start_offset:
            self.done.truncated[partition] = start

    async def _candidates(self) -> dict[_Tags, list[int]]:
        """Return the logs' ledgers that are old enough to be deleted, grouped by their tags."""
        candidates: dict[_Tags, list[int]] = {}
        ledgers = self._client.ledgers.ledgers
        async for found in ledgers.list_readable(lambda _: None):
            tags = _tags_of(found.value)
            if tags is not None and self._is_old(found.value):
                candidates.setdefault(tags, []).append(found.value.ledger_id)
        return candidates

    def _is_old(self, ledger: LedgerMetadata) -> bool:
        return 0 <= ledger.ctime_ms <= self._before_ms

    async def _sweep_ledgers(self, tags: _Tags, ledger_ids: list[int]) -> None:
        client, partition = self._client, tags.partition
        await client.store.sync()
        found = await client.logs.find(partition.name)
        if found is None or found.value.log_id != tags.log_id:
            # Ids of logs are random, so no later log has this id.
            await self._delete(ledger_ids)
        elif found.value.is_deleted or partition.number >= found.value.partitions:
            return
        elif self._dry_run:
            head = await client.logs.read_latest_head(partition, tags.log_id)
            named = await named_among(client, partition, head.value, ledger_ids)
            self.done.ledgers += [one for one in ledger_ids if one not in named]
        else:
            self.done.ledgers += await delete_unnamed(
                client,
                partition,
                tags.log_id,
                ledger_ids,
                may_go=lambda ledger: _tags_of(ledger) == tags and self._is_old(ledger),
            )

    async def _delete(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            if not self._dry_run:
                try:
                    await self._client.ledgers.ledgers.delete(ledger_id)
                except NoSuchLedgerError:
                    continue
            self.done.ledgers.append(ledger_id)


def _tags_of(ledger: LedgerMetadata) -> _Tags | None:
    """Return a ledger's tags; None if the ledger belongs to no log or its tags are not valid."""
    log, number = (ledger.custom_metadata.get(key) for key in (LOG_TAG, PARTITION_TAG))
    if log is None or number is None:
        return None
    try:
        name, _, log_id = log.decode().rpartition(" ")
        return _Tags(LogPartition(LogName.parse(name), int(number)), log_id)
    except (ValueError, BadRequestError):
        return None
