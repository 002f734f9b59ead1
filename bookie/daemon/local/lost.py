"""Finds the bookies of a local cluster that lost directories, or that have left the cluster.

If directories of a bookie were deleted, the local cluster does not start, and the error message
contains the command that the user must type. A bookie that lost all of its directories needs no
command and starts empty, unless entries may have lost their last copies.

The checks run before any bookie starts, because only the supervisor can tell the user the right
command.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from bookie.cluster.cookie import CookieState
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import read_instance_id
from bookie.daemon.local.layout import Layout
from bookie.errors import ConfigurationError, CookieError, NoSuchKeyError
from bookie.ledger.catalog.bookie_losses import BookieLosses
from bookie.ledger.catalog.dependents import find_dependents
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.metadata.store import MetadataStore

DIRECTORIES = ("journal", "ledgers")
"""The names of a bookie's directories, below the bookie's home."""


async def refuse_lost_metadata(store: MetadataStore, directory: Path, layout: Layout) -> None:
    """Refuse to start if the metadata store holds no cluster, but a bookie's directory has data.

    Raises:
        ConfigurationError: a bookie has data of a cluster that the metadata store no longer holds.
    """
    try:
        await read_instance_id(store)
    except NoSuchKeyError as error:
        for member in layout.members:
            home = directory / member.id
            if any(map(_has_cookie, _roots(home))):
                raise ConfigurationError(
                    f"{layout.metadata_uri} holds no cluster, and {home} holds data of one: bring "
                    f"the metadata back, or lose all data by `rm -r {shlex.quote(str(directory))}`"
                ) from error


async def departed_bookies(store: MetadataStore, directory: Path, layout: Layout) -> list[str]:
    """Return the bookies that have data, but no cookie in the store, and that no ledger names.

    These bookies have left the cluster. If only the cookie of a bookie was lost, ledgers still name
    the bookie, so the bookie is not in the result.
    """
    known, ledgers = set(await CookieManager(store).bookie_ids()), LedgerManager(store)
    departed = []
    for member in layout.members:
        has_data = all(map(_has_cookie, _roots(directory / member.id)))
        if member.id in known or not has_data:
            continue
        found = await find_dependents(ledgers, member.id, frozenset())
        if not (found.named.count or found.unreadable.count):
            departed.append(member.id)
    return departed


async def refuse_lost_bookies(store: MetadataStore, directory: Path, layout: Layout) -> None:
    """Refuse to start if a bookie lost directories, except if the bookie can safely start empty.

    Raises:
        CookieError: a bookie lost some of its directories. Also raised if a bookie lost all
            directories, and entries may have lost their last copies.
    """
    cookies = CookieManager(store)
    all_gone = {
        member.id for member in layout.members if all(map(_is_gone, _roots(directory / member.id)))
    }
    for member in layout.members:
        roots = _roots(directory / member.id)
        lost = [root for root in roots if not _has_cookie(root)]
        if not lost:
            continue
        found = await cookies.read(member.id)
        if found is None or found.value.state is not CookieState.READY:
            continue  # the bookie has never completed its first start
        if member.id in all_gone:
            examined = await BookieLosses(store).examine(member.id, all_gone - {member.id})
            if not examined.dependents.last_copies.count:
                continue
        left = " ".join(shlex.quote(str(root)) for root in roots if root.exists())
        command = f"rm -r {left} && " if left else ""
        command += f"bookie cookie delete {member.id} --metadata {shlex.quote(layout.metadata_uri)}"
        raise CookieError(
            f"{member.id} has lost its data: {lost[0]} is gone or has no cookie; bring it back, or "
            f"type `{command}`, after which it starts again with empty directories"
        )


def _roots(home: Path) -> list[Path]:
    return [home / name for name in DIRECTORIES]


def _is_gone(root: Path) -> bool:
    """True if the directory `root` has no file, except the lock file of an earlier start."""
    return all(path.is_dir() or path.name == "LOCK" for path in root.rglob("*"))


def _has_cookie(root: Path) -> bool:
    return (root / "COOKIE").exists()
