"""The last repairs of each worker, as information for operators: one record for each worker.

A worker writes its record at most every few seconds, and once more when the worker ends. No program
uses these records for a decision. So a damaged, outdated or missing record does no harm.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NoReturn

from bookie.cluster import keys
from bookie.env import Backoff, Clock, SystemClock, jitter
from bookie.errors import (
    BadVersionError,
    BookieError,
    FormatError,
    MetadataClosedError,
    NoSuchKeyError,
)
from bookie.ids import is_valid_bookie_id
from bookie.ledger.copies.replica_repair import RepairOutcome
from bookie.ledger.underreplicated import EndedRepair, decode_history, encode_history
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

REPAIRS_KEPT = 100
"""The largest number of repairs in a record."""
DETAIL_CHARACTERS_MAX = 200

WRITE_SECONDS_MIN, WRITE_SECONDS_MAX = 3.0, 60.0
"""The first and the longest pause between two writes, in seconds, before jitter; the pause doubles
while the writes fail."""
WORKER_CHARACTERS_MAX = 128
LAST_WRITE_SECONDS = 2.0
"""The longest time, in seconds, that a worker waits for its last write when the worker ends."""

STRANGER_SECONDS = 7 * 86400.0
"""The number of seconds for which the record of a worker that is not a bookie is kept."""
STRANGERS_MAX = 100
"""The largest number of records that are kept of workers that are not bookies."""

FAILED = "failed"
"""The outcome of a repair that ended with an error, for example because the metadata store did not
answer."""

_log = event_log(__name__)


class RepairHistory:
    """The last repairs of one worker."""

    def __init__(self, store: MetadataStore, worker: str, clock: Clock | None = None) -> None:
        self._store = store
        self._key = _key(worker)
        self._clock = clock or SystemClock()
        self._repairs: deque[EndedRepair] = deque(maxlen=REPAIRS_KEPT)
        self._has_read = False
        self._noted = asyncio.Event()

    def note(self, ledger_id: int, outcomes: Sequence[RepairOutcome], seconds: float) -> None:
        """Note the end of a ledger's repair, without waiting for the metadata store."""
        if not outcomes:
            return
        failed = [one for one in outcomes if not one.is_whole]
        changed = [one for one in outcomes if one.entries or one.outcome == "repaired"]
        first, *_ = failed or changed or outcomes
        self._add(
            EndedRepair(
                ledger_id,
                first.outcome,
                sum(one.entries for one in outcomes),
                sum(one.packet_bytes for one in outcomes),
                round(seconds, 3),
                "; ".join(one.detail for one in failed)[:DETAIL_CHARACTERS_MAX],
                self._clock.now_ms(),
            ),
            is_whole=not failed,
        )

    def note_error(self, ledger_id: int, reason: str, seconds: float) -> None:
        """Note that an error ended a ledger's repair, without waiting for the metadata store."""
        detail = reason[:DETAIL_CHARACTERS_MAX]
        now_ms = self._clock.now_ms()
        self._add(
            EndedRepair(ledger_id, FAILED, 0, 0, round(seconds, 3), detail, now_ms), is_whole=False
        )

    def _add(self, repair: EndedRepair, *, is_whole: bool) -> None:
        if not is_whole:
            # Keep only the last of equal failures, so that a repair that fails repeatedly does not
            # push out all other repairs.
            same = (repair.ledger_id, repair.outcome)
            kept = [one for one in self._repairs if (one.ledger_id, one.outcome) != same]
            self._repairs = deque(kept, maxlen=REPAIRS_KEPT)
        self._repairs.append(repair)
        self._noted.set()

    async def run(self) -> NoReturn:
        """Write noted repairs to the store until this task is cancelled; then write the rest.

        Raises:
            MetadataClosedError: the store was closed.
        """
        pauses = Backoff(WRITE_SECONDS_MIN, WRITE_SECONDS_MAX, jitter)
        try:
            while True:
                await self._noted.wait()
                try:
                    await self._write()
                    pauses.reset()
                except MetadataClosedError:
                    raise
                except BookieError as error:
                    _log.warning("repair_history_not_written", reason=str(error))
                await asyncio.sleep(pauses.next())
        finally:
            if self._noted.is_set():
                with suppress(BookieError, TimeoutError):
                    async with asyncio.timeout(LAST_WRITE_SECONDS):
                        await self._write()

    async def _write(self) -> None:
        self._noted.clear()
        try:
            if not self._has_read:
                record = await self._store.get(self._key)
                earlier: list[EndedRepair] = []
                if record is not None:
                    with suppress(FormatError):
                        earlier = decode_history(record.value)
                self._repairs = deque([*earlier, *self._repairs], maxlen=REPAIRS_KEPT)
                self._has_read = True
            await self._store.put(self._key, encode_history(self._repairs))
        except BaseException:
            self._noted.set()
            raise


async def ended_repairs(
    store: MetadataStore,
) -> tuple[list[tuple[str, EndedRepair]], list[str]]:
    """Return the last repairs of all workers, each with its worker's name, newest first.

    The second list names the workers whose records are damaged, or were written by a newer version.
    """
    found: list[tuple[str, EndedRepair]] = []
    damaged = []
    for worker in await store.get_children(keys.REPAIR_HISTORY):
        record = await store.get(f"{keys.REPAIR_HISTORY}/{worker}")
        if record is None:
            continue
        try:
            found += [(worker, one) for one in decode_history(record.value)]
        except FormatError:
            damaged.append(worker)
    found.sort(key=lambda one: one[1].ended_ms, reverse=True)
    return found, damaged


async def forget_strangers(store: MetadataStore, known: Collection[str], now_ms: int) -> list[str]:
    """Remove records of workers that are not in `known`; return the names of these workers.

    The newest `STRANGERS_MAX` of these records are kept until they are `STRANGER_SECONDS` old. If
    the worker of a removed record still runs, it writes its complete record again.

    Args:
        store: the metadata store that has the records.
        known: the bookies of the cluster.
        now_ms: the time of day, in ms.
    """
    strangers: list[tuple[int, str, int]] = []
    for worker in await store.get_children(keys.REPAIR_HISTORY):
        if worker in known:
            continue
        key = f"{keys.REPAIR_HISTORY}/{worker}"
        record = await store.get(key)
        if record is None:
            continue
        try:
            last_ms = max((one.ended_ms for one in decode_history(record.value)), default=0)
        except FormatError:
            last_ms = 0
        strangers.append((last_ms, key, record.version))
    strangers.sort(reverse=True)
    oldest_ms = now_ms - STRANGER_SECONDS * 1000
    forgotten = []
    for number, (last_ms, key, version) in enumerate(strangers):
        if number < STRANGERS_MAX and last_ms >= oldest_ms:
            continue
        with suppress(BadVersionError, NoSuchKeyError):  # the record has changed or is gone
            await store.delete(key, version=version)
            forgotten.append(key.rpartition("/")[2])
    return forgotten


def _key(worker: str) -> str:
    """Return the key of a worker's record; characters that a key must not have are replaced."""
    name = worker if is_valid_bookie_id(worker) else re.sub(r"[^A-Za-z0-9:-]", "-", worker)
    return f"{keys.REPAIR_HISTORY}/{name[:WORKER_CHARACTERS_MAX] or '-'}"
