"""``bookie cluster settings``: settings that all bookies of a cluster share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.config import parse_overrides
from bookie.cli.options import Metadata, Output, OutputFormat
from bookie.cli.output import Record, print_records
from bookie.cli.stores import on_store

if TYPE_CHECKING:
    from bookie.metadata.store import MetadataStore

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Settings that all bookies of a cluster share, below their files, variables and flags.",
)


@app.command("list")
def list_(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """List the cluster's settings, and whether running bookies take a change of each at once."""
    records = on_store(metadata, _list)
    print_records(records, output, empty="the cluster has no settings; bookies go by the defaults")


async def _list(store: MetadataStore) -> list[Record]:
    from bookie.cluster.cluster_settings import ClusterSettings
    from bookie.cluster.instance import read_instance_id
    from bookie.config import find_setting

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
    from bookie.cluster.cluster_settings import ClusterSettings
    from bookie.cluster.instance import read_instance_id

    values = parse_overrides(words)

    async def set_all(store: MetadataStore) -> None:
        await read_instance_id(store)
        await ClusterSettings(store).set(values)

    on_store(metadata, set_all)


@app.command("unset")
def unset(
    names: Annotated[
        list[str], typer.Argument(metavar="SECTION.KEY…", help="Settings, all of them or none.")
    ],
    metadata: Metadata,
) -> None:
    """Remove settings: the default counts again."""
    from bookie.cluster.cluster_settings import ClusterSettings

    on_store(metadata, lambda store: ClusterSettings(store).unset(names))
