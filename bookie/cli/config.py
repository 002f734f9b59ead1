"""``bookie config``: shows, checks and explains the settings of a bookie."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.options import ConfigFile, Output, OutputFormat, parse_pairs
from bookie.cli.output import print_record, print_records
from bookie.errors import ConfigurationError

if TYPE_CHECKING:
    from bookie.config import Sources

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override one setting; may be given more than once.",
    ),
]

MetadataUri = Annotated[
    str | None, typer.Option("--metadata", "-m", metavar="URI", help="Overrides metadata.uri.")
]

Cluster = Annotated[
    bool, typer.Option("--cluster", help="Ask the metadata store for the cluster's settings.")
]


def parse_overrides(given: list[str] | None, metadata_uri: str | None = None) -> dict[str, str]:
    """Convert words ``section.key=value`` and the value of ``--metadata`` to flags of settings.

    The result is the argument `overrides` of `load_settings`.

    Raises:
        typer.BadParameter: a word is not of the form ``section.key=value``.
    """
    for word in given or []:
        if word.partition("=")[0].count(".") != 1:
            raise typer.BadParameter(f"{word!r} must look like section.key=value")
    pairs = parse_pairs(given, "section.key=value")
    overrides = {name.strip(): value for name, value in pairs.items()}
    return overrides if metadata_uri is None else overrides | {"metadata.uri": metadata_uri}


@app.command("show")
def show(
    config: ConfigFile = None,
    overrides: Set = None,
    cluster: Cluster = False,
    origins: Annotated[
        bool,
        typer.Option(
            "--origins", help="List settings that differ from their defaults, with their origin."
        ),
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print the settings that result from defaults, file, environment and flags, as TOML or JSON.

    With --cluster the output includes the cluster's settings, so it shows the settings with which a
    bookie would start now.
    """
    from bookie.cli.app import report
    from bookie.config import Sources, given_values, render_toml

    sources = Sources.read(config, parse_overrides(overrides))
    _tell_unknown_variables(sources)
    try:
        sources.require_one_store()
    except ConfigurationError as error:
        report(f"a bookie would not start: {error}")
    given = _of_cluster(sources) if cluster else {}
    settings = sources.settings(given)
    if origins:
        found = sources.origins(given)
        values = given_values(settings, found)
        print_records(
            [{"setting": n, "value": values[n], "from": found[n]} for n in sorted(found)],
            output,
            empty="all settings are defaults",
        )
    elif output is OutputFormat.JSON:
        print(json.dumps(settings.model_dump(mode="json"), indent=2))
    else:
        print(render_toml(settings), end="")


def _tell_unknown_variables(sources: Sources) -> None:
    """Print a line for each unknown environment variable that begins with ``BOOKIE_``."""
    from bookie.cli.app import report

    for name, right in sources.unknown_variables.items():
        hint = f"; did you mean {right}?" if right else ""
        report(f"{name} is no variable of bookie and is ignored{hint}")


def _of_cluster(sources: Sources) -> dict[str, str]:
    import asyncio

    from bookie.daemon.live_settings import fetch_cluster_settings

    return asyncio.run(fetch_cluster_settings(sources.first_settings()))


@app.command("check")
def check(
    config: ConfigFile = None,
    overrides: Set = None,
    cluster: Cluster = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Check that a bookie would accept the settings; if not, print one sentence and exit with 2.

    The command connects to the metadata store only with --cluster.
    """
    from bookie.config import Sources, require_bookie_id
    from bookie.daemon.live_settings import open_configured

    sources = Sources.read(config, parse_overrides(overrides))
    _tell_unknown_variables(sources)
    sources.first_settings()  # report errors in the bookie's own settings first
    sources.require_one_store()
    settings = sources.settings(_of_cluster(sources) if cluster else {})
    require_bookie_id(settings)
    open_configured(settings)  # only checks the URI, because the context is not entered
    if output is OutputFormat.JSON:
        print_record({"valid": True, "bookie_id": settings.bookie.id}, output)
    else:
        print(f"{config if config is not None else 'the settings'}: valid")


@app.command("default")
def default(output: Output = OutputFormat.TABLE) -> None:
    """Print a template of a configuration file: every setting, its default and its meaning."""
    from bookie.config import Settings, render_defaults

    if output is OutputFormat.JSON:
        print(json.dumps(Settings().model_dump(mode="json"), indent=2))
    else:
        print(render_defaults(), end="")
