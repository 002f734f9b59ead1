"""``bookie log``: commands for named logs, such as create, append, read, tail and truncate.

A log has one owner at a time. ``append`` and ``roll`` make this process the owner, and end the
writer of the previous owner. If the log has an owner, both commands ask for a confirmation.
Commands that only read a log do not affect its owner.

A place in a log is ``earliest``, ``latest``, an offset, or ``LEDGER:ENTRY``. With ``--output json``
each record has its offset, and its position as ``LEDGER:ENTRY``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.log_arguments import (
    LogArgument,
    PartitionOption,
    parse_place,
    parse_span,
    parse_time,
)
from bookie.cli.namespace import Decisions, changed_policy
from bookie.cli.options import (
    Metadata,
    Output,
    OutputFormat,
    PasswordFile,
    Yes,
    confirm,
    parse_pairs,
    read_password,
)
from bookie.cli.output import Record, print_record, print_records
from bookie.cli.stores import on_cluster, on_instance, on_store
from bookie.errors import FormatError

if TYPE_CHECKING:
    from bookie.api import BookKeeper

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

KeySeparator = Annotated[
    str,
    typer.Option(
        "--key-separator", metavar="SEP", help="The text between a record's key and value."
    ),
]
Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="PLACE",
        help="The first record: earliest, latest, OFFSET or LEDGER:ENTRY; earliest by default.",
    ),
]
StartTime = Annotated[
    str | None,
    typer.Option(
        "--start-time",
        metavar="TIME",
        help="Or the first record of this time or later: ISO 8601 with a zone, or ms since 1970.",
    ),
]


# --- logs and their records ---------------------------------------------------------------------


@app.command("create")
def create(
    log: LogArgument,
    metadata: Metadata,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", min=1, help="Their number, for ever; the policy decides by default."
        ),
    ] = None,
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional", help="Many publishers add ranges in transactions, and no writer."
        ),
    ] = False,
    decisions: Decisions = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a log; policy values that --set does not give come from its namespace."""
    from bookie.log.catalog.log_policy import LogPolicy

    changes = parse_pairs(decisions, "--set KEY=VALUE")
    policy = changed_policy(LogPolicy(), changes) if changes else None

    async def make(bk: BookKeeper) -> Record:
        from bookie.cli.log_access import partitions_of

        await bk.create_log(log, partitions=partitions, transactional=transactional, policy=policy)
        definition, numbered = await partitions_of(bk, log, None)
        return {
            "log": str(numbered[0].name),
            "mode": definition.mode.value,
            "partitions": definition.partitions,
        }

    record = on_cluster(metadata, make)
    if output is OutputFormat.JSON:
        print(json.dumps(record))


@app.command("append")
def append(
    log: LogArgument,
    metadata: Metadata,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The file to append; standard input by default."),
    ] = None,
    key_separator: KeySeparator = "",
    producer: Annotated[
        str,
        typer.Option(
            "--producer",
            metavar="ID",
            help="Number the lines as records of this producer. The same lines, appended again "
            "with the same ID, are not in the log twice.",
        ),
    ] = "",
    partition: PartitionOption = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Become the owner of a log, append lines as records, and give up the ownership.

    When the command succeeds, an ack quorum of bookies has stored every record durably. The key of
    a record selects its partition. Records without a key go to the partitions in turn. If the log
    has an owner, the command asks first.
    """
    from bookie.cli.log_records import append_lines
    from bookie.daemon.loop import run

    password = read_password(password_file)
    _confirm_takeover(metadata, log, partition, yes=yes, question="Append to {log}?", always=False)
    done = run(
        append_lines(
            metadata,
            log,
            file,
            key_separator=key_separator.encode(),
            producer=producer,
            partition=partition,
            password=password,
        )
    )
    if output is OutputFormat.JSON:
        print(json.dumps(done.record()))
    else:
        print(done.sentence(), file=sys.stderr)


def _confirm_takeover(
    metadata: str, log: str, partition: int | None, *, yes: bool, question: str, always: bool
) -> None:
    """Ask for a confirmation if the log has an owner, or if `always` is set."""
    from bookie.cli.log_show import owners_of

    owners = on_store(metadata, lambda store: owners_of(store, log, partition))
    if owners or always:
        asked = question.format(log=log)
        warning = f"It ends the writer {owners}, if that is alive. " if owners else ""
        confirm(warning + asked, yes=yes)


@app.command("read")
def read(
    log: LogArgument,
    metadata: Metadata,
    start: Start = None,
    start_time: StartTime = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--end",
            metavar="PLACE",
            help="The record behind the last one: OFFSET or LEDGER:ENTRY; all by default.",
        ),
    ] = None,
    partition: PartitionOption = None,
    key_separator: KeySeparator = "",
    password_file: PasswordFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print the values of a log's records, one per line; the log's owner is not affected.

    Records of one partition are printed in their order; records of different partitions are printed
    as they arrive. With --key-separator a line begins with the record's key. With --output json
    each line is an object with key, headers, timestamp, offset, position, partition and value.
    """
    _print(log, metadata, start, start_time, end, partition, key_separator, password_file, output)


@app.command("tail")
def tail(
    log: LogArgument,
    metadata: Metadata,
    start: Start = None,
    start_time: StartTime = None,
    new: Annotated[
        bool, typer.Option("--new", help="Start at the next new record instead.")
    ] = False,
    partition: PartitionOption = None,
    key_separator: KeySeparator = "",
    password_file: PasswordFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print records like `bookie log read`, and wait for new records, until Ctrl-C."""
    if new and (start is not None or start_time is not None):
        raise typer.BadParameter("give --start, --start-time or --new, not two of them")
    place = "latest" if new else start
    _print(
        log,
        metadata,
        place,
        start_time,
        None,
        partition,
        key_separator,
        password_file,
        output,
        follow=True,
    )


def _print(
    log: str,
    metadata: str,
    start: str | None,
    start_time: str | None,
    end: str | None,
    partition: int | None,
    key_separator: str,
    password_file: Path | None,
    output: OutputFormat,
    *,
    follow: bool = False,
) -> None:
    from bookie.cli.log_records import print_log
    from bookie.daemon.loop import run

    if start is not None and start_time is not None:
        raise typer.BadParameter("give --start or --start-time, not both")
    run(
        print_log(
            metadata,
            log,
            start=parse_place(start, "--start"),
            start_time=parse_time(start_time, "--start-time"),
            end=parse_place(end, "--end", words=False),
            partition=partition,
            follow=follow,
            key_separator=key_separator.encode(),
            password=read_password(password_file),
            output=output,
        )
    )


@app.command("list")
def list_(
    metadata: Metadata,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAMESPACE", help="Only logs of this one.")
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List all logs, sorted by name.

    If the metadata of logs is damaged, the list omits these logs and the exit status is 1.
    """
    from bookie.cli.log_show import list_all

    damaged: list[str] = []
    records = on_instance(metadata, lambda store: list_all(store, namespace, damaged.append))
    print_records(records, output, empty="there are no logs")
    if damaged:
        raise FormatError(f"not listed, because their metadata is damaged: {', '.join(damaged)}")


@app.command("show")
def show(
    log: LogArgument,
    metadata: Metadata,
    password_file: PasswordFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show a log's definition, its whole policy with the origin of each value, and its partitions.

    `earliest` is the first offset that was not truncated. `end` is the offset after the last
    record; it is empty if too few bookies answer. `bytes` counts only closed ledgers. A crashed
    owner is shown until another writer opens the log.
    """
    from bookie.cli.log_show import describe_log

    password = read_password(password_file)
    on_cluster(metadata, lambda bk: describe_log(bk, log, password, output))


# --- what changes a log ---------------------------------------------------------------------------


@app.command("roll")
def roll(
    log: LogArgument,
    metadata: Metadata,
    partition: PartitionOption = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Take over the log and close its open ledgers, so that the next writer begins a new ledger.

    For example, the open ledgers of a crashed writer can be truncated only after this command. A
    live writer gets LogTakenOverError, and its program has to open the log again. The command asks
    first.
    """
    password = read_password(password_file)
    _confirm_takeover(
        metadata, log, partition, yes=yes, question="Roll the log {log}?", always=True
    )

    async def take_over(bk: BookKeeper) -> list[Record]:
        async with bk.open_log(log, partition=partition, password=password, create=False) as writer:
            return [
                {
                    "partition": number,
                    "epoch": writer.epoch(number),
                    "end": writer.next_offset(number),
                }
                for number in writer.partitions
            ]

    print_records(on_cluster(metadata, take_over), output)


@app.command("truncate")
def truncate(
    log: LogArgument,
    metadata: Metadata,
    before: Annotated[
        str | None,
        typer.Option(
            "--before", metavar="PLACE", help="The first record that stays: OFFSET or LEDGER:ENTRY."
        ),
    ] = None,
    before_time: Annotated[
        str | None,
        typer.Option(
            "--before-time",
            metavar="TIME",
            help="Or keep all records from this time on, and perhaps some earlier records.",
        ),
    ] = None,
    partition: PartitionOption = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Remove the oldest records of a log; its owner continues to write. The command asks first.

    The command never removes records in open ledgers; `bookie log roll` closes these ledgers. The
    command also removes records that a cursor has not consumed yet.
    """
    if (before is None) == (before_time is None):
        raise typer.BadParameter("give --before or --before-time")
    place = parse_place(before, "--before", words=False)
    moment = parse_time(before_time, "--before-time")
    password = read_password(password_file)
    confirm(f"Remove the records of {log} before {before or before_time}?", yes=yes)

    async def run(bk: BookKeeper) -> list[Record]:
        from bookie.cli.log_access import partitions_of, truncate_partition

        _, partitions = await partitions_of(bk, log, partition, place)
        return [
            {
                "partition": one.number,
                "earliest": await truncate_partition(bk, one, place, moment, password),
            }
            for one in partitions
        ]

    print_records(on_cluster(metadata, run), output)


@app.command("delete")
def delete(
    log: LogArgument,
    metadata: Metadata,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete a log with all its records, its cursors and its policy. The command asks first.

    If a deletion is interrupted, run the command again, or run `bookie log sweep`.
    """
    confirm(f"Delete the log {log} with all its records?", yes=yes)

    on_cluster(metadata, lambda bk: bk.delete_log(log))
    if output is OutputFormat.JSON:
        print(json.dumps({"log": log, "deleted": True}))


# --- cursors ----------------------------------------------------------------------------------


@app.command("cursors")
def cursors(log: LogArgument, metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """List the cursors of a log; for each partition, show the cursor's offset and last owner."""

    async def run(bk: BookKeeper) -> list[Record]:
        from bookie.env.clock import moment_text

        return [
            {
                "cursor": name,
                "partition": number,
                "offset": cursor.offset,
                "protected": cursor.is_protected,
                "epoch": cursor.epoch,
                "changed": moment_text(cursor.committed_ms),
                "owner": cursor.owner,
            }
            for name, found in (await bk.cursors(log).all()).items()
            for number, cursor in sorted(found.items())
        ]

    print_records(on_cluster(metadata, run), output, empty=f"the log {log} has no cursors")


@app.command("reset")
def reset(
    log: LogArgument,
    cursor: Annotated[str, typer.Argument(metavar="CURSOR", help="The cursor's name.")],
    metadata: Metadata,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="The next record to consume: earliest, latest, OFFSET or LEDGER:ENTRY.",
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time", metavar="TIME", help="Or the first record of this time or later."
        ),
    ] = None,
    partition: PartitionOption = None,
    password_file: PasswordFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Move a cursor forwards or back; a consumer that holds the cursor gets CursorLostError.

    If the cursor belongs to a consumer group, the group's members continue at the new place
    automatically.
    """
    if (to is None) == (to_time is None):
        raise typer.BadParameter("give --to or --to-time")
    place, moment = parse_place(to, "--to"), parse_time(to_time, "--to-time")
    password = read_password(password_file)

    async def run(bk: BookKeeper) -> list[Record]:
        from bookie.cli.log_access import partitions_of

        await partitions_of(bk, log, partition, place)
        offsets = await bk.cursors(log, password=password).reset(
            cursor, place, time=moment, partition=partition
        )
        return [{"partition": number, "offset": at} for number, at in sorted(offsets.items())]

    print_records(on_cluster(metadata, run), output)


@app.command("lag")
def lag(
    log: LogArgument,
    metadata: Metadata,
    cursor: Annotated[
        str | None, typer.Argument(metavar="[CURSOR]", help="One cursor; all by default.")
    ] = None,
    password_file: PasswordFile = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show for each cursor and partition how many records are not consumed yet."""
    password = read_password(password_file)

    async def run(bk: BookKeeper) -> list[Record]:
        return [
            {
                "cursor": one.name,
                "partition": one.partition.number,
                "offset": one.cursor.offset,
                "end": one.end_offset,
                "lag": one.lag,
            }
            for one in await bk.cursors(log, password=password).status(cursor)
        ]

    print_records(on_cluster(metadata, run), output, empty=f"the log {log} has no cursors")


# --- sweep ------------------------------------------------------------------------------------


@app.command("sweep")
def sweep(
    metadata: Metadata,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="SPAN", help="Only ledgers of this age: 90s, 15m, 24h or 7d."
        ),
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what it would do.")] = False,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Finish the interrupted work of crashed processes in all logs, and apply retention.

    Run the sweep once a day. The sweep deletes orphaned ledgers: they were made for a log, but no
    log names them. The sweep also finishes interrupted deletions of logs.

    Exit status 1 means that a part of the work failed; the next sweep tries it again.
    """
    seconds = parse_span(older_than, "--older-than")

    done = on_cluster(
        metadata, lambda bk: bk.sweep_logs(older_than_seconds=seconds, dry_run=dry_run)
    )
    print_record(
        {
            "dry_run": dry_run,
            "ledgers": sorted(done.ledgers),
            "chunks": {str(one): numbers for one, numbers in done.chunks.items()},
            "deletions": [str(name) for name in done.deletions],
            "truncated": {str(one): offset for one, offset in done.truncated.items()},
            "failures": dict(done.failures),
        },
        output,
    )
    return int(bool(done.failures))
