"""A machine under an engine that a test can break, and shorthand for what is stored in it."""

from __future__ import annotations

import asyncio
import enum
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from crc32c import crc32c

from bookie.config import StorageSettings
from bookie.entry.batch import EntryBatch
from bookie.entry.digest import DigestType, digester_for_key
from bookie.entry.entry import pack_batch
from bookie.env import (
    Environment,
    Failpoints,
    KeyValueStore,
    ReadTransaction,
    SystemClock,
    ThreadWorkers,
    WriteTransaction,
    open_lmdb,
)
from bookie.errors import StorageFailedError
from bookie.ids import MAX_ID, NO_ENTRY
from bookie.ledger.quorum import EVERY_ID, Stripe
from bookie.node.engine.admission import Waiter
from bookie.node.engine.boot.start import Identity
from bookie.node.engine.directories import locked_directories
from bookie.node.engine.engine import Engine, open_engine
from bookie.node.engine.reader import ReadResult
from bookie.telemetry import Metrics
from bookie.wire.commands import AddCommand, Reply
from tests.entry_batches import merged
from tests.unit.node.engine.faulty_disk import FaultyDisk, Hold, copy_if_there

KIB, MIB = 1024, 1024 * 1024
DIGESTER = digester_for_key(DigestType.CRC32C, b"")
KEY = b"key of the ledger"
OTHER_KEY = b"key of another ledger"
IDENTITY = Identity("b1", "5c2b0c1e-0000-4000-8000-000000000001")


class MachineClock(SystemClock):
    """The real clocks; the time of day and the boot id are the test's to change."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.boot = "boot-1"

    def now_ms(self) -> int:
        """The time of day, moved by `ahead_ms`."""
        return super().now_ms() + self.ahead_ms

    def boot_id(self) -> str:
        """The values that the test sets."""
        return self.boot


INDEX_PAGE_BYTES = 4096
META_PAGES = 2
"""At the begin of the index file; the one that was written last names the tree."""


class Moment(enum.Enum):
    """How far a commit had come when the store failed."""

    BEFORE = "nothing was written"
    DATA_SYNC = "half of the pages are on the device, and the tree that they belong to is not"
    META_WRITE = "all pages are on the device, and the tree that they belong to is not"
    LANDED = "everything is on the device"

    def left(self, before: bytes, after: bytes) -> bytes:
        """The content of the file then, given its content before and after the commit."""
        if self is Moment.LANDED:
            return after
        meta_bytes = META_PAGES * INDEX_PAGE_BYTES
        if self is Moment.META_WRITE:
            return before[:meta_bytes] + after[meta_bytes:]
        image = bytearray(before.ljust(len(after), b"\0"))
        starts = range(meta_bytes, len(after), INDEX_PAGE_BYTES)
        pages = [slice(start, start + INDEX_PAGE_BYTES) for start in starts]
        written = [page for page in pages if image[page] != after[page]]
        assert written
        for page in written[: (len(written) + 1) // 2]:
            image[page] = after[page]
        return bytes(image)


class FaultyStore:
    """A key-value store whose write transactions fail or wait when told to."""

    def __init__(self, store: KeyValueStore, faults: StoreFaults, path: Path) -> None:
        self._store = store
        self._faults = faults
        self._path = path

    @contextmanager
    def read(self) -> Iterator[ReadTransaction]:
        """A read transaction, which may have to wait; none once the meta page is unknown."""
        if self._faults.left is not None and self._faults.moment is Moment.META_WRITE:
            raise StorageFailedError("the index failed: its meta page may be any of two")
        with self._store.read() as transaction:
            self._faults.reading += 1
            self._faults.reads_in_loop += _is_in_event_loop()
            try:
                gate = self._faults.read_gate
                if gate is not None and threading.current_thread() is not threading.main_thread():
                    gate.pass_through()
                yield transaction
            finally:
                self._faults.reading -= 1

    @contextmanager
    def write(self) -> Iterator[WriteTransaction]:
        """A write transaction that ends as the test wants."""
        faults, before = self._faults, b""
        faults.begun()
        with self._store.write() as transaction:
            yield transaction
            if faults.gate is not None:
                faults.gate.pass_through()
            error = faults.next_error()
            if error is not None:
                if faults.moment is Moment.BEFORE:
                    raise error
                before = self._path.read_bytes()
        if error is not None:
            faults.left = self._path, faults.moment.left(before, self._path.read_bytes())
            raise error

    def close(self) -> None:
        """Close, which crashes a process that reads."""
        self._faults.closed_under += self._faults.reading
        self._store.close()


@dataclass(slots=True)
class StoreFaults:
    """The fate of the next write transactions, at the very end of each."""

    errors: list[BaseException] = field(default_factory=list)
    moment: Moment = Moment.BEFORE
    left: tuple[Path, bytes] | None = None
    """The file of the index and what the commit that failed has left of it."""
    writes: int = 0
    retried: int = 0
    """Transactions that were begun after one that may have come to something, which none should."""
    gate: Hold | None = None
    passes: int = 0
    """Transactions that go well before the first error."""
    struck: int = 0
    read_gate: Hold | None = None
    """Stands in each read transaction of a worker thread."""
    reading: int = 0
    reads_in_loop: int = 0
    """Read transactions that an event loop had to wait for."""
    closed_under: int = 0
    """Read transactions that were under way when the store was closed."""

    def begun(self) -> None:
        """A write transaction begins."""
        self.writes += 1
        self.retried += self.left is not None

    def next_error(self) -> BaseException | None:
        """The outcome of the commit that ends the transaction."""
        if self.errors and self.passes == 0:
            self.struck += 1
            return self.errors.pop(0)
        self.passes = max(self.passes - 1, 0)
        return None

    def settle(self) -> None:
        """Put on the device what a failed commit has left there; nothing has the index open."""
        if self.left is not None:
            path, image = self.left
            path.write_bytes(image)


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Snapshots(Failpoints):
    """Failpoints that let the test look at the directories at the moment they are passed."""

    def __init__(self, passed: Callable[[str], None]) -> None:
        super().__init__()
        self._passed = passed
        self.seen: list[str] = []

    def hit(self, name: str) -> None:
        """Tell the test."""
        self.seen.append(name)
        self._passed(name)


@dataclass(slots=True)
class Machine:
    """Directories, settings and the seam to them. Several engines may run on it in turn."""

    root: Path
    disk: FaultyDisk = field(default_factory=FaultyDisk)
    clock: MachineClock = field(default_factory=MachineClock)
    failpoints: Failpoints = field(default_factory=Failpoints)
    store: StoreFaults = field(default_factory=StoreFaults)
    metrics: Metrics = field(default_factory=Metrics)
    changes: dict[str, object] = field(default_factory=dict)
    """Settings that differ from the small ones here."""
    trusted: list[bool] = field(default_factory=list)
    """Of each opening of the index, whether it was believed without reading all of it."""

    @property
    def settings(self) -> StorageSettings:
        """Small files, no reserve; checkpoint and compaction run only on request."""
        values: dict[str, object] = {
            "journal_dir": self.root / "journal",
            "ledgers_dir": self.root / "ledgers",
            "journal_file_bytes_max": MIB,
            "block_bytes_max": 256 * KIB,
            "checkpoint_interval_seconds": 3600.0,
            "compaction_interval_seconds": 3600.0,
            "idle_marker_seconds": 3600.0,
            "reserve_bytes": 0,
            "index_map_bytes": 64 * MIB,
            "read_threads": 1,
        }
        return StorageSettings.model_validate(values | self.changes)

    @property
    def journal(self) -> Path:
        """The journal directory."""
        return self.root / "journal"

    @property
    def logs(self) -> Path:
        """The directory of entry logs."""
        return self.root / "ledgers" / "logs"

    @property
    def index(self) -> Path:
        """The directory of the index."""
        return self.root / "ledgers" / "index"

    def journals(self) -> list[Path]:
        """The journal files, oldest first."""
        return sorted(self.journal.glob("*.journal"))

    def log_files(self) -> list[Path]:
        """The entry logs, oldest first."""
        return sorted(self.logs.glob("*.log"))

    def environment(self, workers: ThreadWorkers) -> Environment:
        """The seam."""

        def open_kv(
            directory: str, map_bytes: int, tables: tuple[str, ...], trusted: bool
        ) -> KeyValueStore:
            self.trusted.append(trusted)
            store = open_lmdb(directory, map_bytes, tables, trusted)
            return FaultyStore(store, self.store, Path(directory) / "data.mdb")

        return Environment(
            clock=self.clock,
            disk=self.disk,
            workers=workers,
            open_kv=open_kv,
            failpoints=self.failpoints,
        )

    @asynccontextmanager
    async def engine(self, identity: Identity = IDENTITY) -> AsyncIterator[Engine]:
        """An engine on these directories; closed in order at the end."""
        async with ThreadWorkers(read_threads=1) as workers:
            environment = self.environment(workers)
            with locked_directories(self.disk, self.settings) as directories:
                async with open_engine(
                    environment, self.settings, self.metrics, directories, identity
                ) as engine:
                    yield engine

    def killed(self, name: str) -> Machine:
        """A machine whose directories are what a killed process would leave now."""
        copy = self.root.with_name(f"{self.root.name}-{name}")
        shutil.copytree(self.root, copy, copy_function=copy_if_there)
        return self._on(copy)

    def without_power(self, name: str, kept: int = 0) -> Machine:
        """A machine after a power cut now: what was not synced is gone, the boot id is new.

        See `FaultyDisk.lose_power` about `kept`.
        """
        copy = self.root.with_name(f"{self.root.name}-{name}")
        self.disk.lose_power(self.root, copy, kept)
        machine = self._on(copy)
        machine.clock.boot = self.clock.boot + "'"
        return machine

    def _on(self, root: Path) -> Machine:
        machine = Machine(root, changes=dict(self.changes))
        machine.clock.boot = self.clock.boot
        machine.clock.ahead_ms = self.clock.ahead_ms
        return machine


def body(ledger_id: int, entry_id: int, size: int = 40, salt: int = 0) -> bytes:
    """The content of entry `entry_id` of `ledger_id`."""
    text = f"{ledger_id}/{entry_id}/{salt}:".encode()
    return (text * (size // len(text) + 1))[: max(size, len(text))]


def batch(
    ledger_id: int, ids: Iterable[int], *, lac: int = NO_ENTRY, size: int = 40, salt: int = 0
) -> EntryBatch:
    """A batch of the entries `ids`, which ascend."""
    pieces = [
        pack_batch(
            ledger_id,
            entry_id,
            min(lac, entry_id - 1),
            0,
            [body(ledger_id, entry_id, size, salt)],
            DIGESTER,
        )
        for entry_id in ids
    ]
    return merged(pieces)


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop run until `condition` holds."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


async def start_add(
    engine: Engine,
    entries: EntryBatch,
    *,
    key: bytes = KEY,
    recovery: bool = False,
    deferred_sync: bool = False,
    max_lac: int = NO_ENTRY,
    lac_packet: bytes = b"",
) -> Waiter:
    """Accept a batch as the node does, without waiting for the journal."""
    state = await engine.load(entries.ledger_id)
    refusal = engine.refusal(state, key, recovery=recovery)
    if refusal is not None:
        return Waiter.of(refusal)
    command = AddCommand(
        entries,
        entries.ledger_id,
        key,
        crc32c(entries.payload),
        recovery=recovery,
        deferred_sync=deferred_sync,
        lac_packet=lac_packet,
    )
    return engine.add(state, command, max_lac)


async def add(
    engine: Engine,
    ledger_id: int,
    ids: Iterable[int],
    *,
    key: bytes = KEY,
    recovery: bool = False,
    deferred_sync: bool = False,
    lac: int = NO_ENTRY,
    size: int = 40,
    salt: int = 0,
) -> Reply:
    """Add entries and wait for the outcome, comparing with what is stored if ids overlap."""
    entries = batch(ledger_id, ids, lac=lac, size=size, salt=salt)
    state = await engine.load(ledger_id)
    if not recovery and state.may_hold(entries):
        crc = crc32c(entries.payload)
        command = AddCommand(entries, ledger_id, key, crc, deferred_sync=deferred_sync)
        return await engine.add_over_stored(state, command, lac)
    return await (
        await start_add(
            engine, entries, key=key, recovery=recovery, deferred_sync=deferred_sync, max_lac=lac
        )
    )


async def fence(engine: Engine, ledger_id: int, key: bytes = KEY) -> Reply:
    """Fence a ledger and wait until that is durable."""
    return await engine.fence(await engine.load(ledger_id), key)


async def read(
    engine: Engine,
    ledger_id: int,
    first: int,
    last: int,
    *,
    entries_max: int = 4096,
    bytes_max: int = 4 * MIB,
    stripe: Stripe = EVERY_ID,
) -> ReadResult:
    """Read a range."""
    state = await engine.load(ledger_id)
    return await engine.read(
        state, first, last, entries_max=entries_max, bytes_max=bytes_max, stripe=stripe
    )


def evict(engine: Engine) -> None:
    """Let go of every state; all of them are clean."""
    engine._states._states.clear()
    engine._states.begin(MAX_ID)


def ids_of(result: ReadResult) -> list[int]:
    """The ids that a read returned."""
    return [] if result.batch is None else result.batch.entry_ids().tolist()


def assert_holds(result: ReadResult, expected: EntryBatch) -> None:
    """The read returned exactly the entries of `expected`."""
    assert result.batch is not None, result
    assert ids_of(result) == expected.entry_ids().tolist()
    assert result.batch.sizes.tolist() == expected.sizes.tolist()
    assert bytes(result.batch.payload) == bytes(expected.payload)


async def stored_ids(engine: Engine, ledger_id: int) -> list[int]:
    """Every id that the listing of a ledger names."""
    state = await engine.load(ledger_id)
    found: list[int] = []
    async for firsts, lasts in engine.entry_ranges(state, 0, 2**63 - 1):
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            found += range(first, last + 1)
    return found


def array(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Ids as an array."""
    return np.array(values, np.int64)
