"""One real bookie process that is killed again and again, and a client that forgets nothing.

The client keeps a list of everything that the bookie acknowledged: entries, as the checksum of the
packets of a batch, and fences. After each kill the bookie is started on the same directories and
must keep every promise. The same bytes come back, and a fenced ledger refuses plain adds.

Nothing random decides what is right: randomness (from a printed seed) only chooses what to do next
and when to kill.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import crc32c

from bookie.cluster.instance import initialize_cluster
from bookie.daemon.local.layout import Layout, LocalBookie, write_configuration
from bookie.daemon.local.process import BookieProcess
from bookie.entry.digest import DigestType, derive_key, digester_for_key
from bookie.entry.entry import pack_batch, pack_lac
from bookie.errors import BookieError, BookieUnreachableError, ShuttingDownError
from bookie.ids import Status
from bookie.metadata.connect import open_store
from bookie.wire.client.channel import BookieChannel
from bookie.wire.codec import encode_add_request
from bookie.wire.commands import ReadCommand, ReadReply
from tests.servers.ports import claimed_ports

PASSWORD = b"secret"
KEY = derive_key(PASSWORD)
DIGESTER = digester_for_key(DigestType.CRC32C, derive_key(PASSWORD))
CALL_SECONDS = 10.0
LIFE_SECONDS_MAX = 30.0
"""A life whose failpoint is not passed by then is ended by SIGKILL from outside."""

IN_FLIGHT_MAX = 16

# Small, so that a life of a second rolls the journal and makes several checkpoints.
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "storage": {
        "block_bytes_max": "5MiB",
        "journal_file_bytes_max": "5MiB",
        "checkpoint_journal_bytes": "5MiB",
        "checkpoint_entries": 3000,
        "checkpoint_interval_seconds": 0.3,
        "idle_marker_seconds": 0.05,
        "index_map_bytes": "1GiB",
        "reserve_bytes": "1MiB",
        # Whatever leaves the open journal is moved into logs, although all of it is alive.
        "journal_bytes_max": "6MiB",
        "compaction_interval_seconds": 0.1,
    },
    # The ledgers of this client are not in the metadata store.
    "garbage": {"interval_seconds": 3600.0},
    "metadata": {"session_timeout_seconds": 1.0},
}


@dataclass(frozen=True, slots=True)
class Kill:
    """How one life ends: at a failpoint (``name:nth``), or after a time of load."""

    failpoint: str = ""
    after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch that was acknowledged, and must come back."""

    ledger_id: int
    first: int
    last: int
    crc: int


@dataclass(slots=True)
class LedgerAtClient:
    """What the client knows of one ledger."""

    ledger_id: int
    next_entry_id: int = 0
    length: int = 0
    lac: int = -1
    fence_asked: bool = False
    fenced: bool = False
    """A fence was acknowledged."""


@dataclass(slots=True)
class Promises:
    """Everything that was acknowledged, over all lives."""

    batches: list[StoredBatch] = field(default_factory=list)
    ledgers: dict[int, LedgerAtClient] = field(default_factory=dict)

    @property
    def fenced(self) -> list[int]:
        """The ledgers whose fence was acknowledged."""
        return [ledger.ledger_id for ledger in self.ledgers.values() if ledger.fenced]


@dataclass(frozen=True, slots=True)
class Life:
    """What happened in one life, for the report of a failure."""

    kill: Kill
    reached: bool
    acknowledged: int
    boots: int


BOOTS_MAX = 5
STORE_IS_SLOW = "a write to the metadata store in"
"""Part of the sentence with which a start ends, with status 1, if a write takes a second."""


class CrashHarness:
    """A bookie in one directory, its promises, and how to end it.

    Its client goes by gRPC if the seed is even, and by frames if it is odd. Its lives end by
    SIGKILL; who lets them end otherwise overrides `_end` and `_ended_rightly`.
    """

    def __init__(
        self, directory: Path, seed: int, settings: Mapping[str, Mapping[str, object]] = SETTINGS
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.promises = Promises()
        self.lives: list[Life] = []
        self.device_fails = False
        """From then on the bookie may refuse anything; what it did acknowledge still counts."""
        self.journal_is_gone = False
        """From then on an answer is no promise: see where it is set."""
        port, http_port, self._frames_port = claimed_ports(3)
        self._by_frames = seed % 2 == 1
        member = LocalBookie("b1", port, http_port)
        settings = {
            **settings,
            "listen": {"frames": self._by_frames, "frames_port": self._frames_port},
        }
        layout = Layout(f"local://{directory}/metadata", (member,))
        write_configuration(directory, layout, member, settings)
        self._metadata_uri = layout.metadata_uri
        self._process = self._new_process(member, directory / "b1")
        self._instance_id = ""
        self._next_ledger_id = 1

    async def initialize(self) -> None:
        """Make the cluster that the bookie belongs to."""
        async with open_store(self._metadata_uri) as store:
            self._instance_id = await initialize_cluster(store)

    async def close(self) -> None:
        """Leave no process behind."""
        if self._process.pid is not None:
            await self._process.kill()

    async def live(self, kill: Kill) -> None:
        """One life: boot, check every promise, load, be killed."""
        boots, reached = await self._boot(kill)
        before = len(self.promises.batches)
        if not reached:
            async with self._client() as channel:
                reached = await self._verify_until_killed(channel)
                if not reached:
                    reached = await self._load_until_killed(channel, kill)
        self.lives.append(Life(kill, reached, len(self.promises.batches) - before, boots))

    async def finish(self) -> None:
        """Boot once more, check every promise, and stop in order."""
        await self._process.start()
        async with self._client() as channel:
            await self._verify(channel)
        assert await self._process.stop() == 0, self._story()

    # --- a life ------------------------------------------------------------------------------

    def _new_process(self, member: LocalBookie, directory: Path) -> BookieProcess:
        return BookieProcess(member, directory)

    async def _end(self, kill: Kill) -> None:
        """End the life of a bookie that is under load."""
        await self._process.kill()

    def _ended_rightly(self) -> bool:
        return self._process.exit_status == -9

    async def _boot(self, kill: Kill) -> tuple[int, bool]:
        """Start with the failpoint armed. Whether it was passed before the bookie was ready."""
        environment = {"BOOKIE_FAILPOINT": kill.failpoint} if kill.failpoint else {}
        for boots in range(1, BOOTS_MAX + 1):
            try:
                await self._process.start(environment)
            except ShuttingDownError as error:
                # On a busy machine the store is slow; systemd starts a bookie again after that.
                if boots < BOOTS_MAX and STORE_IS_SLOW in str(error):
                    continue
                assert self._ended_rightly(), self._story()
                return boots, True
            return boots, False
        raise AssertionError(self._story())

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[BookieChannel]:
        async with asyncio.TaskGroup() as tasks:
            address = self._process.address
            if self._by_frames:
                address = f"{address.rpartition(':')[0]}:{self._frames_port}"
            channel = BookieChannel(address, self._instance_id, tasks, is_framed=self._by_frames)
            try:
                yield channel
            finally:
                await channel.close()

    async def _verify_until_killed(self, channel: BookieChannel) -> bool:
        """Check every promise; whether the failpoint was passed meanwhile, by a checkpoint say."""
        try:
            await self._verify(channel)
        except BookieUnreachableError:
            async with asyncio.timeout(CALL_SECONDS):
                await self._process.wait()
            assert self._ended_rightly(), self._story()
            return True
        return False

    async def _load_until_killed(self, channel: BookieChannel, kill: Kill) -> bool:
        """Load the bookie until it is dead; whether the failpoint did it."""
        seconds = kill.after_seconds or LIFE_SECONDS_MAX
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(Load(channel, self).run())
            dead = tasks.create_task(self._process.wait())
            await asyncio.wait((dead,), timeout=seconds)
            by_itself = dead.done()
            if not by_itself:
                await self._end(kill)
            await dead
            load.cancel()
        assert self._ended_rightly(), self._story()
        return by_itself

    def new_ledger(self) -> LedgerAtClient:
        """A ledger that the bookie has never heard of."""
        ledger = LedgerAtClient(self._next_ledger_id)
        self._next_ledger_id += 1
        self.promises.ledgers[ledger.ledger_id] = ledger
        return ledger

    # --- the promises ------------------------------------------------------------------------

    async def _verify(self, channel: BookieChannel) -> None:
        by_ledger: dict[int, list[StoredBatch]] = {}
        for batch in self.promises.batches:
            by_ledger.setdefault(batch.ledger_id, []).append(batch)
        for batches in by_ledger.values():
            await self._verify_entries(channel, batches)
        for ledger_id in self.promises.fenced:
            reply = await channel.read_lac(ledger_id, KEY, timeout=CALL_SECONDS)
            forgot = f"forgot the fence of ledger {ledger_id}: {reply}{self._story()}"
            assert reply.fenced, forgot
        await self._verify_fences(channel)

    async def _verify_entries(self, channel: BookieChannel, batches: list[StoredBatch]) -> None:
        """Read one ledger's promised batches, many in one request where they follow each other."""
        last = batches[-1].last
        at, reply = -1, ReadReply(Status.OK)
        for wanted in batches:
            crc, next_id = 0, wanted.first
            while next_id <= wanted.last:
                if not at <= next_id < reply.next_entry_id:
                    command = ReadCommand(wanted.ledger_id, next_id, last)
                    reply = await channel.read(command, timeout=CALL_SECONDS)
                    at = next_id
                assert reply.batch is not None, (
                    f"lost {wanted} at {next_id}: {reply}{self._story()}"
                )
                part = reply.batch.clip(next_id, wanted.last)
                crc = crc32c.crc32c(part.payload, crc)
                next_id = part.last_entry_id + 1
            assert crc == wanted.crc, f"other bytes for {wanted}{self._story()}"

    async def _verify_fences(self, channel: BookieChannel) -> None:
        """A plain add to each fenced ledger is refused."""
        answers: asyncio.Queue[tuple[int, Status]] = asyncio.Queue()
        stream = channel.add_stream(
            lambda request_id, status, *_: answers.put_nowait((request_id, status)),
            lambda error: answers.put_nowait((-1, Status.IO_ERROR)),
        )
        fenced = self.promises.fenced
        for ledger_id in fenced:
            ledger = self.promises.ledgers[ledger_id]
            stream.send(add_request(ledger_id, ledger_id, ledger.next_entry_id + 1000, [b"late"]))
        for _ in fenced:
            async with asyncio.timeout(CALL_SECONDS):
                ledger_id, status = await answers.get()
            if ledger_id < 0:
                raise BookieUnreachableError("the stream broke")
            assert status is Status.FENCED, f"ledger {ledger_id}: {status.name}{self._story()}"

    def _story(self) -> str:
        lives = "\n".join(f"  {life}" for life in self.lives)
        return (
            f"\nseed {self.seed}, last exit {self._process.exit_status}, "
            f"log {self._process.log_path}, lives so far:\n{lives}"
        )


def add_request(request_id: int, ledger_id: int, first: int, payloads: list[bytes]) -> bytes:
    """The bytes of a plain add of `payloads`, none of them confirmed."""
    batch = pack_batch(ledger_id, first, -1, 0, payloads, DIGESTER)
    return encode_add_request(
        request_id, ledger_id, batch, master_key=KEY, payload_crc32c=crc32c.crc32c(batch.payload)
    )


class RefusedError(AssertionError):
    """The bookie refused what it has to take as long as its devices work."""


class Load:
    """Adds to a few ledgers, fences, LACs and reads, until cancelled or the bookie is gone."""

    def __init__(self, channel: BookieChannel, harness: CrashHarness) -> None:
        self._channel = channel
        self._harness = harness
        self._random = harness.random
        self._ledgers = [harness.new_ledger() for _ in range(4)]
        self._in_flight: deque[tuple[int, LedgerAtClient, StoredBatch, bool]] = deque()
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._request_id = 0
        self._gone = asyncio.Event()
        self._refused: list[str] = []

    async def run(self) -> None:
        """Load the bookie. Ends when the bookie does not answer any more."""
        stream = self._channel.add_stream(self._answered, self._broken)
        try:
            while not self._gone.is_set():
                assert not self._refused, self._refused
                try:
                    await self._step(stream.send)
                except RefusedError:
                    # Of a device that is gone a read tells nobody but who asked: go on, for it is
                    # a write that ends the bookie.
                    if not self._harness.device_fails:
                        raise
        except BookieUnreachableError:
            return

    async def _step(self, send: object) -> None:
        choice = self._random.random()
        if choice < 0.90:
            await self._add(send)
        elif choice < 0.95:
            await self._fence()
        elif choice < 0.97:
            await self._write_lac()
        elif choice < 0.99:
            await self._read_back()
        else:
            # Idle, so that the journal vouches for its end and a checkpoint passes.
            await asyncio.sleep(self._random.uniform(0, 0.4))

    async def _add(self, send: object) -> None:
        assert callable(send)
        async with asyncio.timeout(CALL_SECONDS):
            await self._room.acquire()
        ledger = self._random.choice(self._ledgers)
        count = self._random.choice((1, 1, 2, 16, 64))
        size = self._random.choice((0, 1, 100, 1000, 8000))
        payloads = [self._random.randbytes(size) for _ in range(count)]
        batch = pack_batch(
            ledger.ledger_id, ledger.next_entry_id, ledger.lac, ledger.length, payloads, DIGESTER
        )
        crc = crc32c.crc32c(batch.payload)
        self._request_id += 1
        stored = StoredBatch(ledger.ledger_id, batch.first_entry_id, batch.last_entry_id, crc)
        self._in_flight.append((self._request_id, ledger, stored, ledger.fenced))
        ledger.next_entry_id = batch.last_entry_id + 1
        ledger.length += count * size
        send(
            encode_add_request(
                self._request_id, ledger.ledger_id, batch, master_key=KEY, payload_crc32c=crc
            )
        )

    def _answered(
        self, request_id: int, status: Status, message: str, _retry_after_ms: int
    ) -> None:
        sent_id, ledger, stored, was_fenced = self._in_flight.popleft()
        self._room.release()
        if request_id != sent_id:
            self._refused.append(f"answer {request_id} came before {sent_id}")
        if status is Status.OK:
            if was_fenced:
                self._refused.append(f"an add after the fence of ledger {ledger.ledger_id} was OK")
            if not self._harness.journal_is_gone:
                self._harness.promises.batches.append(stored)
            ledger.lac = max(ledger.lac, stored.last)
        elif not (self._harness.device_fails or (status is Status.FENCED and ledger.fence_asked)):
            self._refused.append(f"{stored}: {status.name} {message}")

    def _broken(self, error: BookieError) -> None:
        self._gone.set()
        for _ in range(IN_FLIGHT_MAX):
            self._room.release()

    async def _fence(self) -> None:
        """Fence a ledger that is written, one that is idle, or one that was never stored here."""
        known = [ledger for ledger in self._harness.promises.ledgers.values() if not ledger.fenced]
        ledger = self._random.choice([*known[-8:], self._harness.new_ledger()])
        ledger.fence_asked = True
        reply = await self._channel.fence(ledger.ledger_id, KEY, timeout=CALL_SECONDS)
        if not reply.fenced or reply.status not in (Status.OK, Status.NO_SUCH_LEDGER):
            raise RefusedError(f"fence of ledger {ledger.ledger_id}: {reply}")
        if self._harness.journal_is_gone:
            return
        ledger.fenced = True
        if ledger in self._ledgers:
            self._ledgers[self._ledgers.index(ledger)] = self._harness.new_ledger()

    async def _write_lac(self) -> None:
        ledger = self._random.choice(self._ledgers)
        packet = pack_lac(ledger.ledger_id, ledger.lac, DIGESTER)
        reply = await self._channel.write_lac(ledger.ledger_id, KEY, packet, timeout=CALL_SECONDS)
        if reply.status not in (Status.OK, Status.NO_SUCH_LEDGER, Status.FENCED):
            raise RefusedError(f"LAC of ledger {ledger.ledger_id}: {reply}")

    async def _read_back(self) -> None:
        """What was acknowledged can be read at once, wherever it is just then."""
        batches = self._harness.promises.batches
        if batches:
            wanted = self._random.choice(batches[-50:])
            command = ReadCommand(wanted.ledger_id, wanted.first, wanted.last)
            reply = await self._channel.read(command, timeout=CALL_SECONDS)
            if reply.batch is None:
                raise RefusedError(f"{wanted} was acknowledged, and now: {reply}")
