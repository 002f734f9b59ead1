"""One bookie of a test with all of its lives; a life lasts from a start to a stop or kill."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from functools import cache
from pathlib import Path

from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import read_instance_id
from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint
from bookie.config import NodeSettings, RpcSettings, StorageSettings
from bookie.daemon.readiness import Readiness
from bookie.daemon.registration_updater import RegistrationUpdater, keep_registered
from bookie.env import ThreadWorkers, beside
from bookie.errors import BadRequestError, CannotStartError, StorageFailedError
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.node.start import StartedBookie, start_bookie
from bookie.telemetry import Metrics
from bookie.testing.faulty_memory import FaultyMemoryStore
from bookie.testing.link import NetworkLink
from bookie.testing.mortal_disk import Mortality, mortal_environment
from bookie.wire.grpc.server.grpc_server import hold_port

MIB = 1024 * 1024
_LIMITS = NodeSettings(disk_usage_max=1.0)
"""Limits that keep a test's bookie writable even if the machine's disk is nearly full."""
_RPC = RpcSettings(drain_seconds=0.5)


@cache
def _metrics() -> Metrics:
    """Return metrics that all bookies share, because creating metrics takes 50 ms."""
    return Metrics()


class BookieLives:
    """A bookie that can be started repeatedly on the same directories."""

    def __init__(
        self,
        bookie_id: str,
        directory: Path,
        store_name: str,
        tasks: asyncio.TaskGroup,
        fsync: bool,
    ) -> None:
        self.bookie_id = bookie_id
        self._directory = directory
        self._store_name = store_name
        self._tasks = tasks
        self._fsync = fsync
        self._mortality = Mortality(fsync=fsync)
        self._link = NetworkLink(self._tasks)
        self._session: FaultyMemoryStore | None = None
        self._started: StartedBookie | None = None
        self._begun = asyncio.Event()
        """Set when the bookie serves, or has ended before it served."""
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """True from the start of the bookie to its stop or kill."""
        return self._task is not None

    async def start(self) -> None:
        """Start the bookie, and wait until it is registered.

        Raises:
            BadRequestError: the bookie already runs.
            CannotStartError: the bookie failed to start; the task group raises the error with the
                reason.
        """
        if self._task is not None:
            raise BadRequestError(f"{self.bookie_id} runs already")
        self._mortality = Mortality(fsync=self._fsync)
        self._link = NetworkLink(self._tasks)
        self._begun, self._stop = asyncio.Event(), asyncio.Event()
        self._task = self._tasks.create_task(self._live(), name=self.bookie_id)
        await self._begun.wait()
        if self._started is None:
            raise CannotStartError(f"{self.bookie_id} did not start")

    async def stop(self) -> None:
        """Stop the bookie in an orderly way, like SIGTERM."""
        task = self._require_running()
        self.resume()
        self._stop.set()
        await asyncio.wait([task])
        self._task = None

    async def kill(self) -> None:
        """End the bookie at once, like SIGKILL; wait until its directories are unlocked."""
        task = self._require_running()
        assert self._session is not None
        assert self._started is not None
        # Do these three steps before the first await: from then on, the bookie can change nothing
        # on its disk or in the metadata store.
        self._mortality.is_dead = True
        self._started.engine.failure = StorageFailedError(f"{self.bookie_id} was killed")
        self._sever(self._session)
        await self._link.cut()
        task.cancel()
        await asyncio.wait([task])
        self._task = None

    def pause(self) -> None:
        """Stop all traffic between clients and the bookie, which remains registered."""
        self._require_running()
        self._link.silence()

    def resume(self) -> None:
        self._require_running()
        if self._session is not None:
            self._session.reconnect()
        self._link.resume()

    def partition(self) -> None:
        """Separate the bookie from clients and metadata store; its session ends at once."""
        self.pause()
        assert self._session is not None
        self._sever(self._session)

    async def wipe(self, cookies: CookieManager) -> None:
        """Kill the bookie, delete its files, and delete its cookie as an operator does."""
        if self.is_running:
            await self.kill()
        cookie = await cookies.read(self.bookie_id)
        if cookie is not None:
            await cookies.delete(self.bookie_id, cookie.version)
        with contextlib.suppress(FileNotFoundError):  # the files were deleted before
            shutil.rmtree(self._directory)

    def _require_running(self) -> asyncio.Task[None]:
        if self._task is None:
            raise BadRequestError(f"{self.bookie_id} does not run")
        return self._task

    @staticmethod
    def _sever(session: FaultyMemoryStore) -> None:
        session.disconnect()
        session.expire_session()

    async def _live(self) -> None:
        """Run the bookie from its start to its end; after a kill, ignore its error."""
        try:
            await self._serve()
        except BaseException:
            if not self._mortality.is_dead:
                raise
        finally:
            self._session = self._started = None
            self._begun.set()

    async def _serve(self) -> None:
        """Serve like `bookie.daemon.daemon`."""
        storage, metrics = self._storage(), _metrics()
        async with (
            hold_port("127.0.0.1", 0, _RPC) as held,
            FaultyMemoryStore(self._store_name) as store,
            ThreadWorkers() as workers,
            start_bookie(
                mortal_environment(workers, self._mortality),
                storage,
                _LIMITS,
                metrics,
                cookies=CookieManager(store),
                ledgers=LedgerManager(store),
                bookie_id=self.bookie_id,
                instance_id=await read_instance_id(store),
            ) as started,
            held.serve(started.bookie, metrics),
        ):
            self._session, self._started = store, started
            await self._link.open(held.port)
            endpoint = Endpoint("bookie", "127.0.0.1", self._link.port, "grpc")
            updater = RegistrationUpdater(
                started.bookie,
                (endpoint,),
                {},
                {},
                lambda: started.check.needed,
                lambda: started.garbage.store_doubt,
            )
            try:
                async with (
                    BookieRegistration(store, await updater.registration()) as registered,
                    beside([keep_registered(updater, registered, metrics, Readiness())]),
                ):
                    self._begun.set()
                    await self._stop.wait()
            finally:
                await self._link.cut()

    def _storage(self) -> StorageSettings:
        """Create the bookie's directory, and return settings for small files there."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return StorageSettings(
            journal_dir=self._directory / "journal",
            ledgers_dir=self._directory / "ledgers",
            journal_allocate_bytes=MIB,
            index_map_bytes=1024 * MIB,
            reserve_bytes=0,
        )
