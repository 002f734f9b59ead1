"""``bookie cluster``: create, check or remove a cluster, list its bookies, and set its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.config import parse_overrides
from bookie.cli.options import Metadata, Output, OutputFormat, Yes, confirm
from bookie.cli.output import Record, format_bytes, print_record, print_records
from bookie.cli.rebalance import rebalance
from bookie.cli.repair import decommission
from bookie.cli.stores import on_instance, on_store

if TYPE_CHECKING:
    from bookie.cluster.registration_record import Registration
    from bookie.metadata.store import MetadataStore

Layout = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="LAYOUT",
        help="The arrangement of ledgers in the store, for ever: flat, or hierarchical for stores "
        "that cannot list wide directories. By default the one that fits the store.",
    ),
]

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

settings_app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Settings that all bookies of a cluster share, below their files, variables and flags.",
)
app.add_typer(settings_app, name="settings")


@app.command("init")
def init(metadata: Metadata, layout: Layout = None, output: Output = OutputFormat.TABLE) -> None:
    """Make a new cluster in an empty metadata store and print its instance id."""
    from bookie.cluster.instance import initialize_cluster

    instance_id = on_store(metadata, lambda store: initialize_cluster(store, layout), create=True)
    print_record({"instance_id": instance_id}, output)


@app.command("nuke")
def nuke(
    metadata: Metadata,
    yes: Yes = False,
    foreign: Annotated[
        bool,
        typer.Option("--foreign", help="Also delete keys of etcd that no bookie could write."),
    ] = False,
) -> None:
    """Delete all metadata of a cluster: its ledgers, cookies, namespaces and identity.

    After the deletion no client can find the data on the cluster's bookies. The command refuses
    while a bookie is registered, or while the scope has keys that do not belong to the cluster.
    """
    from bookie.ledger.catalog.removal import nuke_cluster

    if not yes:
        status = on_store(metadata, _status)
        confirm(
            f"Delete cluster {status['instance_id']} with {status['ledgers']} ledgers?", yes=False
        )
    if not on_store(metadata, lambda store: nuke_cluster(store, foreign=foreign)):
        print("there was no cluster")


@app.command("status")
def status(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """Show the cluster's id, and the numbers of its bookies and ledgers."""
    print_record(on_store(metadata, _status), output)


async def _status(store: MetadataStore) -> dict[str, str | int]:
    from bookie.cluster.instance import read_status
    from bookie.ledger.catalog.ledgers import LedgerManager

    found = await read_status(store)
    ledgers = 0
    async for _ in LedgerManager(store).list_ids():
        ledgers += 1
    gone = set(found.known) - set(found.writable) - set(found.read_only)
    return {
        "instance_id": found.instance_id,
        "writable_bookies": len(found.writable),
        "read_only_bookies": len(found.read_only),
        "missing_bookies": len(gone),
        "ledgers": ledgers,
    }


@app.command("health")
def health(
    metadata: Metadata,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="List every entry of every copy, not only of copies in doubt."),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=0.1,
            metavar="SECONDS",
            help="A bookie that does not answer for so long counts as unknown.",
        ),
    ] = 10.0,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Check the bookies and ledgers of a cluster; exit with 1 if anything is wrong or unknown.

    The command reports bookies that are missing, read-only or silent. The command also reports
    ledgers that name an unregistered bookie, are in limbo, or lack copies. To find missing copies,
    the command asks every registered bookie which ledgers it stores, with the number of entries of
    each ledger. If a bookie has too few entries of a ledger, the command lists these entries. With
    --deep the command lists all entries of all ledgers, which takes much longer. A bookie may lack
    one entry and have a surplus entry, so that its number of entries is right: only --deep finds
    this. Finally, the command reports ledgers that wait for repair, and ledgers whose last repair
    failed.

    The command checks closed ledgers and, in open ledgers, all fragments except the last fragment.
    The command reads no payloads; `bookie node scrub` reads them.
    """
    from bookie.config import load_settings
    from bookie.daemon.cluster_health import check_cluster

    security = load_settings().security
    checks = on_store(
        metadata,
        lambda store: check_cluster(store, is_deep=deep, answer_seconds=timeout, security=security),
    )
    print_records(
        [
            {"check": one.name, "healthy": one.healthy, "count": one.count, "found": one.found}
            for one in checks
        ],
        output,
    )
    if not all(one.healthy for one in checks):
        raise typer.Exit(1)


@app.command("bookies")
def bookies(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """List all bookies that have a cookie or are registered, with address and free space."""
    records = on_store(metadata, _bookies)
    if output is OutputFormat.TABLE:
        records = [_readable(record) for record in records]
    print_records(records, output, empty="no bookie has joined this cluster yet")


def _readable(record: dict[str, str | int | None]) -> dict[str, str | int | None]:
    """Return the record with sizes as text, such as 1.5 GiB, and names without ``_bytes``."""
    return {
        name.removesuffix("_bytes"): format_bytes(value) if isinstance(value, int) else value
        for name, value in record.items()
    }


async def _bookies(store: MetadataStore) -> list[dict[str, str | int | None]]:
    from bookie.cluster.directory import BookieDirectory
    from bookie.cluster.instance import read_status

    known = (await read_status(store)).known
    async with BookieDirectory(store) as directory:
        registered = dict(directory.all())
    records: list[dict[str, str | int | None]] = []
    for bookie_id in sorted({*known, *registered}):
        registration = registered.get(bookie_id)
        address, tls = _address(registration)
        state = "missing"
        if registration is not None:
            state = "read-only" if registration.read_only else "writable"
        records.append(
            {
                "bookie": bookie_id,
                "state": state,
                "address": address,
                "tls": tls,
                "free_bytes": registration.free_bytes if registration is not None else None,
                "total_bytes": registration.total_bytes if registration is not None else None,
                "version": registration.version if registration is not None else None,
            }
        )
    return records


def _address(registration: Registration | None) -> tuple[str | None, str | None]:
    """Return the bookie's address for entries, and ``yes``, ``no`` or ``both`` for its use of TLS.

    If the bookie has an address with TLS, the function returns this address. ``both`` means that
    the bookie also has a port for clients without TLS.
    """
    from bookie.cluster.endpoints import speaks_tls

    offered = [] if registration is None else registration.endpoints
    entries = [one for one in offered if one.name == "bookie"]
    if not entries:
        return None, None
    by_tls = [one for one in entries if speaks_tls(one)]
    if not by_tls:
        return entries[0].address, "no"
    return by_tls[0].address, "yes" if by_tls == entries else "both"


# --- settings ---------------------------------------------------------------------------------


@settings_app.command("list")
def list_(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """List the cluster's settings; `dynamic` marks settings that need no restart of a bookie."""
    records = on_instance(metadata, _list)
    print_records(records, output, empty="the cluster has no settings; bookies go by the defaults")


async def _list(store: MetadataStore) -> list[Record]:
    from bookie.cluster.cluster_settings import ClusterSettings
    from bookie.config import find_setting

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


@settings_app.command("set")
def set_(
    words: Annotated[
        list[str],
        typer.Argument(metavar="SECTION.KEY=VALUE…", help="Settings, all of them or none."),
    ],
    metadata: Metadata,
) -> None:
    """Set settings of the cluster; a bookie's file, environment variables and flags override them.

    Running bookies apply a dynamic setting within a second, and log a line. Any other setting
    applies to a bookie from its next start. `bookie config default` says which settings are
    dynamic.
    """
    from bookie.cluster.cluster_settings import ClusterSettings

    values = parse_overrides(words)
    on_instance(metadata, lambda store: ClusterSettings(store).set(values))


@settings_app.command("unset")
def unset(
    names: Annotated[
        list[str], typer.Argument(metavar="SECTION.KEY…", help="Settings, all of them or none.")
    ],
    metadata: Metadata,
) -> None:
    """Remove settings from the cluster; bookies then use their own values or the defaults."""
    from bookie.cluster.cluster_settings import ClusterSettings

    on_store(metadata, lambda store: ClusterSettings(store).unset(names))


app.command("decommission")(decommission)
app.command("rebalance")(rebalance)
