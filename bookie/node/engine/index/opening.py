"""Creates the index once for a new bookie, and opens the index at each start."""

from __future__ import annotations

import os
from contextlib import closing

from bookie.config import StorageSettings
from bookie.env import Environment, is_disk_full
from bookie.errors import ConfigurationError, CorruptionError, DiskFullError, StorageFailedError
from bookie.node.engine.directories import Directories
from bookie.node.engine.index.entry_index import INDEX_FORMAT_VERSION, META_FORMAT, TABLES, Index


def make_index(
    environment: Environment, settings: StorageSettings, directories: Directories
) -> None:
    """Create the empty index of a new bookie; blocks until the index is durable.

    The index is created before the cookie says READY. So a READY cookie without an index means that
    the index was lost. If an interrupted call left a damaged index, the next call replaces the
    index.

    Raises:
        ConfigurationError: the device is full; a later start may succeed.
        StorageFailedError: the device failed.
    """
    try:
        try:
            index = open_index(environment, settings, directories)
        except CorruptionError:
            for name in environment.disk.names(directories.index):
                environment.disk.unlink(os.path.join(directories.index, name))
            index = open_index(environment, settings, directories)
        with closing(index):
            index.put_meta({META_FORMAT: str(INDEX_FORMAT_VERSION).encode()})
    except (OSError, DiskFullError) as error:
        if is_disk_full(error):
            raise ConfigurationError(
                f"the device of {directories.index} is full, the bookie cannot start: {error}"
            ) from error
        raise StorageFailedError(f"a disk failed during the first start: {error}") from error


def open_index(
    environment: Environment,
    settings: StorageSettings,
    directories: Directories,
    *,
    trusted: bool = False,
) -> Index:
    """Open the index, or create an empty index; the name of its file is durable on return.

    `trusted` means: the caller knows that the index was closed in an orderly stop. Then the pages
    of the index are not checked.

    Raises:
        CorruptionError: the files in the index directory are not an index.
        OSError, DiskFullError: the index cannot be opened or created.
    """
    store = environment.open_kv(directories.index, settings.index_map_bytes, TABLES, trusted)
    index = Index(store)
    try:
        # The store syncs its file, but not the file's name. Sync at each start, because the process
        # that created the file may have been killed before it reached this line.
        environment.disk.sync_directory(directories.index)
    except OSError:
        index.close()
        raise
    return index
