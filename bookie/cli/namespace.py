"""``bookie namespace``: commands for namespaces, which hold logs and set policies for them.

A log's own policy overrides the policy of its namespace, which overrides the defaults. ``show``
prints the resulting policy, and the origin of each value. If several clusters share namespaces,
``metadata.configuration_uri`` names the store of the namespaces.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.log_arguments import parse_span
from bookie.cli.options import Metadata, Output, OutputFormat, Yes, confirm, parse_pairs
from bookie.cli.output import Record, print_records
from bookie.cli.stores import on_configuration, open_metadata

if TYPE_CHECKING:
    from bookie.log.catalog.log_policy import LogPolicy
    from bookie.metadata.store import MetadataStore

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAMESPACE", help="The namespace's name.")]
Log = Annotated[
    str | None,
    typer.Option("--log", metavar="LOG", help="One log of the namespace, instead of all of them."),
]
Decisions = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Decide something: ensemble_size, write_quorum_size, ack_quorum_size, digest, "
        "roll_bytes, roll_seconds, retention_bytes, retention_seconds, quota_bytes, ahead_seconds, "
        "allow_degraded or partitions. "
        "Bytes and seconds may have a unit, such as 10GiB or 7d. 0 is no limit; KEY= leaves it "
        "open again. May be given several times.",
    ),
]


@app.command("create")
def create(name: Name, metadata: Metadata, decisions: Decisions = None) -> None:
    """Make a namespace."""
    from bookie.log.catalog.log_policy import LogPolicy
    from bookie.log.catalog.namespaces import NamespaceManager

    policy = changed_policy(LogPolicy(), parse_pairs(decisions, "--set KEY=VALUE"))
    on_configuration(metadata, lambda store: NamespaceManager(store).create(name, policy))


@app.command("set")
def set_(name: Name, metadata: Metadata, decisions: Decisions = None, log: Log = None) -> None:
    """Set policy values of a namespace or of one log; values without --set do not change."""
    changes = parse_pairs(decisions, "--set KEY=VALUE")
    on_configuration(metadata, lambda store: _set(store, name, log, changes))


async def _set(store: MetadataStore, name: str, log: str | None, changes: dict[str, str]) -> None:
    from bookie.log.catalog.log_policy import LogPolicy
    from bookie.log.catalog.namespaces import NamespaceManager
    from bookie.metadata.model import NOT_EXISTS

    namespaces = NamespaceManager(store)
    if log is None:
        found = await namespaces.read(name)
        await namespaces.write(name, changed_policy(found.value, changes), found.version)
        return
    own = await namespaces.log_policy(name, log)
    policy = changed_policy(own.value if own is not None else LogPolicy(), changes)
    version = own.version if own is not None else NOT_EXISTS
    if policy == LogPolicy():
        await namespaces.clear_log_policy(name, log)
    else:
        await namespaces.set_log_policy(name, log, policy, version)


@app.command("list")
def list_(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """List the namespaces with their own policy values, without the defaults."""
    records = on_configuration(metadata, _list)
    print_records(records, output, empty="there are no namespaces")


async def _list(store: MetadataStore) -> list[Record]:
    from bookie.log.catalog.namespaces import NamespaceManager

    return [
        {"namespace": name, "decides": _given(found.value)}
        async for name, found in NamespaceManager(store).all()
    ]


@app.command("show")
def show(
    name: Name, metadata: Metadata, log: Log = None, output: Output = OutputFormat.TABLE
) -> None:
    """Show the whole policy of a namespace or of one of its logs, with the origin of each value."""
    print_records(on_configuration(metadata, lambda store: _show(store, name, log)), output)


async def _show(store: MetadataStore, name: str, log: str | None) -> list[Record]:

    from bookie.log.catalog.namespaces import NamespaceManager

    namespaces = NamespaceManager(store)
    whole = asdict(await namespaces.policy(name, log))
    decided = dict.fromkeys(_given((await namespaces.read(name)).value), "namespace")
    own = None if log is None else await namespaces.log_policy(name, log)
    if own is not None:
        decided |= dict.fromkeys(_given(own.value), "log")
    return [
        {"key": key, "value": value, "decided_by": decided.get(key, "default")}
        for key, value in whole.items()
    ]


@app.command("delete")
def delete(name: Name, metadata: Metadata, yes: Yes = False) -> None:
    """Delete a namespace that holds no logs.

    If several clusters share the namespace, the command checks only this cluster for logs.
    """
    from bookie.log.catalog.namespaces import NamespaceManager

    async def delete_in(store: MetadataStore) -> None:
        async with open_metadata(metadata) as cluster:
            await NamespaceManager(store).delete(name, cluster=cluster)

    confirm(f"Delete the namespace {name}?", yes=yes)
    on_configuration(metadata, delete_in)


def _given(policy: LogPolicy) -> dict[str, int | str]:
    return {key: value for key, value in asdict(policy).items() if value is not None}


def changed_policy(policy: LogPolicy, changes: dict[str, str]) -> LogPolicy:
    """Return `policy` with the values in `changes`, which come from --set KEY=VALUE.

    An empty value removes the policy's own value.
    """
    from bookie.log.catalog.log_policy import LogPolicy as Policy

    values = asdict(policy)
    for key, text in changes.items():
        if key not in values:
            raise typer.BadParameter(
                f"{key!r} cannot be decided; there are {', '.join(values)}", param_hint="--set"
            )
        values[key] = _decision(key, text) if text else None
    return Policy(**values)


def _decision(key: str, text: str) -> object:
    """Parse the value of a policy key; numbers of bytes and seconds may have a unit."""
    from bookie.config.quantities import parse_size

    if key == "digest":
        return text
    if key == "allow_degraded":
        if text not in ("true", "false"):
            raise typer.BadParameter(f"{key} must be true or false", param_hint="--set")
        return text == "true"
    try:
        if key.endswith("_bytes"):
            return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(f"{key} {error}", param_hint="--set") from error
    if key.endswith("_seconds") and not text.isdigit():
        seconds = parse_span(text, f"--set {key}")
        if seconds % 1:
            raise typer.BadParameter(f"{key} must be whole seconds", param_hint="--set")
        return int(seconds)
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{key} must be a whole number", param_hint="--set")
    return int(text)
