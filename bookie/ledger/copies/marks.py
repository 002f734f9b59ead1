"""Manages the ledgers that lack copies: auditors mark them, replicators lock and repair them.

A mark names the bookies whose copies of a ledger are missing. A replicator removes a mark only if
the mark still has the version that it had when the replicator locked the ledger. So a ledger that
is marked again during a repair stays marked.

A damaged mark counts as absent, and the next mark of the same ledger replaces it. If a newer
version of the software wrote a mark, workers of an older version leave this mark to workers of the
newer version. Such marks, and damaged marks, do not prevent the repair of other ledgers.

Listings of marks and of locks skip a key that belongs to no ledger, and write a warning with this
key to the event log.

A lock on a ledger is ephemeral: the lock ends with its owner's session. Two concurrent repairs are
safe, because the version of the ledger's metadata guards their changes. A bookie reclaims copies of
a ledger only while it holds the ledger's lock. So a repair's transaction that adds a bookie to the
metadata must contain `RepairLock.condition`: the bookie may have reclaimed its new copies if the
repair lost the lock.

A lock contains a random token, which the owner remembers before it writes the lock. So the owner
recognises its own lock even if the write of the lock was not answered. The owner then takes the
ledger with its next attempt, or gives the lock back later (`give_back_doubtful`).

All tasks that share one `UnderreplicationManager` are one worker. When the worker's session ends,
its locks end, and another task of the same worker may lock the ledger. So a task that gives a lock
back passes the lock that it took (`lock_of`).

=============================================== ===============================================
key                                             value
=============================================== ===============================================
``underreplication/ledgers/000/…/0001``         the missing replicas, and the time of the mark
``underreplication/locks/<19 digits>``          ephemeral: the worker that repairs the ledger
``underreplication/disabled``                   while this exists, replicators take no ledger
``underreplication/lost_bookie_recovery_delay`` seconds, as decimal text
``underreplication/checks/<name>``              when the last check of this kind ended, in ms
=============================================== ===============================================

Source: BookKeeper's LedgerUnderreplicationManager.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Self

from bookie.cluster import keys
from bookie.cluster.digit_tree import DigitTree
from bookie.env import Clock, SystemClock, jitter
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    BookieError,
    FormatError,
    KeyExistsError,
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    NewerFormatError,
    NoSuchKeyError,
)
from bookie.ids import MAX_ID, is_valid_bookie_id
from bookie.ledger.underreplicated import (
    UnderreplicatedLedger,
    decode_lock,
    decode_mark,
    encode_lock,
    encode_mark,
)
from bookie.metadata.model import NOT_EXISTS, Change, Check, Delete, Operation, Put, Record
from bookie.metadata.store import MetadataStore
from bookie.telemetry import event_log

RELEASE_SECONDS = 2.0
"""The longest time that `UnderreplicationManager.holding` waits to give back its lock at its
end."""

CHECKS = ("all_ledgers", "placement_policy", "replicas")
"""The checks of the whole cluster; for each, the store holds the time when it was last
completed."""

_log = event_log(__name__)

_MARKS = DigitTree(keys.MARKED_LEDGERS, (3, 4, 4, 4, 4), maximum=MAX_ID, skips_strays=True)
_LOCKS = DigitTree(keys.REPAIR_LOCKS, (19,), maximum=MAX_ID, skips_strays=True)


@dataclass(frozen=True, slots=True)
class RepairLock:
    """The lock that a call of `acquire` took; a later lock on the ledger has another version."""

    store: MetadataStore
    condition: Check
    """A condition for transactions: the record of this lock is unchanged."""

    async def is_held(self) -> bool:
        """True if the lock still exists, and belongs to the session of `store`."""
        record = await self.store.get(self.condition.key)
        return (
            record is not None
            and record.version == self.condition.version
            and record.created_by_self
        )


LATE_SECONDS_MAX = 600.0
"""The longest delay, in seconds, after which an unanswered write may still take effect.

Example: a suspended process holds the lock of a metadata store in a directory. The write of another
process then waits. It takes effect when the suspended process continues, though its caller has
given up.
"""


@dataclass(frozen=True, slots=True)
class _Held:
    """A lock that this worker holds or perhaps holds; in the second case, it is *in doubt*."""

    token: str
    mark_version: int | None
    """Version of the mark when the ledger was locked, `NOT_EXISTS` if the ledger had no mark; None
    while the lock is in doubt."""
    lock_version: int = NOT_EXISTS
    """Version of the lock itself; `NOT_EXISTS` while the lock is in doubt."""
    may_have_ended: bool = False
    """True if a deletion of lock and mark was sent, but not answered."""
    doubted_at: float = 0.0
    """For a lock in doubt: the monotonic time when it came into doubt."""

    def is_taken_as(self, lock: RepairLock | None) -> bool:
        """True if `lock` is None or has the version of this lock, or if this lock is in doubt."""
        return lock is None or self.lock_version in (NOT_EXISTS, lock.condition.version)


class UnderreplicationManager:
    """Manages marks, and one worker's locks; the end of the async context gives the locks back.

    Args:
        store: keeps the marks and locks; its session owns the locks.
        worker: the worker's name, which its locks contain: a bookie's id or a host's name.
        clock: gives the times in marks.
    """

    def __init__(self, store: MetadataStore, worker: str = "", clock: Clock | None = None) -> None:
        self._store = store
        self._worker = worker
        self._clock = clock or SystemClock()
        self._held: dict[int, _Held] = {}
        self._unreadable: set[int] = set()
        """The ledgers whose unreadable marks were already reported in the event log."""
        self._serial = asyncio.Lock()
        """Held while a lock is taken or given back, so that no other task mistakes a change under
        way for an abandoned change."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- marks

    async def mark(self, ledger_id: int, replicas: Iterable[str]) -> None:
        """Add the bookies in `replicas`, whose copies are missing, to the mark of a ledger.

        Raises:
            BadRequestError: `replicas` is empty, or contains an invalid bookie id.
            NewerFormatError: a newer version marked the ledger.
        """
        missing = set(replicas)
        if not missing or not all(map(is_valid_bookie_id, missing)):
            raise BadRequestError(f"{sorted(missing)} are not bookies that a copy is missing on")
        key = _MARKS.key(ledger_id)
        while True:
            record = await self._store.get(key)
            version = NOT_EXISTS if record is None else record.version
            before = None if record is None else self._readable(ledger_id, record)
            if before is None:
                marked = UnderreplicatedLedger(
                    ledger_id, tuple(sorted(missing)), self._clock.now_ms()
                )
            else:
                both = tuple(sorted(missing | set(before.replicas)))
                # Write the mark even if its bookies do not change, because a running repair may
                # have read the former version and must not remove the mark.
                marked = UnderreplicatedLedger(ledger_id, both, before.marked_ms)
            try:
                await self._store.put(key, encode_mark(marked), version=version)
            except BadVersionError:
                continue  # another process changed or removed the mark
            return

    async def find(self, ledger_id: int) -> UnderreplicatedLedger | None:
        """Return the mark of a ledger, or None.

        Raises:
            NewerFormatError: a newer version marked the ledger.
        """
        record = await self._store.get(_MARKS.key(ledger_id))
        return None if record is None else self._readable(ledger_id, record)

    async def marked(
        self, wanted: Callable[[tuple[str, ...]], bool] = lambda _: True, *, after: int = -1
    ) -> AsyncIterator[UnderreplicatedLedger]:
        """List the marks for which ``wanted(mark.replicas)`` is true, ascending by ledger id.

        Only ledgers with ids above `after` are listed. Unreadable marks are omitted. The listing
        contains all other wanted marks, or raises an error.
        """
        async for ledger_id, record in _MARKS.scan(self._store, after=after):
            try:
                mark = self._readable(ledger_id, record)
            except NewerFormatError as error:
                self._tell(ledger_id, record.key, error)
                continue
            if mark is not None and wanted(mark.replicas):
                yield mark

    def _readable(self, ledger_id: int, record: Record) -> UnderreplicatedLedger | None:
        """Return the mark in a record; None if the mark is damaged. Raises NewerFormatError."""
        try:
            return decode_mark(ledger_id, record.value)
        except NewerFormatError as error:
            raise NewerFormatError(f"the metadata key {record.key}: {error}") from error
        except FormatError as error:
            self._tell(ledger_id, record.key, error)
            return None

    def _may_count(self, ledger_id: int, record: Record) -> bool:
        """True if the mark is readable, or if a newer version wrote it."""
        try:
            return self._readable(ledger_id, record) is not None
        except NewerFormatError:
            return True

    def _tell(self, ledger_id: int, key: str, error: FormatError) -> None:
        if ledger_id not in self._unreadable:
            self._unreadable.add(ledger_id)
            _log.warning("mark_not_readable", ledger_id=ledger_id, key=key, reason=str(error))

    async def count(self) -> int:
        """Count the marked ledgers, from key names alone, in constant memory."""
        count = 0
        async for _ in _MARKS.scan_numbers(self._store):
            count += 1
        return count

    async def ledgers(self) -> set[int]:
        """Return the ids of the marked ledgers, from key names alone."""
        return {ledger_id async for ledger_id in _MARKS.scan_numbers(self._store)}

    # ---- repair

    async def take(self) -> int:
        """Wait until repair is enabled and a marked ledger is free; lock it and return its id."""
        found: int | None = None
        try:
            async with self._store.watch(keys.UNDERREPLICATION) as changes:
                while True:
                    found = await self.poll() if await self.is_enabled() else None
                    if found is not None:
                        return found
                    await anext(changes)
        except BaseException:
            if found is not None:
                self._doubt(found)  # the caller did not get the lock, so the next call may use it
            raise

    async def poll(self) -> int | None:
        """Lock a marked ledger and return its id; return None if no marked ledger is free."""
        locked = await self.locked()
        # Each worker begins at a random ledger, so that few workers compete for the same ledger.
        free = [mark.ledger_id async for mark in self.marked() if mark.ledger_id not in locked]
        start = int(jitter() * len(free))
        for ledger_id in free[start:] + free[:start]:
            if await self.acquire(ledger_id):
                return ledger_id
        return None

    async def locked(self) -> set[int]:
        """Return the locked ledgers, except ledgers whose lock is in doubt for this worker."""
        locked = {ledger_id async for ledger_id in _LOCKS.scan_numbers(self._store)}
        return locked - {one for one, held in self._held.items() if held.mark_version is None}

    async def acquire(self, ledger_id: int, *, needs_mark: bool = True) -> bool:
        """Lock a ledger; return False if it is locked already, or if it lacks a required mark.

        `needs_mark` requires a mark. If `acquire` raises, the ledger may be locked; the next
        `acquire` then takes this lock over.
        """
        return await self._acquire(ledger_id, is_marked=True if needs_mark else None)

    async def acquire_unmarked(self, ledger_id: int) -> bool:
        """Lock a ledger that has no mark; return False if it is locked or marked.

        A damaged mark counts as no mark, because no worker would ever remove it.

        Give the lock back with `release`. If `acquire_unmarked` raises, the ledger may be locked,
        as after `acquire`.
        """
        return await self._acquire(ledger_id, is_marked=False)

    def lock_of(self, ledger_id: int) -> RepairLock:
        """Return this worker's lock on a ledger; call this immediately after `acquire`.

        Raises:
            BadRequestError: this worker has no lock on the ledger.
        """
        held = self._held.get(ledger_id)
        if held is None or held.mark_version is None:
            raise BadRequestError(f"ledger {ledger_id} is not locked by this worker")
        return RepairLock(self._store, Check(_LOCKS.key(ledger_id), held.lock_version))

    def has(self, ledger_id: int, lock: RepairLock) -> bool:
        """True if this worker still has `lock`, as far as it knows without a read of the store."""
        held = self._held.get(ledger_id)
        return held is not None and held.mark_version is not None and held.is_taken_as(lock)

    async def _acquire(self, ledger_id: int, *, is_marked: bool | None) -> bool:
        """Lock a ledger; `is_marked` requires a mark (True), no mark (False) or neither (None)."""
        async with self._serial:
            held = self._held.get(ledger_id)
            if held is not None and held.mark_version is not None:
                if await self._own_lock(ledger_id, held) is not None:
                    return False  # another task of this worker has the lock
                held = None  # the lock ended with a former session
            held = held or _Held(secrets.token_hex(8), None, doubted_at=self._clock.monotonic())
            return await self._lock(ledger_id, held, is_marked=is_marked)

    async def _lock(self, ledger_id: int, held: _Held, *, is_marked: bool | None) -> bool:
        key, value = _LOCKS.key(ledger_id), encode_lock(self._worker, held.token)
        while True:
            mark = await self._store.get(_MARKS.key(ledger_id))
            lock = await self._store.get(key)
            if lock is not None and _lock_of(key, lock.value)[1] != held.token:
                self._held.pop(ledger_id, None)
                return False
            is_there = mark is not None and (is_marked or self._may_count(ledger_id, mark))
            if is_marked is not None and is_there != is_marked:
                if ledger_id in self._held:
                    await self._give_back(ledger_id, held)
                return False
            version = NOT_EXISTS if lock is None else lock.version
            mark_version = NOT_EXISTS if mark is None else mark.version
            self._held[ledger_id] = held
            put = Put(key, value, version, ephemeral=True)
            check = Check(_MARKS.key(ledger_id), mark_version)
            try:
                stat, _ = await self._store.transaction([put, check])
            except (BadVersionError, KeyExistsError, NoSuchKeyError):
                continue  # another worker changed the lock or the mark
            assert stat is not None, "a put has a result"
            self._held[ledger_id] = _Held(held.token, mark_version, stat.version)
            return True

    async def follow_mark(self, ledger_id: int, lock: RepairLock) -> int | None:
        """Read and return the mark's version; `mark_replicated` then requires this version.

        If the version has changed, the caller must repeat its earlier checks of the ledger's
        copies. If the mark no longer exists, return the former version. Return None if `lock` was
        lost.
        """
        async with self._serial:
            if not (self.has(ledger_id, lock) and await lock.is_held()):
                return None
            held = self._held[ledger_id]
            mark = await self._store.get(_MARKS.key(ledger_id))
            if mark is not None:
                self._held[ledger_id] = held = replace(held, mark_version=mark.version)
            return held.mark_version

    async def mark_replicated(self, ledger_id: int, lock: RepairLock | None = None) -> bool:
        """Remove the mark of a ledger that has all its copies, and give back this worker's lock.

        If this worker has taken a newer lock than `lock`, change neither the lock nor the mark.

        Return False if the ledger stays marked, because the mark changed or this worker lost the
        lock. If `mark_replicated` raises or is cancelled, it is unknown whether the mark was
        removed; the next `mark_replicated` finds out if it was removed.

        Raises:
            BadRequestError: this worker has no lock on the ledger.
        """
        async with self._serial:
            held = self._held.get(ledger_id)
            if held is None or held.mark_version is None:
                raise BadRequestError(f"ledger {ledger_id} is not locked by this worker")
            if not held.is_taken_as(lock):
                return False
            try:
                return await self._end(ledger_id, held, held.mark_version)
            except MetadataUnavailableError:
                held = self._held[ledger_id]
                if not held.may_have_ended:
                    raise
            return await self._end(ledger_id, held, held.mark_version)

    async def _end(self, ledger_id: int, held: _Held, mark_version: int | None) -> bool:
        mark = _MARKS.key(ledger_id)
        if held.may_have_ended:
            await self._store.sync()  # a read without sync may miss the unanswered write
        lock = await self._own_lock(ledger_id, held)
        if lock is None:
            is_over = held.may_have_ended and await self._store.get(mark) is None
            del self._held[ledger_id]
            return is_over
        operations: list[Operation] = [
            Delete(mark, mark_version),
            Delete(_LOCKS.key(ledger_id), lock),
        ]
        self._held[ledger_id] = replace(held, may_have_ended=True)
        try:
            await self._store.transaction(operations)
        except (BadVersionError, NoSuchKeyError):
            # The earlier transaction, which was not answered, may have removed the mark and the
            # lock.
            is_over = held.may_have_ended and await self._store.get(mark) is None
            await self._give_back(ledger_id, held)
            return is_over
        del self._held[ledger_id]
        return True

    @asynccontextmanager
    async def holding(self, ledger_id: int) -> AsyncIterator[RepairLock]:
        """Yield the lock that `acquire` took before, and give it back after the block.

        A process that ends does not wait for a silent store, because its locks end with its
        session. After `RELEASE_SECONDS`, `holding` leaves the lock to `give_back_doubtful`.
        """
        lock = self.lock_of(ledger_id)
        try:
            yield lock
        finally:
            with suppress(BookieError, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self.release(ledger_id, lock)

    async def release(self, ledger_id: int, lock: RepairLock | None = None) -> None:
        """Give back this worker's lock, if it has one, and keep the ledger's mark.

        If this worker has taken a newer lock than `lock`, keep it, because it belongs to another
        task.
        """
        try:
            async with self._serial:
                held = self._held.get(ledger_id)
                if held is not None and held.is_taken_as(lock):
                    await self._give_back(ledger_id, held)
        except BaseException:
            self._doubt(ledger_id, lock)  # needed even if only the wait for `_serial` was cancelled
            raise

    async def _give_back(self, ledger_id: int, held: _Held) -> None:
        if held.mark_version is None:
            await self._store.sync()  # a read without sync may miss an unanswered write
        # If the deletion is not answered, the next call finds out whether the lock exists.
        self._doubt(ledger_id)
        lock = await self._own_lock(ledger_id, held)
        if lock is not None:
            with suppress(BadVersionError, NoSuchKeyError):
                await self._store.delete(_LOCKS.key(ledger_id), version=lock)
        elif self._may_come(held):
            return  # an unanswered write may still create the lock
        del self._held[ledger_id]

    def _may_come(self, held: _Held) -> bool:
        """True if the lock is in doubt, and an unanswered write may still create it."""
        is_young = self._clock.monotonic() - held.doubted_at < LATE_SECONDS_MAX
        return held.mark_version is None and is_young

    async def give_back_doubtful(self) -> None:
        """Give back all locks in doubt, so that other workers can lock these ledgers.

        No task of this worker uses a lock that is in doubt. For example, a lock comes into doubt if
        the worker cannot give it back during an outage of the store. If the store does not hold the
        lock, the lock stays in doubt for `LATE_SECONDS_MAX`, because its unanswered write may still
        take effect. If no lock is in doubt, this method sends nothing to the store.

        Raises:
            MetadataError: a lock could not be given back; the next call tries this lock again.
        """
        for ledger_id in [one for one, held in self._held.items() if held.mark_version is None]:
            async with self._serial:  # no other task takes a lock meanwhile
                held = self._held.get(ledger_id)
                if held is None or held.mark_version is not None:
                    continue
                try:
                    await self._give_back(ledger_id, held)
                except FormatError:
                    del self._held[ledger_id]  # another worker took the ledger

    def _doubt(self, ledger_id: int, lock: RepairLock | None = None) -> None:
        held = self._held.get(ledger_id)
        if held is not None and held.is_taken_as(lock):
            is_new = held.mark_version is not None
            doubted_at = self._clock.monotonic() if is_new else held.doubted_at
            self._held[ledger_id] = _Held(held.token, None, doubted_at=doubted_at)

    async def worker_of(self, ledger_id: int) -> str | None:
        """Return the worker that repairs a ledger, or None.

        Raises:
            FormatError: the lock is damaged, or was written by a newer version.
        """
        key = _LOCKS.key(ledger_id)
        record = await self._store.get(key)
        return None if record is None else _lock_of(key, record.value)[0]

    async def close(self) -> None:
        """Give all locks back; another `close` retries the locks that could not be given back.

        Raises:
            MetadataError: the first error, after all locks were tried.
        """
        failure: MetadataError | None = None
        for ledger_id in list(self._held):
            try:
                await self.release(ledger_id)
            except MetadataClosedError:
                self._held.pop(ledger_id, None)  # the lock ended with the session
            except FormatError:
                self._held.pop(ledger_id, None)  # another worker took the ledger
            except MetadataError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _own_lock(self, ledger_id: int, held: _Held) -> int | None:
        """Return the version of the lock that this worker holds; None if it lost the lock."""
        key = _LOCKS.key(ledger_id)
        record = await self._store.get(key)
        if record is None or _lock_of(key, record.value)[1] != held.token:
            return None
        return record.version

    # ---- switches and times

    async def disable(self) -> None:
        """Forbid replicators to take ledgers; running repairs continue."""
        await self._store.put(keys.REPAIR_DISABLED, b"")

    async def enable(self) -> None:
        try:
            await self._store.delete(keys.REPAIR_DISABLED)
        except NoSuchKeyError:
            return

    async def is_enabled(self) -> bool:
        return await self._store.get(keys.REPAIR_DISABLED) is None

    async def wait_until_enabled(self) -> None:
        """Wait until repair is enabled, so that ledgers may be taken."""
        async with self._store.watch(keys.REPAIR_DISABLED) as changes:
            while not await self.is_enabled():
                await anext(changes)

    async def lost_bookie_recovery_delay(self) -> int | None:
        """Return the seconds before a lost bookie's ledgers are marked; None if not set."""
        return await self._number(keys.LOST_BOOKIE_DELAY)

    async def set_lost_bookie_recovery_delay(self, seconds: int) -> None:
        """Set the delay, in seconds, before the ledgers of a lost bookie are marked."""
        if seconds < 0:
            raise BadRequestError(f"a delay cannot be {seconds} seconds")
        await self._store.put(keys.LOST_BOOKIE_DELAY, b"%d" % seconds)

    async def initialize_lost_bookie_recovery_delay(self, seconds: int) -> bool:
        """Set the delay for lost bookies if it was never set; return True if this call set it."""
        try:
            await self._store.put(keys.LOST_BOOKIE_DELAY, b"%d" % seconds, version=NOT_EXISTS)
        except KeyExistsError:
            return False
        return True

    async def delays(self) -> AsyncIterator[int | None]:
        """Yield the delay for lost bookies now, and again after each change."""
        async with self._store.watch(keys.LOST_BOOKIE_DELAY) as changes:
            last = await self.lost_bookie_recovery_delay()
            yield last
            async for _ in _every(changes):
                found = await self.lost_bookie_recovery_delay()
                if found != last:
                    last = found
                    yield found

    async def checked_ms(self, check: str) -> int | None:
        """Return the time, in ms, when `check` was last completed; None if no time is stored."""
        return await self._number(_check_key(check)) or None

    async def check_version(self, check: str) -> int:
        """Return the version of the record that `checked_ms` reads.

        Call this when a check begins. Pass the version to `set_checked_ms` when the check ends.
        """
        record = await self._store.get(_check_key(check))
        return NOT_EXISTS if record is None else record.version

    async def set_checked_ms(self, check: str, now_ms: int, *, version: int | None = None) -> bool:
        """Store the time when `check` ended; return False if its record has another version."""
        try:
            await self._store.put(_check_key(check), b"%d" % now_ms, version=version)
        except (BadVersionError, NoSuchKeyError):
            return False
        return True

    async def forget_check(self, check: str) -> None:
        """Reset the stored time of the last `check`, so that the next check begins at once.

        A check that is running cannot store its time, because the record's version is no longer the
        version that `check_version` returned.
        """
        # Write 0, because the deletion of a missing key would not change the version.
        await self._store.put(_check_key(check), b"0")

    async def _number(self, key: str) -> int | None:
        record = await self._store.get(key)
        if record is None:
            return None
        if not (record.value.isdigit() and len(record.value) <= 19):
            raise FormatError(f"the metadata key {key} does not hold a number")
        return int(record.value)


async def _every(changes: AsyncIterator[Change]) -> AsyncIterator[Change]:
    try:
        async for change in changes:
            yield change
    except MetadataClosedError:
        return


def _lock_of(key: str, value: bytes) -> tuple[str, str]:
    try:
        return decode_lock(value)
    except FormatError as error:
        raise FormatError(f"the metadata key {key}: {error}") from error


def _check_key(check: str) -> str:
    if check not in CHECKS:
        raise BadRequestError(f"there is no check {check!r}; there are {', '.join(CHECKS)}")
    return f"{keys.CHECKS}/{check}"
