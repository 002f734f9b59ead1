"""Starts a local cluster, restarts bookies that end, and stops the cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bookie.daemon.local.certificates import CLIENT, security_directory
from bookie.daemon.local.layout import Layout, locked, make_directory, prepare, save_layout
from bookie.daemon.local.process import BookieProcess, describe_end
from bookie.env import Backoff
from bookie.errors import KeyExistsError, OperationTimeoutError, ShuttingDownError
from bookie.security.authority import variables_for

if TYPE_CHECKING:
    from bookie.metadata.store import MetadataStore

RESTART_DELAY_SECONDS = 1.0
"""The first delay before a restart. After each failed restart the delay doubles, up to
`RESTART_DELAY_SECONDS_MAX`."""
RESTART_DELAY_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running local cluster."""

    directory: Path
    metadata_uri: str
    bookies: tuple[BookieProcess, ...]
    departed: tuple[str, ...] = ()
    """The ids of bookies that left the cluster since the last start; these bookies do not run."""

    @property
    def client_variables(self) -> Mapping[str, str]:
        """The variables that a client needs for TLS; empty if the bookies use plaintext."""
        home = security_directory(self.directory)
        return variables_for(home, CLIENT) if home.exists() else {}

    def bookie(self, bookie_id: str) -> BookieProcess:
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)


@asynccontextmanager
async def local_cluster(
    directory: Path,
    *,
    bookies: int | None = None,
    metadata_uri: str | None = None,
    base_port: int | None = None,
    secure: bool = False,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[LocalCluster]:
    """Start every bookie, and stop all bookies at the end of the block, also after an error.

    Args:
        directory: the absolute path of the cluster's directory, which is created if missing.
        bookies: the number of bookies; None means as many as before, or 3 in a new cluster.
        metadata_uri: a metadata store to use instead of the embedded store.
        base_port: the first port; each bookie uses two ports. None means that bookies keep the
            ports of the last run, and new bookies get free ports.
        secure: True makes all bookies use TLS, with certificates of a CA in the directory.
        settings: more settings for each bookie, by section and key.
        environment: more variables for the first process of each bookie; a restarted process does
            not get these variables.

    Raises:
        DirectoryLockedError: another supervisor uses the directory.
        ConfigurationError: the arguments contradict the cluster in the directory, or other
            processes cannot reach the metadata store. Also raised if the metadata was deleted, but
            bookies hold data.
        CookieError: the directories of a bookie were deleted; the message has the command to type.
        ShuttingDownError: a bookie did not start; the message has the last line of its log.
        OperationTimeoutError: a bookie was not ready in time.
    """
    if metadata_uri is not None:
        from bookie.metadata.uri import require_shared

        require_shared(metadata_uri)
    make_directory(directory)
    with locked(directory):
        layout = prepare(
            directory,
            bookies=bookies,
            metadata_uri=metadata_uri,
            base_port=base_port,
            settings=settings or {},
            secure=secure,
        )
        departed = await _initialize(directory, layout)
        if departed:
            layout = layout.without(departed)
            save_layout(directory, layout)
        processes = tuple(BookieProcess(member, directory / member.id) for member in layout.members)
        try:
            await start_all(processes, environment)
            yield LocalCluster(directory, layout.metadata_uri, processes, tuple(departed))
        finally:
            await stop_all(processes)


async def start_all(
    processes: Sequence[BookieProcess], environment: Mapping[str, str] | None = None
) -> None:
    """Start all stopped bookies concurrently, and wait until they are ready.

    Raises:
        ShuttingDownError: a bookie did not start; other bookies may be running.
        OperationTimeoutError: a bookie was not ready in time; other bookies may be running.
    """
    failures: list[BaseException] = []
    try:
        async with asyncio.TaskGroup() as group:
            for process in processes:
                if process.pid is None:
                    group.create_task(process.start(environment))
    except* (ShuttingDownError, OperationTimeoutError) as errors:
        failures += errors.exceptions
    # Raise the error only here: up to Python 3.11.3, `except*` would wrap the error in a group.
    if failures:
        raise failures[0]


async def stop_all(processes: Sequence[BookieProcess]) -> None:
    """Stop all running bookies concurrently, and wait until they have ended."""
    async with asyncio.TaskGroup() as group:
        for process in processes:
            if process.pid is not None:
                group.create_task(process.stop())


async def watch_processes(
    cluster: LocalCluster, report: Callable[[str], None], *, restart: bool
) -> None:
    """Report each bookie whose process ends unexpectedly; with `restart`, start the bookie again.

    The function repeats a failed restart. Without `restart`, the function returns when all
    processes have ended. With `restart`, the function returns only after `stop` or `kill` ended all
    processes.
    """

    async def start_again(process: BookieProcess) -> None:
        pauses = Backoff(RESTART_DELAY_SECONDS, RESTART_DELAY_SECONDS_MAX)
        delay = pauses.next()
        while True:
            await asyncio.sleep(delay)
            delay = pauses.next()
            try:
                return await process.start()
            except (ShuttingDownError, OperationTimeoutError) as error:
                report(f"{error}; it is started again in {delay:g} s")

    async def watch(process: BookieProcess) -> None:
        while True:
            status = await process.wait()
            if process.is_stopping:
                return
            report(f"{process.id} {describe_end(status, process.log_path)}")
            if not restart:
                return
            await start_again(process)
            report(f"{process.id} is back, pid {process.pid}")

    async with asyncio.TaskGroup() as group:
        for process in cluster.bookies:
            group.create_task(watch(process))


async def _initialize(directory: Path, layout: Layout) -> list[str]:
    """Create the cluster in an empty metadata store; check that no bookie lost its data.

    Returns:
        the ids of the bookies that have left the cluster.

    Raises:
        ConfigurationError: the metadata was deleted, but bookies have data.
        CookieError: a bookie lost its data.
    """
    from bookie.cluster.instance import initialize_cluster
    from bookie.config import load_settings
    from bookie.daemon.local.lost import (
        departed_bookies,
        refuse_lost_bookies,
        refuse_lost_metadata,
    )
    from bookie.metadata.connect import open_store
    from bookie.metadata.security import security_of

    security = security_of(load_settings().metadata)
    async with open_store(layout.metadata_uri, security=security) as store:
        await refuse_lost_metadata(store, directory, layout)
        with contextlib.suppress(KeyExistsError):
            await initialize_cluster(store)
        await refuse_lost_bookies(store, directory, layout)
        if security_directory(directory).exists():
            await _give_roles(store, layout)
        return await departed_bookies(store, directory, layout)


async def _give_roles(store: MetadataStore, layout: Layout) -> None:
    """Grant the role REPAIRER to each bookie and, if no grant exists yet, ADMIN to the client."""
    from bookie.cluster.role_grants import RoleGrants
    from bookie.security.grants import Grant
    from bookie.security.rights import Role

    grants = RoleGrants(store)
    if not (await grants.read()).all:
        await grants.grant(Grant(CLIENT, Role.ADMIN))
    for member in layout.members:
        await grants.grant(Grant(member.id, Role.REPAIRER))
