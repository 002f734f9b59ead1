"""``bookie cookie``: the cookies of a cluster's bookies in its metadata store.

A cookie ties a bookie's id to its directories; the copy in a directory is shown by ``bookie inspect
cookie``. The bookie itself makes its cookie at its first start. These commands are for the day when
a disk is gone for good, or when the metadata store lost what the directories still have.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.options import Metadata, Output, OutputFormat, Yes, confirm

if TYPE_CHECKING:
    from bookie.cli.output import Record
    from bookie.formats.cookie import Cookie

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Cookies of a cluster's bookies: list, delete, restore.",
)

BookieArgument = Annotated[str, typer.Argument(metavar="BOOKIE", help="The bookie's id.")]


@app.command("list")
def list_(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """List the cookie of every bookie that ever joined the cluster."""
    from bookie.cli.output import print_records

    cookies = asyncio.run(_list(metadata))
    records = [
        {
            "bookie": cookie.bookie_id,
            "state": cookie.state.value,
            "unique_id": cookie.unique_id,
            "directories": [*cookie.journal_dirs, *cookie.ledger_dirs],
        }
        for cookie in cookies
    ]
    print_records(records, output, empty="no bookie has joined this cluster yet")


async def _list(uri: str) -> list[Cookie]:
    from bookie.cli.stores import open_metadata
    from bookie.cluster.cookies import CookieManager

    async with open_metadata(uri) as store:
        manager = CookieManager(store)
        found = [await manager.read(bookie_id) for bookie_id in await manager.bookie_ids()]
    return [versioned.value for versioned in found if versioned is not None]


@app.command("show")
def show(bookie: BookieArgument, metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """Show the cookie of one bookie."""
    from bookie.cli.output import print_record

    print_record(asyncio.run(_show(metadata, bookie)), output)


async def _show(uri: str, bookie_id: str) -> Record:
    from bookie.cli.stores import open_metadata
    from bookie.cluster.cookies import CookieManager
    from bookie.errors import NoSuchKeyError

    async with open_metadata(uri) as store:
        found = await CookieManager(store).read(bookie_id)
    if found is None:
        raise NoSuchKeyError(f"bookie {bookie_id} has no cookie in this cluster")
    cookie = found.value
    return {
        "bookie": cookie.bookie_id,
        "state": cookie.state.value,
        "instance_id": cookie.instance_id,
        "unique_id": cookie.unique_id,
        "journal_dirs": cookie.journal_dirs,
        "ledger_dirs": cookie.ledger_dirs,
        "version": found.version,
    }


@app.command("delete")
def delete(bookie: BookieArgument, metadata: Metadata, yes: Yes = False) -> None:
    """Forget a bookie whose data is gone for good, so that its id can start with empty directories.

    What it stored is lost with it: its ledgers must have other copies.
    """
    confirm(f"Forget that bookie {bookie} ever stored anything?", yes=yes)
    asyncio.run(_delete(metadata, bookie))


async def _delete(uri: str, bookie_id: str) -> None:
    from bookie.cli.stores import open_metadata
    from bookie.cluster.cookies import CookieManager
    from bookie.cluster.instance import read_status
    from bookie.errors import IdentityError, NoSuchKeyError

    async with open_metadata(uri) as store:
        manager = CookieManager(store)
        found = await manager.read(bookie_id)
        if found is None:
            raise NoSuchKeyError(f"bookie {bookie_id} has no cookie in this cluster")
        status = await read_status(store)
        if bookie_id in {*status.writable, *status.read_only}:
            raise IdentityError(f"bookie {bookie_id} is running; stop it first")
        await manager.delete(bookie_id, found.version)


@app.command("restore")
def restore(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIRECTORY...", help="All journal and ledger directories of it."),
    ],
    metadata: Metadata,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Put the cookie that stands in a bookie's directories back into the metadata store."""
    from bookie.cli.output import print_record
    from bookie.errors import CookieError
    from bookie.server.inspection import read_cookie

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
    asyncio.run(_restore(metadata, first))
    print_record({"bookie": first.bookie_id, "unique_id": first.unique_id}, output)


async def _restore(uri: str, cookie: Cookie) -> None:
    from bookie.cli.stores import open_metadata
    from bookie.cluster.cookies import CookieManager
    from bookie.cluster.instance import read_instance_id
    from bookie.errors import CookieError

    async with open_metadata(uri) as store:
        instance_id = await read_instance_id(store)
        if cookie.instance_id != instance_id:
            raise CookieError(
                f"the cookie belongs to the cluster {cookie.instance_id}, this is {instance_id}"
            )
        await CookieManager(store).create(cookie)
