"""Rebuild the index of a stopped bookie from its journal files and entry logs.

A bookie also rebuilds a lost or damaged index at its start. With this module, an operator rebuilds
the index of a stopped bookie, sees the progress, and reads the result before the bookie's start.
The module keeps the old index beside the new index. If a rebuild is interrupted, the next rebuild
or start begins again from the beginning, because an incomplete index has no format record.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bookie.config import StorageSettings
from bookie.daemon.inspection import read_cookie
from bookie.env import PosixDisk, ThreadWorkers, system_environment
from bookie.errors import ConfigurationError, CookieError
from bookie.node.engine.boot.start import Boot, Identity
from bookie.node.engine.directories import Directories, locked_directories
from bookie.node.engine.files import parse_file_name


@dataclass(frozen=True, slots=True)
class RebuiltIndex:
    """The result of a rebuild."""

    index_dir: str
    old_index: str | None
    """The path of the old index; None if there was no index."""
    files: int
    size_bytes: int
    """The total size of the files that the rebuild read."""
    seconds: float
    ledgers: int
    entries: int
    """The number of entries that the rebuild read; an entry that is in two files counts twice."""
    damage: tuple[str, ...]
    """One sentence for each damaged region of the files."""


def size_of_files(settings: StorageSettings) -> int:
    """Return how many bytes a rebuild has to read."""
    return sum(size for _, size in _files(Directories(PosixDisk(), settings)))


def rebuild_index(settings: StorageSettings, advance: Callable[[int], None]) -> RebuiltIndex:
    """Rename the old index and make a new index; the call blocks its thread.

    The rebuild calls `advance` repeatedly with the number of bytes read since the last call. At its
    next start, the bookie gets a new incarnation. The bookie then puts all of its ledgers in limbo:
    it denies none of their entries until a check has found the entries.

    Raises:
        ConfigurationError: directories, cookies or files are missing, or a device is full.
        CookieError: the two directories do not belong to the same bookie.
        DirectoryLockedError: the bookie runs.
        FormatError: a newer version wrote a file, or a file's content contradicts its name.
        StorageFailedError: a disk failed.
    """
    for root in (settings.journal_dir, settings.ledgers_dir):
        if not root.is_dir():
            raise ConfigurationError(f"there is no directory {root}")
    identity = _identity(settings.journal_dir, settings.ledgers_dir)
    environment = system_environment(ThreadWorkers())
    with locked_directories(environment.disk, settings) as directories:
        files = _files(directories)
        if not files:
            raise ConfigurationError(
                f"there are no files in {directories.journal} and {directories.logs} "
                "to make an index from"
            )
        old = None
        if "data.mdb" in environment.disk.names(directories.index):
            old = directories.set_index_aside(f"replaced-{environment.clock.now_ms()}")
        began = environment.clock.monotonic()
        booted = Boot(environment, settings, directories, identity, advance).run()
        try:
            ledgers = booted.index.ledger_count()
        finally:
            booted.writer.close()
            booted.files.close()
            booted.index.close()
        return RebuiltIndex(
            index_dir=directories.index,
            old_index=old,
            files=len(files),
            size_bytes=sum(size for _, size in files),
            seconds=environment.clock.monotonic() - began,
            ledgers=ledgers,
            entries=booted.report.entries,
            damage=booted.report.corrupt,
        )


def _identity(journal_dir: Path, ledgers_dir: Path) -> Identity:
    cookies = [read_cookie(directory) for directory in (journal_dir, ledgers_dir)]
    if cookies[0].differences(cookies[1]):
        raise CookieError(
            f"{journal_dir} belongs to bookie {cookies[0].bookie_id!r} and {ledgers_dir} to "
            f"{cookies[1].bookie_id!r}, or to another incarnation of it"
        )
    return Identity(cookies[0].bookie_id, cookies[0].instance_id, stamped_before=True)


def _files(directories: Directories) -> list[tuple[str, int]]:
    return [
        (entry.path, entry.stat().st_size)
        for directory in (directories.journal, directories.logs)
        if os.path.isdir(directory)
        for entry in os.scandir(directory)
        if parse_file_name(entry.name) is not None
    ]
