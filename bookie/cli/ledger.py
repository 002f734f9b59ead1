"""``bookie ledger``: create, append to, read, tail, recover, explain and delete ledgers.

A ledger has only one writer for its whole life. On the command line, this writer is one run of
``ledger append``. ``create`` makes a ledger without a writer. The first ``append`` claims the
ledger, writes entries, and closes the ledger. If two ``append`` commands start at the same time, a
compare-and-set lets only one of them claim the ledger. If an ``append`` dies, the ledger stays open
until ``recover`` or, after repair.open_ledger_grace_seconds, the auditor closes the ledger.

Entries are lines of text. With ``--raw``, entries are pieces of a file, and ``read --raw`` prints
the same bytes.
"""

from __future__ import annotations

import base64
import json
import sys
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bookie.cli.options import (
    AckQuorum,
    Ensemble,
    LedgerArgument,
    Metadata,
    Output,
    OutputFormat,
    PasswordFile,
    WriteQuorum,
    Yes,
    confirm,
    parse_pairs,
    read_password,
)
from bookie.cli.output import Record, format_moment, print_record, print_records
from bookie.cli.repair import repair, set_quorum
from bookie.cli.stores import on_cluster, on_store, open_client
from bookie.errors import BadRequestError, BookieError, FormatError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from bookie.api import BookKeeper
    from bookie.entry.entry import Entry
    from bookie.ledger.metadata import LedgerMetadata
    from bookie.ledger.recover.explanation import LedgerExplanation, SlotFindings, TailRange
    from bookie.metadata.store import MetadataStore

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

_CURRENT = {True: "current", False: "another", None: "unknown"}


# --- metadata only ----------------------------------------------------------------------------


@app.command("create")
def create(
    metadata: Metadata,
    ensemble: Ensemble = 3,
    write_quorum: WriteQuorum = 3,
    ack_quorum: AckQuorum = 2,
    digest: Annotated[
        Literal["crc32c", "crc32", "hmac", "dummy"],
        typer.Option("--digest", case_sensitive=False, help="Checksum of each entry."),
    ] = "crc32c",
    custom: Annotated[
        list[str] | None,
        typer.Option("--custom", metavar="NAME=VALUE", help="Custom metadata; may be repeated."),
    ] = None,
    allow_degraded: Annotated[
        bool,
        typer.Option(
            "--allow-degraded",
            help="Leave slots vacant if there are too few bookies. Entries have fewer copies then.",
        ),
    ] = False,
    password_file: PasswordFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make an open ledger without entries and print its id.

    With --allow-degraded, the command succeeds if each entry can be written to an ack quorum of
    bookies. Slots without a bookie are named vacant.0, vacant.1, … in the ledger's metadata. When a
    writer claims the ledger, bookies that have become available fill the vacant slots. `bookie
    ledger check-placement` finds ledgers with vacant slots.
    """
    from bookie.api import UNCLAIMED

    pairs = parse_pairs(custom, "NAME=VALUE")
    custom_metadata = {name: value.encode() for name, value in pairs.items()}

    password = read_password(password_file)

    async def make(client: BookKeeper) -> int:
        writer = await client.create_ledger(
            ensemble_size=ensemble,
            write_quorum_size=write_quorum,
            ack_quorum_size=ack_quorum,
            password=password,
            digest_type=digest,
            custom_metadata={**custom_metadata, UNCLAIMED: b""},
            allow_degraded=allow_degraded,
        )
        return writer.ledger_id

    ledger_id = on_cluster(metadata, make)
    if output is OutputFormat.JSON:
        print(json.dumps({"ledger_id": ledger_id}))
    else:
        print(ledger_id)


@app.command("list")
def list_ledgers(
    metadata: Metadata,
    after: Annotated[int, typer.Option("--after", help="Only ids greater than this.")] = -1,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="At most so many ledgers.")
    ] = 1000,
    bookie: Annotated[
        str,
        typer.Option("--bookie", metavar="BOOKIE", help="Only ledgers that name this bookie."),
    ] = "",
    output: Output = OutputFormat.TABLE,
) -> None:
    """List ledgers with their state and size, sorted by id.

    If the metadata of ledgers is damaged, the list omits these ledgers and the exit status is 1.
    """
    damaged: list[int] = []
    records = on_store(
        metadata, lambda store: _list(store, after, limit + 1, bookie, damaged.append)
    )
    none = f"no ledger names bookie {bookie}" if bookie else "there are no ledgers"
    print_records(records[:limit], output, empty=none)
    if len(records) > limit:
        last = records[limit - 1]["ledger_id"]
        print(f"there are more: add --after {last}, or --limit", file=sys.stderr)
    if damaged:
        ids = ", ".join(map(str, damaged))
        raise FormatError(f"not listed, because their metadata is damaged: {ids}")


async def _list(
    store: MetadataStore,
    after: int,
    limit: int,
    bookie: str,
    on_damaged: Callable[[int], object],
) -> list[Record]:
    from bookie.cluster.layout import read_layout
    from bookie.ledger.catalog.ledgers import LedgerManager

    records: list[Record] = []
    await read_layout(store)  # raises an error if the URI is mistyped and names no cluster
    async for versioned in LedgerManager(store).list_readable(on_damaged, after):
        found = versioned.value
        if bookie and not any(bookie in one.bookies for one in found.fragments):
            continue
        records.append(
            {
                "ledger_id": found.ledger_id,
                "state": found.state.name,
                "ensemble": found.ensemble_size,
                "write_quorum": found.write_quorum_size,
                "ack_quorum": found.ack_quorum_size,
                "fragments": len(found.fragments),
                "entries": found.last_entry_id + 1 if found.is_closed else None,
                "bytes": found.length if found.is_closed else None,
            }
        )
        if len(records) == limit:
            break
    return records


@app.command("show")
def show(ledger: LedgerArgument, metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """Show all metadata of one ledger."""
    found, process = on_store(metadata, lambda store: _read_with_writer(store, ledger))
    summary = {
        **_describe(found),
        "writer": found.writer_id or None,
        # None if the writer's session has ended; repair later recovers and closes such a ledger.
        "writer_process": process,
    }
    fragments: list[Record] = [
        {"first_entry_id": fragment.first_entry_id, "bookies": fragment.bookies}
        for fragment in found.fragments
    ]
    if output is OutputFormat.JSON:
        print(json.dumps({**summary, "fragments": fragments}, indent=2))
        return
    print_record(summary, output)
    print()
    print_records(fragments, output)


async def _read_metadata(store: MetadataStore, ledger_id: int) -> LedgerMetadata:
    from bookie.cluster.layout import read_layout
    from bookie.ledger.catalog.ledgers import LedgerManager

    await read_layout(store)
    return (await LedgerManager(store).read(ledger_id)).value


async def _read_with_writer(
    store: MetadataStore, ledger_id: int
) -> tuple[LedgerMetadata, str | None]:
    """Return a ledger's metadata, and the writer's host and process.

    If the writer's session has ended, the second result is None.
    """
    from bookie.cluster import keys

    found = await _read_metadata(store, ledger_id)
    record = await store.get(keys.writer(found.writer_id)) if found.writer_id else None
    return found, None if record is None else record.value.decode("utf-8", "backslashreplace")


def _describe(found: LedgerMetadata) -> Record:

    return {
        "ledger_id": found.ledger_id,
        "state": found.state.name,
        "ensemble": found.ensemble_size,
        "write_quorum": found.write_quorum_size,
        "ack_quorum": found.ack_quorum_size,
        "digest": found.digest_type.name.lower(),
        # Never show the key, with which every client could write to the ledger.
        "password": found.has_password,
        "created": format_moment(found.ctime_ms) if found.ctime_ms >= 0 else None,
        "last_entry_id": found.last_entry_id if found.is_closed else None,
        "bytes": found.length if found.is_closed else None,
        "custom": {
            name: value.decode("utf-8", "backslashreplace")
            for name, value in sorted(found.custom_metadata.items())
        },
    }


@app.command("check-placement")
def check_placement(
    metadata: Metadata,
    ledgers: Annotated[
        list[int] | None,
        typer.Argument(metavar="[LEDGER]…", min=0, help="The ledgers; all of them by default."),
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Check that the copies of each entry are in as many domains as the placement policy requires.

    Domains are racks, zones or regions: see `placement.policy` in `bookie cluster settings`. The
    current label of a bookie names its domain. A bookie without the label does not count as a
    domain. Each line of the output shows a fragment with entries. For each entry, the command
    counts the domains that hold a copy; `spans` is the smallest of these counts in the fragment.

    Exit status 1 means that a fragment spans too few domains, or has vacant slots.
    """
    damaged: list[int] = []
    records = on_store(
        metadata, lambda store: _check_placement(store, ledgers or [], damaged.append)
    )
    print_records(records, output, empty="there are no entries to check")
    if damaged:
        ids = ", ".join(map(str, damaged))
        raise FormatError(f"not checked, because their metadata is damaged: {ids}")
    return int(not all(record["right"] for record in records))


async def _check_placement(
    store: MetadataStore, ledger_ids: Sequence[int], on_damaged: Callable[[int], object]
) -> list[Record]:
    from bookie.config import Sources
    from bookie.ledger.place.placement_check import PlacementCheck

    return [
        {
            "ledger_id": found.ledger_id,
            "first_entry_id": found.first_entry_id,
            "right": found.is_right,
            "spans": found.spans,
            "wanted": found.wanted,
            "vacant": found.vacant,
            "bookies": found.bookies,
            "domains": [domain or "?" for domain in found.domains],
        }
        async for found in PlacementCheck(store, Sources.read()).run(ledger_ids, on_damaged)
    ]


# --- entries ----------------------------------------------------------------------------------


@app.command("append")
def append(
    ledger: LedgerArgument,
    metadata: Metadata,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The file to append; standard input by default."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Append the bytes in pieces.")] = False,
    chunk_bytes: Annotated[
        int, typer.Option("--chunk-bytes", min=1, max=4_000_000, help="Size of a piece.")
    ] = 65536,
    no_close: Annotated[
        bool, typer.Option("--no-close", help="Leave the ledger open when done.")
    ] = False,
    password_file: PasswordFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Append lines to a ledger that has no writer yet; with --raw, append the bytes of a file.

    The command closes the ledger, unless --no-close is given. When the command succeeds, an ack
    quorum of bookies has stored every entry durably.
    """
    from bookie.cli.entries import append_stream
    from bookie.daemon.loop import run

    summary = run(
        append_stream(
            metadata,
            ledger,
            file,
            chunk_bytes=chunk_bytes if raw else 0,
            password=read_password(password_file),
            close=not no_close,
        )
    )
    if output is OutputFormat.JSON:
        print(json.dumps(summary))
    else:
        print(f"appended {summary['entries']} entries, {summary['bytes']} bytes", file=sys.stderr)


@app.command("read")
def read(
    ledger: LedgerArgument,
    metadata: Metadata,
    first: Annotated[int, typer.Option("--first", min=0, help="The first entry.")] = 0,
    last: Annotated[
        int | None,
        typer.Option("--last", min=0, help="The last entry; the ledger's last by default."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the bytes of the entries, nothing between them.")
    ] = False,
    unconfirmed: Annotated[
        bool,
        typer.Option(
            "--unconfirmed",
            help="Go on beyond the last add confirmed. A recovery may drop what comes then.",
        ),
    ] = False,
    password_file: PasswordFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print entries, one per line, without fencing the writer; with --raw, print only their bytes.

    With --output json each entry is a JSON object on its own line.
    """
    from bookie.cli.entries import read_range, read_unconfirmed
    from bookie.daemon.loop import run

    read_entries = read_unconfirmed if unconfirmed else read_range
    password = read_password(password_file)
    run(_print(read_entries(metadata, ledger, first, last, password), raw, output))


@app.command("tail")
def tail(
    ledger: LedgerArgument,
    metadata: Metadata,
    start: Annotated[
        int | None,
        typer.Option("--start", min=0, help="The first entry; the ledger's first by default."),
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Start at the next new entry instead.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the bytes of the entries, nothing between them.")
    ] = False,
    password_file: PasswordFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print entries and wait for new entries, until Ctrl-C or until the ledger is closed."""
    from bookie.cli.entries import follow
    from bookie.daemon.loop import run

    if new and start is not None:
        raise typer.BadParameter("give --start or --new, not both")
    start = None if new else start or 0
    run(_print(follow(metadata, ledger, start, read_password(password_file)), raw, output))


async def _print(
    source: AsyncGenerator[Sequence[Entry], None], raw: bool, output: OutputFormat
) -> None:

    out = sys.stdout.buffer
    async with aclosing(source) as batches:
        async for entries in batches:
            if output is OutputFormat.JSON:
                out.write(b"".join(_as_json(entry) for entry in entries))
            elif raw:
                out.writelines(entry.payload for entry in entries)
            else:
                out.write(b"".join(entry.payload + b"\n" for entry in entries))
            out.flush()


def _as_json(entry: Entry) -> bytes:
    record: dict[str, object] = {"entry_id": entry.entry_id}
    try:
        record["payload"] = entry.payload.decode("utf-8")
    except UnicodeDecodeError:
        record["payload_base64"] = base64.b64encode(entry.payload).decode("ascii")
    return json.dumps(record).encode() + b"\n"


# --- recover, explain, delete -----------------------------------------------------------------


@app.command("recover")
def recover(
    ledger: LedgerArgument,
    metadata: Metadata,
    password_file: PasswordFile = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Even if another bookie has entries that would be lost."),
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Fence the ledger's writer, decide which entry is the last, and close the ledger.

    The command refuses if a bookie outside the last ensemble has later entries. Such entries mean
    that the metadata may come from an old backup. With --force the command closes the ledger
    without these entries.
    """
    password = read_password(password_file)
    if not force and (reason := _find_unnamed_entries(metadata, ledger)):
        raise BadRequestError(f"{reason}; give --force to close the ledger without these entries")
    reader = on_cluster(
        metadata, lambda client: client.open_ledger(ledger, password=password, recover=True)
    )
    _forget_failed_recoveries(metadata, ledger)
    print_record(
        {
            "ledger_id": ledger,
            "state": "CLOSED",
            "last_entry_id": reader.last_entry_id,
            "bytes": reader.metadata.length,
        },
        output,
    )


def _find_unnamed_entries(uri: str, ledger_id: int) -> str:
    """Return a sentence about later entries on bookies outside the last ensemble.

    If no such bookie has later entries, or if the ledger is closed, return an empty text.
    """
    from bookie.daemon.loop import run
    from bookie.ledger.recover.unnamed_entries import find_unnamed_entries

    async def find() -> str:
        async with open_client(uri) as (client, _):
            found = (await client.ledgers.read_latest(ledger_id)).value
            if found.is_closed:
                return ""
            return await find_unnamed_entries(client.pool, client.directory.all(), found)

    return run(find())


def _forget_failed_recoveries(metadata: str, ledger: int) -> None:
    """Delete the record of a ledger's failed recovery, which `cluster health` would report."""

    async def forget(store: MetadataStore) -> None:
        from bookie.ledger.copies.departures import RepairFailures
        from bookie.ledger.underreplicated import NOT_RECOVERED

        failures = RepairFailures(store)
        found = await failures.find(ledger)
        if found is not None and found.outcome == NOT_RECOVERED:
            await failures.remove(ledger)

    with suppress(BookieError):  # after an error, the auditor removes the record later
        on_store(metadata, forget)


@app.command("explain")
def explain(ledger: LedgerArgument, metadata: Metadata, output: Output = OutputFormat.TABLE) -> int:
    """Show where a recovery would end the ledger now, and how each bookie answered.

    The command asks the bookies of the ledger's last ensemble for their entries and fences. The
    command asks all other bookies if they have later entries, which a recovery would lose. The
    command changes nothing.

    Exit status 1 means that a recovery could not decide now, or that bookies outside the last
    ensemble have later entries.
    """
    found = on_cluster(metadata, lambda client: client.explain_ledger(ledger))
    unnamed = _find_unnamed_entries(metadata, ledger)
    _print_explanation(found, unnamed, output)
    return int(bool(unnamed) or not found.is_decidable)


def _print_explanation(found: LedgerExplanation, unnamed: str, output: OutputFormat) -> None:
    """Print the metadata, each bookie's answer, the ledger's tail and the recovery's verdict.

    The argument `unnamed` is the result of `_find_unnamed_entries`.
    """
    metadata = found.metadata
    summary: Record = {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.name,
        "metadata_version": found.version,
        "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum_size,
        "ack_quorum": metadata.ack_quorum_size,
        "last_add_confirmed": None if metadata.is_closed else found.last_add_confirmed,
        "last_entry_id": metadata.last_entry_id if metadata.is_closed else None,
        "bytes": metadata.length if metadata.is_closed else None,
    }
    fragments: list[Record] = [
        {"first_entry_id": fragment.first_entry_id, "bookies": fragment.bookies}
        for fragment in metadata.fragments
    ]
    slots = [_slot_record(slot) for slot in found.slots]
    tail = [_tail_record(part) for part in found.tail]
    verdict = found.verdict()
    if output is OutputFormat.JSON:
        whole = {
            **summary,
            "fragments": fragments,
            "slots": [
                {
                    **record,
                    "registered_incarnation": slot.registered_incarnation,
                    "running_incarnation": slot.incarnation,
                    "cookie_incarnation": slot.cookie_incarnation,
                }
                for record, slot in zip(slots, found.slots, strict=True)
            ],
            "tail": tail,
            "decidable": found.is_decidable,
            "verdict": verdict,
            "unnamed_entries": unnamed or None,
        }
        print(json.dumps(whole, indent=2))
        return
    print_record(summary, output)
    print()
    print_records(fragments, output)
    if slots:
        print()
        print_records(slots, output)
        print()
        print_records(tail, output, empty="no bookie that answered has entries beyond the LAC")
    print()
    for sentence in [*verdict, unnamed] if unnamed else verdict:
        print(sentence)


def _slot_record(slot: SlotFindings) -> Record:
    return {
        "slot": slot.slot,
        "bookie": slot.bookie_id,
        "registered": slot.registration,
        "incarnation": _CURRENT[slot.is_current],
        "answer": slot.answer,
        "fenced": slot.fenced,
        "last_add_confirmed": slot.last_add_confirmed,
        "last_entry_id": slot.last_entry_id,
    }


def _tail_record(part: TailRange) -> Record:
    return {
        "first_entry_id": part.first_entry_id,
        "last_entry_id": part.last_entry_id,
        "copies": len(part.holders),
        "bookies": part.holders,
    }


@app.command("delete")
def delete(
    ledger: LedgerArgument,
    metadata: Metadata,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete a ledger with all its entries. The command asks first."""
    confirm(f"Delete ledger {ledger} with all its entries?", yes=yes)
    on_cluster(metadata, lambda client: client.delete_ledger(ledger))
    _forget_failed_recoveries(metadata, ledger)
    if output is OutputFormat.JSON:
        print(json.dumps({"ledger_id": ledger, "deleted": True}))


app.command("repair")(repair)
app.command("set-quorum")(set_quorum)
