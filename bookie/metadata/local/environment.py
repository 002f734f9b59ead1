"""One LMDB environment per directory and process: its opening, its readers and its one writer.

LMDB refuses to open the same directory twice in one process. So all stores of a process that use
the same directory share one environment, which counts these stores. Every write is a job for the
environment's writer thread, which carries out all queued jobs in one LMDB transaction. The thread
commits durably, notifies the sessions, and hands each result to the event loop of its caller.
Before a job raises a `BookieError`, it must not write anything, because the LMDB transaction is
committed with the other jobs.

A process that is stopped (SIGSTOP) inside a write transaction holds LMDB's lock. All writers on the
machine wait until that process continues or is killed. So the environment measures for how long its
writer has been busy.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import lmdb

from bookie.env import SystemClock
from bookie.env.kv import allocate_lock_file
from bookie.env.kv_zeros import ZerosAhead
from bookie.errors import (
    BookieError,
    ConfigurationError,
    FormatError,
    MetadataUnavailableError,
    NoSuchKeyError,
)
from bookie.metadata.local.sessions import CommitNotifier
from bookie.metadata.local.tree import TABLES, TreeReader, TreeWriter, check_format, unavailable

T = TypeVar("T")

FORMAT = b"bookie-metadata 2"

MAP_SIZE_BYTES = 16 * 1024**3
"""The largest size of a store; the file is sparse, and grows with the stored data."""

READERS_MAX = 1024
"""The most threads that can read at the same time, counted over all processes."""

GROUP_JOBS_MAX = 256
"""The most jobs that share one commit."""

_OWN_NAMES = {"data.mdb", "lock.mdb", "sessions"}
_STOP = None


@dataclass(slots=True)
class _Job(Generic[T]):
    run: Callable[[TreeWriter], T]
    future: asyncio.Future[T]
    loop: asyncio.AbstractEventLoop
    result: T | None = None
    error: BookieError | None = None

    def resolve(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # set when run returned


class LocalEnvironment:
    """An open store directory. Get an environment by `acquire`, and give it back by `release`."""

    def __init__(self, directory: Path, map_size_bytes: int = MAP_SIZE_BYTES) -> None:
        self.directory = directory
        self.sessions_directory = directory / "sessions"
        self.references = 0
        self.process_id = os.getpid()
        self._lmdb = _open(directory, map_size_bytes)
        self._data = _open_data(directory, self._lmdb)
        self._ahead = ZerosAhead(self._lmdb, self._data)
        self._tables: dict[str, lmdb._Database] = {}
        self._notifier = CommitNotifier()
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._busy_since: float | None = None
        self._unfinished = 0
        self._unfinished_lock = threading.Lock()
        self._has_ended = False
        # As a daemon, the thread does not keep this process from ending while it waits for a lock.
        self._thread = threading.Thread(target=self._work, name="metadata-writer", daemon=True)
        self._thread.start()

    @contextmanager
    def read(self) -> Iterator[TreeReader]:
        """Yield the current state; the caller must not await while it uses the state.

        Raises:
            MetadataUnavailableError: LMDB failed.
        """
        try:
            with self._lmdb.begin() as transaction:
                yield TreeReader(transaction, self._tables)
        except lmdb.Error as error:
            raise unavailable(str(self.directory), error) from error

    def submit(self, run: Callable[[TreeWriter], T]) -> asyncio.Future[T]:
        """Queue a job for the writer; the future resolves when the job's commit is durable.

        If the future is cancelled, the job still runs. The future raises the job's error, or
        MetadataUnavailableError if the commit failed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._unfinished_lock:
            self._unfinished += 1
        self._jobs.put(_Job(run, future, loop))
        if self._has_ended:
            self._refuse_queued()
        return future

    def is_idle(self) -> bool:
        """True if no job is queued or running; only then does `close` return at once."""
        return self._unfinished == 0 or self._has_ended

    def busy_seconds(self) -> float:
        """Return the seconds since the writer began its current jobs; 0 if it has no jobs."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def forget_dead_readers(self) -> None:
        """Free the reader slots of dead processes; such slots keep LMDB from reusing old pages.

        Raises:
            MetadataUnavailableError: LMDB failed.
        """
        try:
            self._lmdb.reader_check()
        except lmdb.Error as error:
            raise unavailable(str(self.directory), error) from error

    def close(self) -> None:
        """Stop the writer and close LMDB; call this only if all jobs are done."""
        self._jobs.put(_STOP)
        self._thread.join()
        self._notifier.close()
        self._lmdb.close()
        os.close(self._data)

    def _work(self) -> None:
        group: list[_Job[Any]] = []
        try:
            while True:
                group = self._next_group()
                if not group:
                    return
                self._busy_since = time.monotonic()
                waiting = self._do(group)
                self._busy_since = None
                with self._unfinished_lock:
                    self._unfinished -= len(group)
                self._notifier.notify(waiting)
                _hand_back(group)
        finally:
            # If a bug ended the thread, some jobs were not done. Their callers get an error.
            self._has_ended = True
            _refuse(group)
            self._refuse_queued()

    def _refuse_queued(self) -> None:
        group = []
        try:
            while True:
                job = self._jobs.get_nowait()
                if job is not _STOP:
                    group.append(job)
        except Empty:
            _refuse(group)

    def _next_group(self) -> list[_Job[Any]]:
        group: list[_Job[Any]] = []
        job = self._jobs.get()
        while job is not _STOP:
            group.append(job)
            if len(group) == GROUP_JOBS_MAX:
                return group
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return group
        if group:
            self._jobs.put(_STOP)
        return group

    def _do(self, group: list[_Job[Any]]) -> list[bytes]:
        """Run the jobs and commit them together; return the sessions to notify."""
        try:
            # Open the tables here, in the writer's thread, because this may wait long for LMDB's
            # write lock.
            self._tables = self._tables or _open_tables(self._lmdb, self.directory)
            return self._commit(group)
        except (lmdb.Error, OSError) as error:
            failure: BookieError = unavailable(str(self.directory), error)
        except BookieError as error:
            failure = error
        for job in group:
            job.error = job.error or failure
        return []

    def _commit(self, group: list[_Job[Any]]) -> list[bytes]:
        with self._lmdb.begin(write=True) as transaction:
            self._ahead.write()
            tree = TreeWriter(transaction, self._tables, SystemClock().now_ms())
            for job in group:
                try:
                    job.result = job.run(tree)
                except BookieError as error:
                    job.error = error
            waiting = list(tree.sessions()) if tree.has_committed else []
        self._ahead.check()
        return waiting


def _refuse(group: list[_Job[Any]]) -> None:
    for job in group:
        job.error = MetadataUnavailableError("the writer of the metadata store has ended")
    _hand_back(group)


def _hand_back(group: list[_Job[Any]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job[Any]]] = {}
    for job in group:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, jobs)
        except RuntimeError:
            # The event loop of these jobs was closed before its store was, so no caller waits any
            # more.
            continue


def _resolve(jobs: list[_Job[Any]]) -> None:
    for job in jobs:
        job.resolve()


_environments: dict[Path, LocalEnvironment] = {}
_environments_lock = threading.Lock()


def acquire(directory: Path, *, create: bool = True) -> LocalEnvironment:
    """Return the environment of `directory`; open or create the environment if necessary.

    The parent of `directory` must exist.

    Raises:
        ConfigurationError: the directory cannot be used, or was opened before this process was
            forked.
        NoSuchKeyError: the directory contains no store, and `create` is False.
        FormatError: the directory contains other files. If the files are an LMDB environment, their
            format is checked only later, by the first job.
        MetadataUnavailableError: LMDB cannot open the directory now.
    """
    directory = Path(os.path.realpath(directory))
    with _environments_lock:
        environment = _environments.get(directory)
        if environment is None:
            if not create and not (directory / "data.mdb").exists():
                raise NoSuchKeyError(
                    f"{directory} holds no cluster, and no metadata store; check the URI, or make "
                    "a cluster there by 'bookie cluster init'"
                )
            environment = LocalEnvironment(directory)
            _environments[directory] = environment
        elif environment.process_id != os.getpid():
            raise ConfigurationError(
                f"the metadata store in {directory} was open when this process was forked; "
                "start processes with spawn instead"
            )
        environment.references += 1
        return environment


def release(environment: LocalEnvironment) -> None:
    """Give back an environment that `acquire` returned; the last `release` closes LMDB.

    If the writer still has jobs, the environment stays open, and the next `acquire` returns it.
    This call does not wait for the writer: if a stopped process held LMDB's lock, waiting would
    block the event loop.
    """
    with _environments_lock:
        environment.references -= 1
        if environment.references == 0 and environment.is_idle():
            del _environments[environment.directory]
            environment.close()


def _open(directory: Path, map_size_bytes: int) -> lmdb.Environment:
    if not directory.parent.is_dir():
        raise ConfigurationError(
            f"the metadata directory {directory} cannot be created: there is no directory "
            f"{directory.parent}"
        )
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        foreign = set(os.listdir(directory)) - _OWN_NAMES
        if foreign and not (directory / "data.mdb").exists():
            raise FormatError(f"{directory} is not empty and holds no metadata store")
        allocate_lock_file(str(directory), READERS_MAX)
        environment = lmdb.open(
            str(directory),
            map_size=map_size_bytes,
            max_dbs=len(TABLES),
            max_readers=READERS_MAX,
            mode=0o600,
            sync=True,
            metasync=True,
            writemap=False,
        )
        environment.reader_check()
    except OSError as error:
        raise ConfigurationError(
            f"the metadata directory {directory} cannot be used: {error.strerror or error}"
        ) from error
    except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
        raise FormatError(f"{directory} holds no LMDB environment of ours: {error}") from error
    except lmdb.Error as error:
        raise unavailable(str(directory), error) from error
    return environment


def _open_data(directory: Path, environment: lmdb.Environment) -> int:
    try:
        return os.open(directory / "data.mdb", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        environment.close()
        raise MetadataUnavailableError(f"{directory} cannot be opened: {error.strerror}") from error


def _open_tables(environment: lmdb.Environment, directory: Path) -> dict[str, lmdb._Database]:
    """Open the tables; create them if the environment is empty."""
    with environment.begin(write=True) as transaction:
        is_new = transaction.stat()["entries"] == 0
        try:
            tables = {
                name: environment.open_db(name.encode(), txn=transaction, create=is_new)
                for name in TABLES
            }
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
            raise FormatError(f"{directory} is an LMDB environment of something else") from error
        if is_new:
            TreeWriter(transaction, tables, 0).write_format(FORMAT)
        check_format(TreeReader(transaction, tables).format(), FORMAT, str(directory))
    try:
        (directory / "sessions").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the metadata directory {directory} cannot be used: {error.strerror}"
        ) from error
    return tables
