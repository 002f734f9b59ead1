"""``bookie cookie``: lists, deletes, moves and restores the cookies of a cluster's bookies.

A cookie ties a bookie's id to its directories; the bookie creates the cookie at its first start.
The metadata store and each directory have a copy of the cookie: ``bookie inspect cookie`` shows the
copy in a directory. Use ``bookie cookie`` after a disk was lost, or after you moved a bookie's data
to other directories. Use ``bookie cookie`` also if the metadata store lost a cookie that the
directories still have.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.config import MetadataUri, Set, parse_overrides
from bookie.cli.options import ConfigFile, Metadata, Output, OutputFormat, Yes, confirm
from bookie.cli.output import Record, print_record, print_records
from bookie.cli.stores import on_store
from bookie.errors import CookieError, FormatError, IdentityError, NoSuchKeyError

if TYPE_CHECKING:
    from bookie.cluster.cookie import Cookie
    from bookie.cluster.cookies import CookieManager
    from bookie.config import Sources
    from bookie.ledger.catalog.dependents import Dependents
    from bookie.metadata.store import MetadataStore
    from bookie.metadata.versioned import Versioned
    from bookie.node.move import Move

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

BookieArgument = Annotated[str, typer.Argument(metavar="BOOKIE", help="The bookie's id.")]


@app.command("list")
def list_(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """List all cookies in the metadata store.

    If cookies are damaged, the list omits these cookies and the exit status is 1.
    """
    from bookie.cluster.cookies import CookieManager

    damaged: list[str] = []
    cookies = on_store(metadata, lambda store: CookieManager(store).list_readable(damaged.append))
    records = [
        {
            "bookie": cookie.bookie_id,
            "state": cookie.state.value,
            "unique_id": cookie.unique_id,
            "incarnation": cookie.incarnation,
            "state_number": cookie.state_number,
            "in_doubt": cookie.is_in_doubt,
            "directories": [*cookie.journal_dirs, *cookie.ledger_dirs],
        }
        for cookie in cookies
    ]
    print_records(records, output, empty="no bookie has joined this cluster yet")
    if damaged:
        raise FormatError(f"not listed, because their cookies are damaged: {', '.join(damaged)}")


@app.command("show")
def show(bookie: BookieArgument, metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """Show the cookie of one bookie."""
    from bookie.cluster.cookies import CookieManager

    found = on_store(metadata, lambda store: _read(CookieManager(store), bookie))
    cookie = found.value
    record: Record = {
        "bookie": cookie.bookie_id,
        "state": cookie.state.value,
        "instance_id": cookie.instance_id,
        "unique_id": cookie.unique_id,
        "incarnation": cookie.incarnation,
        "state_number": cookie.state_number,
        "in_doubt": cookie.is_in_doubt,
        "journal_dirs": cookie.journal_dirs,
        "ledger_dirs": cookie.ledger_dirs,
        "version": found.version,
    }
    print_record(record, output)


async def _read(manager: CookieManager, bookie_id: str) -> Versioned[Cookie]:
    found = await manager.read(bookie_id)
    if found is None:
        raise NoSuchKeyError(f"bookie {bookie_id} has no cookie in this cluster")
    return found


@app.command("delete")
def delete(
    bookie: BookieArgument,
    metadata: Metadata,
    force: Annotated[
        bool,
        typer.Option("--force", help="Even if acknowledged entries may lose their last copy."),
    ] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete the cookie of a stopped bookie whose data is lost, so that its id can start empty.

    You need this command only if the bookie does not replace the cookie itself. A bookie that
    starts on empty directories replaces its cookie if repair.enabled and bookie.replace_lost_data
    are on and no entry is at risk.

    The command shows the ledgers that name the bookie. The command refuses if the bookie may have
    the last copies of an entry. For each write set with this bookie, the command counts the
    unreliable members: this bookie, and members that are new, in doubt or deleted. If this count
    reaches the ack quorum, entries are at risk, and the command refuses. With --force the command
    deletes the cookie even if entries are at risk. Delete only one bookie at a time.
    """
    from bookie.ledger.catalog.bookie_losses import BookieLosses

    examined = on_store(metadata, lambda store: BookieLosses(store).examine(bookie))
    found = examined.dependents
    if found.at_risk and not force:
        print_record(_deletion(bookie, found, deleted=False), output)
        raise IdentityError(
            f"bookie {bookie} may have the last copies of entries of {_risk(found)}: repair the "
            "other bookies first, or give --force to lose these entries"
        )
    confirm(_question(bookie, found), yes=yes)
    on_store(metadata, lambda store: BookieLosses(store).forget(examined))
    print_record(_deletion(bookie, found, deleted=True), output)


def _question(bookie: str, found: Dependents) -> str:
    question = f"Forget that bookie {bookie} ever stored anything?"
    if not found.named.count:
        return f"{question} No ledger names it."
    question += f" {found.named.count} ledgers name it ({found.named})"
    question += f", {found.not_closed.count} of them not closed." if found.not_closed.count else "."
    if found.last_copies.count:
        question += (
            f" Acknowledged entries of {found.last_copies.count} of them may be lost for ever"
            f" ({found.last_copies})."
        )
    if found.unreadable.count:
        question += (
            f" The metadata of {found.unreadable.count} more ledgers cannot be read"
            f" ({found.unreadable}): they may lose entries, too."
        )
    return question


def _risk(found: Dependents) -> str:
    """Describe the ledgers that may lose entries, for an error message."""
    parts = []
    if found.last_copies.count:
        parts.append(f"{found.last_copies.count} ledgers ({found.last_copies})")
    if found.unreadable.count:
        parts.append(
            f"{found.unreadable.count} ledgers whose metadata cannot be read ({found.unreadable})"
        )
    return " and of ".join(parts)


def _deletion(bookie: str, found: Dependents, *, deleted: bool) -> Record:
    return {
        "bookie": bookie,
        "ledgers": found.named.count,
        "first_ledgers": found.named.first_ids,
        "closed": found.named.count - found.not_closed.count,
        "not_closed": found.not_closed.count,
        "last_copies": found.last_copies.count,
        "first_last_copies": found.last_copies.first_ids,
        "unreadable": found.unreadable.count,
        "first_unreadable": found.unreadable.first_ids,
        "deleted": deleted,
    }


@app.command("move")
def move(
    config: ConfigFile = None,
    overrides: Set = None,
    metadata: MetadataUri = None,
    older: Annotated[
        bool,
        typer.Option(
            "--older", help="Go on even if the directories hold an older state than the last one."
        ),
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write the new paths into a bookie's cookies after you have moved its directories.

    Stop the bookie. Move the bookie's journal directory, its ledgers directory or both, with all
    files in them. Write the new paths into the bookie's settings. Then run this command as the
    bookie's user, with the options of `bookie serve`. The command checks that the new directories
    belong to this bookie. If the command is interrupted, run it again.
    """
    from bookie.config import Sources

    given = parse_overrides(overrides, metadata)
    moved = asyncio.run(_move(Sources.read(config, given), accept_older=older))
    print_record(
        {
            "bookie": moved.after.bookie_id,
            "journal_dirs": moved.after.journal_dirs,
            "ledger_dirs": moved.after.ledger_dirs,
            "old_journal_dirs": moved.before.journal_dirs,
            "old_ledger_dirs": moved.before.ledger_dirs,
            "cookies_rewritten": moved.rewritten,
        },
        output,
    )


async def _move(sources: Sources, *, accept_older: bool) -> Move:
    from bookie.cluster.cookies import CookieManager
    from bookie.cluster.instance import read_instance_id
    from bookie.config import require_bookie_id
    from bookie.daemon.live_settings import fetch_cluster_settings, open_configured
    from bookie.env import ThreadWorkers, system_environment
    from bookie.ledger.catalog.bookie_losses import BookieLosses
    from bookie.node.move import move_directories

    first = sources.first_settings()
    sources.require_one_store()
    require_bookie_id(first)
    settings = sources.settings(await fetch_cluster_settings(first))
    async with (
        open_configured(settings) as store,
        ThreadWorkers() as workers,
    ):
        await store.sync()
        await BookieLosses(store).refuse_running(settings.bookie.id)
        return await move_directories(
            system_environment(workers),
            settings.storage,
            CookieManager(store),
            settings.bookie.id,
            await read_instance_id(store),
            accept_older=accept_older,
        )


@app.command("restore")
def restore(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIRECTORY...", help="All its journal and ledger directories."),
    ],
    metadata: Metadata,
    in_doubt: Annotated[
        bool,
        typer.Option("--in-doubt", help="Even if the directories hold two states of the bookie."),
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Copy the cookie in a bookie's directories back into the metadata store.

    The directories may have an older state than the bookie's last state. So the bookie starts as a
    new incarnation and in doubt, because it may lack entries. A bookie in doubt tells no client
    that an entry is missing, until a check has found all entries of the bookie. All directories
    must have the same state; with --in-doubt their states may differ.
    """
    from bookie.daemon.inspection import read_cookie

    cookies = [read_cookie(directory) for directory in directories]
    first = cookies[0]
    for directory, cookie in zip(directories, cookies, strict=True):
        if different := first.differences(cookie):
            raise CookieError(
                f"the cookies in {directories[0]} and {directory} differ in their "
                + ", ".join(different)
            )
    named = {Path(path) for path in (*first.journal_dirs, *first.ledger_dirs)}
    if missing := sorted(map(str, named - {path.absolute() for path in directories})):
        raise CookieError(f"the cookie also names {', '.join(missing)}: give all directories")
    oldest = min(cookies, key=lambda cookie: cookie.state_number)
    others = [n for n, cookie in enumerate(cookies) if not _may_be_same_state(cookie, oldest)]
    if others and not in_doubt:
        raise CookieError(
            f"{directories[cookies.index(oldest)]} holds state {oldest.state_number} of bookie "
            f"{oldest.bookie_id}, and {directories[others[0]]} holds state "
            f"{cookies[others[0]].state_number}: bring back the last copy of the older one, or "
            "give --in-doubt to go on without what is missing"
        )
    newest = max(cookies, key=lambda cookie: cookie.state_number)
    restored = replace(
        newest if others else oldest,
        # Make the next start a new incarnation: a later incarnation of this bookie may have
        # acknowledged entries that are not in the directories.
        incarnation="",
        is_settled=True,  # this mark matters only in the cookies in directories
        is_in_doubt=True,  # the metadata store has lost the number of the newest state
    )
    on_store(metadata, lambda store: _restore(store, restored))
    print_record(
        {
            "bookie": restored.bookie_id,
            "unique_id": restored.unique_id,
            "state_number": restored.state_number,
            "in_doubt": restored.is_in_doubt,
        },
        output,
    )


def _may_be_same_state(cookie: Cookie, oldest: Cookie) -> bool:
    """True if `cookie` and the oldest cookie of the directories may belong to the same state.

    If a crash interrupted the increase of the state number, some directories have the next number,
    and their cookies are marked as not settled.
    """
    if cookie.state_number == oldest.state_number:
        return cookie.incarnation == oldest.incarnation
    return not cookie.is_settled and cookie.state_number == oldest.state_number + 1


async def _restore(store: MetadataStore, cookie: Cookie) -> None:
    from bookie.cluster.cookies import CookieManager
    from bookie.cluster.instance import read_instance_id

    instance_id = await read_instance_id(store)
    if cookie.instance_id != instance_id:
        raise CookieError(
            f"the cookie belongs to the cluster {cookie.instance_id}, this is {instance_id}"
        )
    await CookieManager(store).create(cookie)
