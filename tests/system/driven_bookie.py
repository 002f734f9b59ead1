"""One bookie on devices of the test's choice, driven call by call; it forgets no promise either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import crc32c

from bookie.daemon.local.layout import LocalBookie
from bookie.daemon.local.process import BookieProcess
from bookie.entry.entry import pack_batch
from bookie.errors import BookieError, ShuttingDownError
from bookie.ids import Status
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.ledger.metadata import LedgerState
from bookie.metadata.connect import open_store
from bookie.wire.client.channel import AddStream, BookieChannel
from bookie.wire.codec import encode_add_request
from bookie.wire.commands import ReadCommand
from tests.fault.crash_harness import (
    CALL_SECONDS,
    DIGESTER,
    KEY,
    SETTINGS,
    CrashHarness,
    LedgerAtClient,
    Load,
    StoredBatch,
)
from tests.system.tracing import TracedProcess, log_events
from tests.unit.node.started_bookie import metadata

EXIT_DISK_FAILED = 74
END_SECONDS_MAX = 60.0
LOAD_SECONDS = 0.3


class DrivenBookie(CrashHarness):
    """A bookie that is started, asked and stopped by hand."""

    def __init__(
        self,
        directory: Path,
        journal: Path,
        ledgers: Path,
        *,
        storage: Mapping[str, object] | None = None,
        limits: Mapping[str, object] | None = None,
        garbage: Mapping[str, object] | None = None,
    ) -> None:
        self.journal = journal / "journal"
        self.ledgers = ledgers / "ledgers"
        places = {"journal_dir": str(self.journal), "ledgers_dir": str(self.ledgers)}
        settings = {
            **SETTINGS,
            # A device of the machine may stall for a second, and a start that cannot write ends.
            "metadata": {**SETTINGS["metadata"], "session_timeout_seconds": 3.0},
            "storage": {**SETTINGS["storage"], **places, **(storage or {})},
            "limits": limits or {},
            "garbage": {**SETTINGS["garbage"], **(garbage or {})},
            "log": {"format": "json"},
        }
        self._traced: TracedProcess | None = None
        super().__init__(directory, 0, settings)

    def _new_process(self, member: LocalBookie, directory: Path) -> BookieProcess:
        self._traced = TracedProcess(member, directory)
        return self._traced

    @property
    def _traced_process(self) -> TracedProcess:
        assert self._traced is not None
        return self._traced

    async def start(
        self, inject: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        """Start it, under strace if there are options; raises as `BookieProcess.start` does.

        Args:
            inject: options of strace.
            variables: settings of this life alone.
        """
        self._traced_process.options = tuple(inject)
        await self._process.start(variables)

    async def fails_to_start(self) -> int:
        """The exit status of a start that must not succeed."""
        try:
            await self.start()
        except ShuttingDownError:
            status = self._process.exit_status
            assert status is not None
            return status
        raise AssertionError(f"it started{self._story()}")

    async def stop(self) -> int:
        """Ask it to stop; its exit status."""
        return await self._process.stop()

    async def kill(self) -> None:
        """SIGKILL."""
        await self._process.kill()

    async def ends(
        self,
        inject: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        *,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> int:
        """Start it and load it with everything until it ends by itself; its exit status.

        `meanwhile` is called once, under load.
        """
        self.device_fails = True
        with suppress(ShuttingDownError):
            await self.start(inject, variables)
            async with (
                self._client() as channel,
                asyncio.timeout(END_SECONDS_MAX),
                asyncio.TaskGroup() as tasks,
            ):
                load = tasks.create_task(Load(channel, self).run())
                await asyncio.sleep(LOAD_SECONDS)
                meanwhile()
                await self._process.wait()
                load.cancel()
        self.device_fails = False
        status = self._process.exit_status
        assert status is not None
        return status

    def events(self) -> list[dict[str, Any]]:
        """Everything it logged, over all its lives."""
        return log_events(self._process.log_path)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A connected client."""
        async with self._client() as channel:
            yield Client(self, channel)

    async def create_ledgers(self, count: int) -> list[LedgerAtClient]:
        """So many new ledgers that the cluster's metadata know, too; all of them on this bookie."""
        made = [self.new_ledger() for _ in range(count)]
        async with open_store(self._metadata_uri) as store:
            ledgers = LedgerManager(store)
            for ledger in made:
                ids = ledger.ledger_id, LedgerState.OPEN
                await ledgers.create(metadata(*ids, (self._process.member.id,)))
        return made

    async def delete_ledgers(self, gone: Sequence[LedgerAtClient]) -> None:
        """Delete them in the metadata, as clients do; the bookie promised nothing of them then."""
        ids = {ledger.ledger_id for ledger in gone}
        batches = self.promises.batches
        self.promises.batches = [batch for batch in batches if batch.ledger_id not in ids]
        async with open_store(self._metadata_uri) as store:
            for ledger_id in ids:
                del self.promises.ledgers[ledger_id]
                await LedgerManager(store).delete(ledger_id)

    async def readiness(self) -> dict[str, Any]:
        """What ``/readyz`` answers."""
        url = f"http://127.0.0.1:{self._process.member.http_port}/readyz"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                answer: dict[str, Any] = await response.json()
                return answer
        except aiohttp.ClientConnectionError as error:
            last = "\n".join(self._process.log_path.read_text().splitlines()[-20:])
            raise AssertionError(f"{error}{self._story()}\n{last}") from error

    async def verify(self) -> None:
        """Every promise holds."""
        async with self._client() as channel:
            await self._verify(channel)


class Client:
    """Calls of one client; what is acknowledged becomes a promise of the bookie."""

    def __init__(self, bookie: DrivenBookie, channel: BookieChannel) -> None:
        self._bookie = bookie
        self._channel = channel
        self._answers: dict[int, asyncio.Future[Status]] = {}
        self._request_id = 0
        self._stream: AddStream | None = None

    async def add(
        self, ledger: LedgerAtClient, *, count: int = 4, size: int = 1000, recovery: bool = False
    ) -> Status:
        """Add one batch; UNREACHABLE when the bookie is gone before its answer."""
        if self._stream is None:
            self._stream = self._channel.add_stream(self._answered, self._broken)
        payloads = [self._bookie.random.randbytes(size) for _ in range(count)]
        batch = pack_batch(
            ledger.ledger_id, ledger.next_entry_id, ledger.lac, ledger.length, payloads, DIGESTER
        )
        crc = crc32c.crc32c(batch.payload)
        self._request_id += 1
        answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self._answers[self._request_id] = answer
        self._stream.send(
            encode_add_request(
                self._request_id,
                ledger.ledger_id,
                batch,
                master_key=KEY,
                payload_crc32c=crc,
                recovery=recovery,
            )
        )
        async with asyncio.timeout(CALL_SECONDS):
            status = await answer
        if status is Status.OK:
            last = batch.last_entry_id
            stored = StoredBatch(ledger.ledger_id, batch.first_entry_id, last, crc)
            self._bookie.promises.batches.append(stored)
            ledger.next_entry_id, ledger.lac = last + 1, last
            ledger.length += count * size
        return status

    async def add_until_refused(self, *, size: int = 30_000, recovery: bool = False) -> Status:
        """Add and add to one ledger; the first answer that is no OK."""
        ledger = self._bookie.new_ledger()
        while (status := await self.add(ledger, size=size, recovery=recovery)) is Status.OK:
            pass
        return status

    async def add_ledgers_until_refused(self) -> Status:
        """Add one small entry to each of many new ledgers; the first answer that is no OK."""
        status = Status.OK
        while status is Status.OK:
            async with asyncio.TaskGroup() as tasks:
                adds = [
                    tasks.create_task(self.add(self._bookie.new_ledger(), count=1, size=1))
                    for _ in range(200)
                ]
            status = Status(max(add.result() for add in adds))
        return status

    async def fence(self, ledger: LedgerAtClient) -> Status:
        """Fence a ledger."""
        reply = await self._channel.fence(ledger.ledger_id, KEY, timeout=CALL_SECONDS)
        if reply.fenced and reply.status in (Status.OK, Status.NO_SUCH_LEDGER):
            ledger.fenced = True
            return Status.OK
        return reply.status

    async def read_status(self, ledger: LedgerAtClient, entry_id: int) -> Status:
        """How a read of one entry is answered."""
        command = ReadCommand(ledger.ledger_id, entry_id, entry_id)
        return (await self._channel.read(command, timeout=CALL_SECONDS)).status

    def _answered(
        self, request_id: int, status: Status, message: str, _retry_after_ms: int
    ) -> None:
        self._answers.pop(request_id).set_result(status)

    def _broken(self, error: BookieError) -> None:
        self._stream = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(error.status)
        self._answers.clear()
