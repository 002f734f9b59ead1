"""``bookie cluster settings``: settings that all bookies of a cluster share."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from bookie.cli.config import parse_overrides
from bookie.cli.options import Metadata, Output, OutputFormat
from bookie.cli.output import Record, print_records
from bookie.cli.stores import open_metadata

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Settings that all bookies of a cluster share, below their files, variables and flags.",
)


@app.command("list")
def list_(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """List the cluster's settings, and whether running bookies take a change of each at once."""
    records = asyncio.run(_list(metadata))
    print_records(records, output, empty="the cluster has no settings; bookies go by the defaults")


async def _list(uri: str) -> list[Record]:
    from bookie.cluster.cluster_settings import ClusterSettings
    from bookie.cluster.instance import read_instance_id
    from bookie.config import find_setting

    async with open_metadata(uri) as store:
        await read_instance_id(store)
        settings = await ClusterSettings(store).read()
    records: list[Record] = []
    for name, value in sorted(settings.items()):
        found = find_setting(name)
        records.append(
            {
                "setting": name,
                "value": value,
                "default": None if found is None else found.default,
                "dynamic": None if found is None else found.dynamic,
            }
        )
    return records


@app.command("set")
def set_(
    words: Annotated[
        list[str],
        typer.Argument(metavar="SECTION.KEY=VALUE…", help="Settings, all of them or none."),
    ],
    metadata: Metadata,
) -> None:
    """Set settings for all bookies that do not set them by file, variable or flag.

    Running bookies take dynamic ones within a second, and log a line; the others count from each
    bookie's next start. `bookie config default` says which are dynamic.
    """
    asyncio.run(_set(metadata, parse_overrides(words)))


async def _set(uri: str, values: dict[str, str]) -> None:
    from bookie.cluster.cluster_settings import ClusterSettings
    from bookie.cluster.instance import read_instance_id

    async with open_metadata(uri) as store:
        await read_instance_id(store)
        await ClusterSettings(store).set(values)


@app.command("unset")
def unset(
    names: Annotated[
        list[str], typer.Argument(metavar="SECTION.KEY…", help="Settings, all of them or none.")
    ],
    metadata: Metadata,
) -> None:
    """Remove settings: the default counts again."""
    asyncio.run(_unset(metadata, names))


async def _unset(uri: str, names: list[str]) -> None:
    from bookie.cluster.cluster_settings import ClusterSettings

    async with open_metadata(uri) as store:
        await ClusterSettings(store).unset(names)
