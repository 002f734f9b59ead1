"""The acts whose ways through the product are recorded, on three bookies in this process.

Appends and reads of a ledger are done once before, so that connections stand. The walk of a read
is that of one entry and of a range. The walk of a session goes from a proof to its end at the
store, and on to the next session.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from bookie.api import BookKeeper, LockManager, LockState, ReaderHandle, connect
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.registration import BookieRegistration
from bookie.config.sections import SessionSettings
from bookie.coordination.participant import Participant
from bookie.daemon.readiness import Readiness
from bookie.daemon.registration_updater import RegistrationUpdater, keep_registered
from bookie.daemon.session_policy import obey_session_policy
from bookie.env import beside
from bookie.errors import BookieError
from bookie.metadata.local.backend import LocalStore
from bookie.metadata.session import SessionMachine
from bookie.node.bookie import Bookie
from bookie.telemetry import Metrics
from tests.unit.ledger.real_cluster import real_cluster, until
from tests.walks.walk import Walk, WalkRecorder

ADD = "an append to a ledger"
READ = "a read of a ledger"
TAKEOVER = "a takeover of a log"
LOG_APPEND = "an append to a log"
LOG_READ = "a read of a log"
SESSION = "a session that is proven, ends and is renewed"

SESSION_TIMEOUT_SECONDS = 1.0


async def all_walks(directory: Path) -> dict[str, Walk]:
    """Every walk by its name, in the order of the names above."""
    recorder = WalkRecorder()
    with recorder.watching():
        async with real_cluster(directory / "cluster") as cluster, connect(cluster.uri) as bk:
            await _walk_ledger(recorder, bk)
            async with connect(cluster.uri) as other:
                await _walk_log(recorder, bk, other)
            await _walk_session(recorder, cluster.bookies[0], directory / "sessions")
    return {walk.name: walk for walk in recorder.walks}


async def _walk_ledger(recorder: WalkRecorder, bk: BookKeeper) -> None:
    async with bk.create_ledger() as writer:
        await writer.append(b"before")
        with recorder.walk(ADD):
            await writer.append(b"walked")
    reader = await bk.open_ledger(writer.ledger_id)
    await _read(reader)
    with recorder.walk(READ):
        await _read(reader)


async def _read(reader: ReaderHandle) -> None:
    """One entry, which has a way of its own, and a range."""
    assert [entry.payload async for entry in reader.read(1, 1)] == [b"walked"]
    assert sum([len(batch) async for batch in reader.read_batches(0, 1)]) == 2


async def _walk_log(recorder: WalkRecorder, bk: BookKeeper, other: BookKeeper) -> None:
    old = await other.open_log("orders")
    await old.append(b"by its first owner")
    with recorder.walk(TAKEOVER):
        log = await bk.open_log("orders")
    async with log:
        await log.append(b"before")
        with recorder.walk(LOG_APPEND):
            await log.append(b"walked")
    with suppress(BookieError):
        await old.close()
    reader = await bk.log_reader("orders")
    with recorder.walk(LOG_READ):
        values = [record.value async for record in reader]
    assert values == [b"by its first owner", b"before", b"walked"]


async def _walk_session(recorder: WalkRecorder, bookie: Bookie, directory: Path) -> None:
    """A session that keeps a lock and a registration; somebody else ends it at the store."""
    metrics, readiness = Metrics(), Readiness()
    async with LocalStore(directory, session_timeout_seconds=SESSION_TIMEOUT_SECONDS) as store:
        await initialize_cluster(store)
        updater = RegistrationUpdater(bookie, (), {}, {}, lambda: False, str)
        async with (
            Participant(store) as participant,
            BookieRegistration(store, await updater.registration()) as registered,
            beside(
                [
                    keep_registered(updater, registered, metrics, readiness),
                    obey_session_policy(store, SessionSettings(), metrics, readiness),
                ]
            ),
        ):
            lock = await LockManager(participant).try_acquire("/lock")
            with recorder.walk(SESSION) as walk:
                await until(lambda: walk.has(SessionMachine._take_answer))
                await _end_session(store)
                await until(lambda: walk.has(SessionMachine._take_renewal))
                await until(lambda: walk.has(BookieRegistration._occupy))
                await until(lambda: registered.is_registered and lock.state is LockState.HELD)
                await until(lambda: walk.has(keep_registered) and walk.has(obey_session_policy))
                assert store.is_session_certain


async def _end_session(store: LocalStore) -> None:
    environment, session = store._require_open(), store._session
    await environment.submit(lambda tree: tree.end_session(session))
