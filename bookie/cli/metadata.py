"""``bookie metadata``: commands that show, change, copy and measure a metadata store.

Keys begin with a slash, and are relative to the scope in the store's URI.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import uuid
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.bench import percentile_of
from bookie.cli.options import Metadata, Output, OutputFormat, Yes
from bookie.cli.output import print_record, print_records
from bookie.cli.progress import progress_bar
from bookie.cli.stores import on_store, open_metadata
from bookie.errors import NoSuchKeyError
from bookie.metadata.rights import Kind, etcd_commands, rights_table

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from bookie.metadata.model import Record, Stat
    from bookie.metadata.store import MetadataStore

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

Row = dict[str, str | int | bool | None]

Key = Annotated[str, typer.Argument(metavar="KEY", help="A key, such as /INSTANCEID.")]
Prefix = Annotated[
    str, typer.Argument(metavar="[KEY]", help="The key to begin at; the root by default.")
]
Version = Annotated[
    int | None,
    typer.Option("--version", metavar="N", min=0, help="Only if the record has this version."),
]


@app.command("get")
def get(key: Key, metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """Print the bytes of a record's value; with --output json, also print its version and times."""
    record = on_store(metadata, lambda store: store.get(key))
    if record is None:
        raise NoSuchKeyError(f"there is no record {key}")
    if output is OutputFormat.JSON:
        print_record({**_stat(record.stat), **_value(record.value)}, output)
        return
    sys.stdout.buffer.write(record.value)
    if sys.stdout.isatty() and not record.value.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")


@app.command("ls")
def ls(
    metadata: Metadata,
    key: Prefix = "/",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Everything below, not one level.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the children of a key; a key that only has children ends with a slash.

    With --recursive the command lists all records at all levels below the key.
    """
    records = on_store(metadata, lambda store: _ls(store, key, recursive=recursive))
    print_records(records, output, empty=f"there is nothing below {key}")


async def _ls(store: MetadataStore, key: str, *, recursive: bool) -> list[Row]:
    from bookie.metadata.export import walk

    if recursive:
        return [_row(record) async for record in walk(store, key)]
    records = {record.name: record async for record in store.scan_children(key)}
    return [
        _row(records[name]) if name in records else _parent(f"{key.rstrip('/')}/{name}")
        for name in await store.get_children(key)
    ]


def _row(record: Record) -> Row:
    return {
        "key": record.key,
        "bytes": len(record.value),
        "version": record.version,
        "ephemeral": record.ephemeral,
    }


def _parent(key: str) -> Row:
    """Return the row of the output for a key that has children but no record."""
    return {"key": key + "/", "bytes": None, "version": None, "ephemeral": False}


@app.command("put")
def put(
    key: Key,
    metadata: Metadata,
    value: Annotated[
        str | None, typer.Argument(metavar="[VALUE]", help="The value, or --file.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="The file with the value; - is stdin."),
    ] = None,
    version: Version = None,
    create: Annotated[
        bool, typer.Option("--create", help="Only if there is no record yet.")
    ] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write a record and print the record's new version.

    The command asks before it changes a record that a cluster needs, such as the cluster's id, a
    cookie, or the metadata of a ledger.
    """
    if (value is None) == (file is None):
        raise typer.BadParameter("give either a VALUE or a --file")
    if create and version is not None:
        raise typer.BadParameter("--create and --version contradict each other")
    octets = value.encode() if value is not None else _read(file)
    if not yes and not create:
        from bookie.cli.metadata_questions import ask, of_overwriting

        ask(asyncio.run(of_overwriting(metadata, key, octets)))
    expected = -1 if create else version
    stat = on_store(metadata, lambda store: store.put(key, octets, version=expected))
    print_record({"key": stat.key, "version": stat.version}, output)


def _read(file: Path | None) -> bytes:
    return sys.stdin.buffer.read() if str(file) == "-" else Path(str(file)).read_bytes()


@app.command("delete")
def delete(
    key: Key,
    metadata: Metadata,
    version: Version = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Everything below as well.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a record; with --recursive also all records below it. The command asks first."""
    if recursive and version is not None:
        raise typer.BadParameter("--recursive and --version contradict each other")
    if not yes:
        from bookie.cli.metadata_questions import ask, of_deleting, of_deleting_all

        about = of_deleting_all(metadata, key) if recursive else of_deleting(metadata, key)
        ask(asyncio.run(about))

    async def remove(store: MetadataStore) -> None:
        if not recursive:
            await store.delete(key, version=version)
        elif await store.exists(key):
            await store.delete_recursive(key)
        else:
            raise NoSuchKeyError(f"there is nothing at or below {key}")

    on_store(metadata, remove)


@app.command("watch")
def watch(
    metadata: Metadata,
    key: Prefix = "/",
    events: Annotated[
        int | None, typer.Option("--events", metavar="N", min=1, help="End after so many.")
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print each change of a key, and of the keys below it, as a line, until Ctrl-C.

    A line ``resync`` means that some changes before this line may not have been printed.
    """
    on_store(metadata, lambda store: _watch(store, key, events, output))


async def _watch(store: MetadataStore, key: str, limit: int | None, output: OutputFormat) -> None:
    shown = 0
    async with aclosing(_lines(store, key, output)) as lines:
        async for line in lines:
            print(line, flush=True)
            shown += 1
            if shown == limit:
                return


async def _lines(store: MetadataStore, key: str, output: OutputFormat) -> AsyncGenerator[str, None]:

    from bookie.metadata.model import Resync

    async with store.watch(key) as changes:
        print(f"watching {key}", file=sys.stderr, flush=True)
        async for change in changes:
            if isinstance(change, Resync):
                yield '{"kind": "resync"}' if output is OutputFormat.JSON else "resync"
                continue
            for event in change.events:
                record = {"kind": event.kind.value, "key": event.key, "revision": event.revision}
                if output is OutputFormat.JSON:
                    yield json.dumps(record)
                else:
                    yield f"{event.kind.value:<9} {event.key}"


@app.command("export")
def export(
    metadata: Metadata,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The file to write; stdout by default.")
    ] = None,
    key: Annotated[
        str, typer.Option("--key", metavar="KEY", help="Only what is at and below this key.")
    ] = "/",
) -> None:
    """Write all records to a file of JSON lines, whose last line has their number and digest.

    The file omits records that belong to sessions (registrations, locks), and all access control
    lists. The file shows the state of one moment only if you stop the cluster first. If the file
    contains items of queues, it cannot be imported.
    """
    on_store(metadata, lambda store: _export(store, file, key))


async def _export(store: MetadataStore, file: Path | None, key: str) -> None:
    from bookie.metadata.export import export_lines

    skipped: list[str] = []
    lines = 0
    # Write to a temporary file first, so that a failed export leaves no file.
    part = file.with_name(file.name + ".part") if file is not None else None
    try:
        # To open /dev/stdout would truncate a file to which the shell appends.
        with part.open("w", encoding="utf-8") if part else nullcontext(sys.stdout) as out:
            async for line in export_lines(store, key, skipped=skipped.append):
                print(line, file=out)
                lines += 1
        if part is not None and file is not None:
            part.replace(file)
    except BaseException:
        if part is not None:
            part.unlink(missing_ok=True)
        raise
    print(f"{lines - 2} records, {len(skipped)} of sessions left out", file=sys.stderr)


Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace records that have another value; asks first.")
]


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file from export; - is stdin.")],
    metadata: Metadata,
    overwrite: Overwrite = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write the records of an exported file into the store; skip records with equal values.

    If the file was cut off or changed, or holds items of queues, the command writes nothing.
    """
    from bookie.metadata.export import import_records, parse_export

    # Split only at newlines. `splitlines` would also split at separators that may be in a key.
    text = _read(file).decode("utf-8", "replace").removesuffix("\n")
    records = parse_export(text.split("\n"))
    if overwrite and not yes:
        from bookie.cli.metadata_questions import ask, of_importing

        ask(asyncio.run(of_importing(metadata, records)))
    with progress_bar("importing", total=len(records), unit="records") as advance:
        copied = on_store(
            metadata,
            lambda store: import_records(store, records, overwrite=overwrite, count=advance),
            create=True,
        )
    print_record({"written": copied.written, "equal": copied.equal}, output)


@app.command("migrate")
def migrate(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The URI to copy from.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The URI to copy to.")],
    target_config: Annotated[
        Path | None,
        typer.Option(
            "--target-config",
            metavar="FILE",
            help="Settings whose section [metadata] has the target's credentials.",
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Also while sessions (bookies) use the source.")
    ] = False,
    overwrite: Overwrite = False,
    drop_acl: Annotated[
        bool,
        typer.Option(
            "--drop-acl", help="Also if the target cannot restrict single records to some users."
        ),
    ] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Copy a whole scope to another store of any kind, and compare the two stores.

    The source is not changed. If the command is interrupted, run it again to continue. Records that
    only some users may read or write keep this restriction. Empty all queues first, because
    sequence numbers start again in the target. A migration does not preserve fencing tokens, so
    discard saved tokens.
    """
    if overwrite and not yes:
        from bookie.cli.metadata_questions import ask, of_migrating

        ask(asyncio.run(of_migrating(source, target, target_config)))
    done = _migrate(
        source, target, target_config, live=live, overwrite=overwrite, drop_acl=drop_acl
    )
    print_record(asyncio.run(done), output)


async def _migrate(
    source: str, target: str, config: Path | None, *, live: bool, overwrite: bool, drop_acl: bool
) -> dict[str, int | str]:
    from bookie.metadata.export import migrate

    async with (
        open_metadata(source) as left,
        open_metadata(target, config, create=True) as right,
    ):
        with progress_bar("migrating", total=None, unit="records") as advance:
            copied = await migrate(
                left, right, live=live, overwrite=overwrite, drop_acl=drop_acl, count=advance
            )
        kept = left.has_access_control and right.has_access_control
    return {
        "written": copied.written,
        "equal": copied.equal,
        "of_sessions_left_out": copied.skipped,
        "restricted_records": copied.restricted,
        "access_control": "kept" if kept else "decided by the target",
        "verified": "every record is the same in both",
    }


@app.command("rights")
def rights(
    metadata: Metadata,
    kind: Annotated[
        Kind | None, typer.Option("--kind", metavar="KIND", help="reader, writer, bookie or admin.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Give all records on ZooKeeper these lists.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print the rights that each kind of process needs in the metadata store.

    For etcd, the command prints the etcd commands that make a role for each kind of process. For
    ZooKeeper, the command prints a table with a row for each part of the store and a column for
    each kind.

    With --apply, the command gives a cluster's existing records the access control lists that the
    settings metadata.acl_… describe. Only an admin can use --apply. Use --apply after `cluster
    init`, and after each change of these settings.
    """
    from bookie.metadata.uri import parse_servers, split_uri

    parts = split_uri(metadata)
    kinds = list(Kind) if kind is None else [kind]
    if apply:
        changed = on_store(metadata, lambda store: store.restrict())
        print_record({"restricted_records": changed}, output)
    elif parts.scheme == "etcd":
        scope = parse_servers(metadata, parts).scope
        for one in kinds:
            print("\n".join(etcd_commands(scope, one)))
    else:
        print_records(rights_table(kinds), output, empty="there are no parts")


@app.command("bench")
def bench(
    metadata: Metadata,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds of load.")] = 5.0,
    callers: Annotated[int, typer.Option("--callers", min=1, help="Operations at a time.")] = 16,
    reads: Annotated[
        float, typer.Option("--reads", min=0, max=100, help="Percentage of reads.")
    ] = 50.0,
    size: Annotated[
        int, typer.Option("--size", min=0, max=512 * 1024, help="Bytes of a value.")
    ] = 256,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Read and write temporary keys for some seconds, and print the rate and the latencies."""
    mix = _Mix(callers, reads, size, seconds)
    print_record(on_store(metadata, lambda store: _load(store, mix)), output)


@dataclass(frozen=True, slots=True)
class _Mix:
    """The parameters of a benchmark's load."""

    callers: int
    """The number of concurrent operations; each caller has its own key."""
    reads_percent: float
    value_bytes: int
    seconds: float


async def _load(store: MetadataStore, mix: _Mix) -> dict[str, int | float]:
    """Run a load on temporary keys, and return its rate and latencies.

    The keys are deleted at the end, even if the load is interrupted.
    """
    root = f"/bench-{uuid.uuid4().hex[:8]}"
    value = bytes(mix.value_bytes)
    keys = [f"{root}/{number}" for number in range(mix.callers)]
    reads: list[float] = []
    writes: list[float] = []
    clock = asyncio.get_running_loop().time

    async def repeat(key: str, due: float) -> None:
        """Read or write the key repeatedly, so that `reads_percent` of the operations are reads.

        Before each operation, `due` grows by `reads_percent`. If `due` is then 100 or more, the
        operation is a read, and `due` shrinks by 100.
        """
        while (now := clock()) < began + mix.seconds:
            due += mix.reads_percent
            if due >= 100:
                due -= 100
                await store.get(key)
                reads.append(clock() - now)
            else:
                await store.put(key, value)
                writes.append(clock() - now)
            advance(1)

    try:
        for key in keys:
            await store.put(key, value)
        began = clock()
        with progress_bar("loading", total=None, unit="operations") as advance:
            async with asyncio.TaskGroup() as tasks:
                for number, key in enumerate(keys):
                    # Spread the callers, so that they do not all write at the same time.
                    tasks.create_task(repeat(key, 100.0 * number / mix.callers))
        took = clock() - began
    finally:
        await store.delete_recursive(root)
    count = len(reads) + len(writes)
    return {
        "operations": count,
        "seconds": round(took, 3),
        "operations_per_second": round(count / took),
        **_percentiles("read", reads),
        **_percentiles("write", writes),
    }


def _percentiles(what: str, latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        f"{what}_p{percentile}_ms": round(percentile_of(ordered, percentile) * 1e3, 3)
        for percentile in ((50, 99) if ordered else ())
    }


def _stat(stat: Stat) -> Row:
    return {
        "key": stat.key,
        "version": stat.version,
        "revision": stat.revision,
        "created_ms": stat.created_ms,
        "modified_ms": stat.modified_ms,
        "ephemeral": stat.ephemeral,
    }


def _value(octets: bytes) -> dict[str, str]:
    """Return the field `value` with the text of `octets`; `value_base64` if this is not UTF-8."""
    try:
        return {"value": octets.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(octets).decode()}
