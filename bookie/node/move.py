"""Rewrites a stopped bookie's cookies after its data was moved to other directories.

The operator moves the directories and changes the settings. Then this module rewrites the cookies,
which name the old paths: first the metadata store's copy, then the copy in each directory. After
the first rewrite, a start with the old paths fails. Before the last rewrite, a start with the new
paths fails, too. If ``bookie cookie move`` crashes, run the command again: it accepts cookies with
the old paths and cookies with the new paths. The state number in the cookies does not change.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from bookie.cluster.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.cluster.cookies import CookieManager
from bookie.config import StorageSettings
from bookie.env import Disk, Environment
from bookie.errors import BadVersionError, CookieError, FormatError
from bookie.node.engine.directories import Directories, locked_directories
from bookie.node.engine.files import parse_file_name
from bookie.node.engine.format.blocks import FileKind


@dataclass(frozen=True, slots=True)
class Move:
    """The result of a move."""

    before: Cookie
    after: Cookie
    """The same cookie after the move, with the directories of the settings."""
    rewritten: int
    """The number of rewritten cookies, including the metadata store's copy."""


async def move_directories(
    environment: Environment,
    storage: StorageSettings,
    cookies: CookieManager,
    bookie_id: str,
    instance_id: str,
    *,
    accept_older: bool = False,
) -> Move:
    """Write the directories of the settings into the cookies of a stopped bookie.

    The change is durable when this returns. After any error or crash, the function can be called
    again.

    Args:
        environment: The disk and the threads with which the directories are read and written.
        storage: The settings, which name the new directories.
        cookies: The cluster's cookies; the caller has synced the metadata store.
        bookie_id: The bookie's id; the caller has checked that the bookie is not registered.
        instance_id: The id of the cluster instance.
        accept_older: Accept directories with a lower state number than the metadata store's cookie.
            The state numbers do not change, so the next start notices the older state.

    Raises:
        CookieError: directories are missing, swapped, older, or of another bookie; nothing was
            changed.
        DirectoryLockedError: a process uses one of the directories; nothing was changed.
        BadVersionError: the bookie was started or deleted meanwhile; nothing was changed.
        ConfigurationError, StorageFailedError: a directory is unusable; nothing was changed.
        OSError: a cookie could not be written.
    """
    recorded = await cookies.read(bookie_id)
    if recorded is None:
        raise CookieError(
            f"this cluster has no cookie of bookie {bookie_id}: "
            "put it back with `bookie cookie restore` before you move its directories"
        )
    before = recorded.value
    if before.instance_id != instance_id or before.state is not CookieState.READY:
        raise CookieError(
            f"bookie {bookie_id} has not finished its first start in this cluster: "
            "start it once before you move it"
        )
    # Locking creates missing directories, so check the owner before locking, too.
    _check(environment.disk, Directories(environment.disk, storage), before, accept_older)
    with locked_directories(environment.disk, storage) as directories:
        found = _check(environment.disk, directories, before, accept_older)
        after, rewritten = _moved(before, directories), 0
        if after != before:
            try:
                await cookies.write(after, recorded.version)
            except BadVersionError as error:
                raise BadVersionError(
                    f"the cookie of bookie {bookie_id} changed meanwhile: make sure that the "
                    "bookie is stopped, and try again"
                ) from error
            rewritten += 1
        for root, cookie in found.items():
            moved = _moved(cookie, directories)
            if moved != cookie:
                await environment.workers.run(
                    "read", directories.write_cookie, root, encode_cookie(moved)
                )
                rewritten += 1
    return Move(before, after, rewritten)


def _moved(cookie: Cookie, directories: Directories) -> Cookie:
    return replace(cookie, journal_dirs=(directories.journal,), ledger_dirs=(directories.ledgers,))


def _check(
    disk: Disk, directories: Directories, recorded: Cookie, accept_older: bool
) -> dict[str, Cookie]:
    """Check the cookies of both roots, and return the cookie of each root.

    Raises:
        CookieError: see `move_directories`.
    """
    found = {root: _cookie_in(directories, root) for root in directories.roots()}
    for root, cookie in found.items():
        same_paths = replace(
            cookie, journal_dirs=recorded.journal_dirs, ledger_dirs=recorded.ledger_dirs
        )
        if different := recorded.differences(same_paths):
            raise CookieError(
                f"{root} belongs to bookie {cookie.bookie_id}, and its cookie differs from the one "
                f"in the metadata store in its {', '.join(different)}: name the directories that "
                f"bookie {recorded.bookie_id} had"
            )
        if cookie.state is not CookieState.READY:
            raise CookieError(f"the cookie in {root} is {cookie.state.value}, not READY")
        if cookie.state_number < recorded.state_number and not accept_older:
            raise CookieError(
                f"{root} holds state {cookie.state_number} of bookie {cookie.bookie_id}, and its "
                f"last one is {recorded.state_number}: copy the directory again from where it ran "
                "last, or give --older to go on without what is missing"
            )
    if _are_swapped(disk, directories):
        raise CookieError(
            f"{directories.journal} and {directories.ledgers} are swapped: journal_dir must name "
            "the directory with the journal files"
        )
    return found


def _cookie_in(directories: Directories, root: str) -> Cookie:
    data = directories.read_cookie(root)
    if data is None:
        raise CookieError(
            f"there is no cookie in {root}: move everything in the old directory there first"
        )
    try:
        return decode_cookie(data)
    except FormatError as error:
        raise CookieError(f"the cookie in {root} cannot be read: {error}") from error


def _are_swapped(disk: Disk, directories: Directories) -> bool:
    """True if a root has files of the other root; cookies cannot show a swap: they are equal."""
    parsed = [parse_file_name(name) for name in disk.names(directories.ledgers)]
    if any(kind is FileKind.JOURNAL for kind, _ in filter(None, parsed)):
        return True
    # Only folders with files count: a start with swapped directories may have created empty ones.
    return any(
        folder in disk.names(directories.journal)
        and disk.names(os.path.join(directories.journal, folder))
        for folder in (os.path.basename(directories.index), os.path.basename(directories.logs))
    )
