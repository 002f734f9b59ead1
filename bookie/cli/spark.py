"""``bookie spark``: runs jobs on Spark, in this process or on a Spark cluster.

Each command starts a session on ``--master``, runs one function of `bookie.spark.jobs`, and stops
the session.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.options import Metadata, Output, OutputFormat, parse_pairs
from bookie.cli.output import Record, print_record, print_records
from bookie.cli.stores import on_cluster, on_store
from bookie.errors import ConfigurationError

if TYPE_CHECKING:
    from bookie.spark.jobs.moving import Moved
    from bookie.spark.session import Session

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

EXIT_DAMAGED = 1
"""The exit status of `audit` and `repair` if a copy is damaged, or could not be checked."""

Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark's master: local[*] is this process; spark://HOST:PORT, yarn or k8s://… are "
        "clusters, sc://HOST:PORT is a Spark Connect server.",
    ),
]

Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="KEY=VALUE",
        help="A setting of Spark, such as spark.executor.memory=2g. May be given several times.",
    ),
]

Report = Annotated[
    str,
    typer.Option(
        "--report", metavar="DIR", help="The report's directory, also as hdfs:// or s3a://."
    ),
]

Page = Annotated[
    str | None,
    typer.Option(
        "--page",
        metavar="FILE",
        help="The one-page summary, as HTML. By default it is beside the report if that is on this "
        "machine.",
    ),
]

Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Spark's notes on the progress of this job; of this job alone.",
    ),
]

Create = Annotated[
    bool, typer.Option("--create", help="Make the log if it does not exist, transactional.")
]

Partitions = Annotated[
    int | None,
    typer.Option("--partitions", metavar="N", help="Partitions of a log that --create makes."),
]

SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of Spark's for what is read, such as sep=';'. May be given several times.",
    ),
]

Quarantine = Annotated[
    str | None,
    typer.Option(
        "--quarantine",
        metavar="DIR",
        help="The directory of bad rows, as Parquet; CHECKPOINT/quarantine by default.",
    ),
]

TooLarge = Annotated[
    str,
    typer.Option(
        "--too-large",
        metavar="WHAT",
        help="For rows larger than a record may be: fail, or quarantine.",
    ),
]

TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Go on with a checkpoint that was used before, though nothing says that it belongs to "
        "this target.",
    ),
]


@contextmanager
def spark_session(
    name: str, metadata: str, master: str, conf: list[str] | None
) -> Iterator[Session]:
    """Open a Spark session for one command, and stop the session at the end of the block.

    A session takes seconds to start. So the function first checks that the store of `metadata`
    holds a cluster of bookies.

    Raises:
        ConfigurationError: pyspark or pyarrow is not installed.
        CannotStartError: Spark does not start.
        BookieError: the store holds no cluster, or a Spark job failed; the message says why.
    """
    _require_spark()
    settings = parse_pairs(conf, "--conf KEY=VALUE")
    from bookie.cluster.instance import read_instance_id
    from bookie.spark.session import open_session, plain_error, stop_last_session

    on_store(metadata, read_instance_id)

    session = open_session(name, master, settings)
    try:
        yield session
    except Exception as error:
        plain = plain_error(error)
        if plain is None:
            raise
        raise plain from error
    finally:
        stop_last_session(session)


def _require_spark() -> None:
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise ConfigurationError(
            "Spark is missing: install it with `pip install 'bookie[spark]'`; it also needs Java 17"
        )


@app.command("audit")
def audit(
    metadata: Metadata,
    report: Report,
    master: Master = "local[*]",
    conf: Conf = None,
    ledgers: Annotated[
        str | None,
        typer.Option("--ledgers", metavar="IDS", help="Only these, such as 1,2,10-20."),
    ] = None,
    page: Page = None,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Read all copies of all entries, each from its own bookie, and verify their digests.

    The command writes the verdicts as Parquet to DIR/verdicts. Exit status 0 means that every copy
    is right. Exit status 1 means that a copy is damaged, or that a bookie did not answer.
    """
    with spark_session("audit", metadata, master, conf) as spark:
        from bookie.spark.jobs.audit import audit as run
        from bookie.spark.jobs.audit import audit_page, write_page

        found = run(spark, metadata, report, ledgers=ledgers)
    written = write_page(audit_page(found), report, "audit.html", page)
    records: list[Record] = [asdict(one) for one in found.counts]
    if output is OutputFormat.JSON:
        print_record(
            {
                "ledgers": found.ledgers,
                "damaged_ledgers": found.damaged_ledgers,
                "whole": found.is_whole,
                "verdicts": {f"{one.bookie} {one.verdict}": one.entries for one in found.counts},
            },
            output,
        )
    else:
        print_records(records, output, empty="there are no ledgers")
        print()
        for one in found.examples:
            words = f"ledger {one.ledger_id}: {one.entries} entries {one.verdict}"
            where = f" on {one.bookie}" if one.bookie else ""
            why = f" ({one.detail})" if one.detail else ""
            print(f"{words}{where}: {one.ranges}{why}")
        print(f"{found.sentence}. The page is {written}." if written else f"{found.sentence}.")
    return 0 if found.is_whole else EXIT_DAMAGED


@app.command("repair")
def repair(
    metadata: Metadata,
    report: Report,
    master: Master = "local[*]",
    conf: Conf = None,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Copy entries that an audit found missing, misplaced or corrupt to their proper bookies.

    The command copies entries byte for byte from a verified copy. If the command is interrupted,
    run it again. The command writes the outcomes as Parquet to DIR/repairs. Exit status 1 means
    that some damage was not repaired, or that the audit could not judge some copies.
    """
    with spark_session("repair", metadata, master, conf) as spark:
        from bookie.spark.jobs.repair import repair as run

        done = run(spark, metadata, report)
    print_record(
        {**done.copies, **done.left, "entries": done.entries, "packet_bytes": done.packet_bytes},
        output,
    )
    if not done.is_whole:
        print(f"{done.sentence}.", file=sys.stderr)
    return 0 if done.is_whole else EXIT_DAMAGED


@app.command("compact")
def compact(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log's name.")],
    metadata: Metadata,
    small_bytes: Annotated[
        str, typer.Option("--small-bytes", metavar="SIZE", help="Only what is smaller is joined.")
    ] = "64MiB",
    target_bytes: Annotated[
        str, typer.Option("--target-bytes", metavar="SIZE", help="The most that a ledger gets.")
    ] = "1GiB",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be joined.")
    ] = False,
    password_file: Annotated[
        str | None,
        typer.Option("--password-file", metavar="FILE", help="A file on every executor."),
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Join small ledgers of a log: copy them into few large ledgers, which replace them.

    Records and offsets stay the same, and writers and readers continue. If the command is
    interrupted, run it again. Two runs at the same time do no harm. Exit status 1 means that some
    small ledgers should have been joined, but were not.
    """
    from bookie.log.compact.plan import CompactionLimits

    limits = CompactionLimits(
        _size(small_bytes, "--small-bytes"), _size(target_bytes, "--target-bytes")
    )
    limits.validate()
    if dry_run:
        plan = on_cluster(metadata, lambda bk: bk.maintenance().plan_compaction(log, limits))
        groups: list[Record] = [
            {
                "partition": one.partition.number,
                "offset": one.ranges[0].base_offset,
                "ranges": len(one.ranges),
                "ledgers": one.ledgers,
                "entries": one.entries,
                "bytes": one.size_bytes,
            }
            for one in plan.groups
        ]
        print_records(groups, output, empty="there is nothing to join")
        for reason in plan.left.values():
            print(f"left: {reason}", file=sys.stderr)
        return int(bool(plan.left))
    with spark_session("compact", metadata, master, conf) as spark:
        from bookie.spark.jobs.compact import compact as run

        done = run(spark, metadata, log, limits, password_file=password_file)
    print_record({**asdict(done), "left": list(done.left)}, output)
    return int(bool(done.left))


def _size(text: str, option: str) -> int:
    from bookie.config.quantities import parse_size

    try:
        found = parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}", param_hint=option) from error
    assert isinstance(found, int), "what is text becomes a number"
    return found


@app.command("stats")
def stats(
    metadata: Metadata,
    master: Master = "local[*]",
    conf: Conf = None,
    page: Page = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show statistics from the metadata: sizes, rates, skew, and copies by bookie and rack."""
    with spark_session("stats", metadata, master, conf) as spark:
        from bookie.spark.jobs.audit import write_page
        from bookie.spark.jobs.stats import stats as run
        from bookie.spark.jobs.stats import stats_page

        found = run(spark, metadata)
    if page is not None:
        write_page(stats_page(found), "", "", page)
    totals: Record = {
        "ledgers": found.ledgers,
        "open_ledgers": found.open_ledgers,
        "entries": found.entries,
        "payload_bytes": found.payload_bytes,
        "median_ledger_bytes": found.median_bytes,
        "p95_ledger_bytes": found.p95_bytes,
        "largest_ledger_bytes": found.largest_bytes,
        "skew": found.skew,
        "bytes_by_rack": found.racks,
    }
    if output is OutputFormat.JSON:
        lists = ("bookies", "logs", "days")
        print(json.dumps({**totals, **{name: asdict(found)[name] for name in lists}}, indent=2))
        return
    print_record({**totals, "bytes_by_rack": {k or "-": v for k, v in found.racks.items()}}, output)
    for rows in (found.bookies, found.logs, found.days):
        print()
        print_records([asdict(one) for one in rows], output)


@app.command("prepare")
def prepare() -> None:
    """Write an archive of Spark's classes, so that later local jobs on this machine start sooner.

    The command takes about half a minute. The archive needs 190 MB in the user's cache directory.
    Run the command again after you have installed another version of Spark or Java. You may delete
    the archive at any time.
    """
    import asyncio

    _require_spark()
    path = asyncio.run(_prepare())
    print(f"local jobs start sooner from now on, by {path}")


async def _prepare() -> Path:
    """Run the jobs of `prepare` on a temporary local cluster; return the archive's path."""
    import asyncio
    import tempfile

    from bookie.daemon.local.supervisor import local_cluster
    from bookie.spark.jobs.prepare import prepare as run

    with tempfile.TemporaryDirectory(prefix="bookie-prepare-") as scratch:
        async with local_cluster(Path(scratch, "cluster")) as cluster:
            return await asyncio.to_thread(run, cluster.metadata_uri, Path(scratch))


@app.command("package")
def package(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the zip.")],
) -> None:
    """Write a zip of this package for `spark-submit --py-files`, for machines without the wheel.

    The zip does not contain the libraries that the package needs, because they have compiled parts.
    Install these libraries on every machine; the command lists them on standard error.
    """
    _require_spark()
    from bookie.spark.package import requirements, write_package

    print(write_package(directory))
    print("the executors also need:", *requirements(), sep="\n  ", file=sys.stderr)
    print(
        "register the source in your job: spark.dataSource.register(BookKeeperSource)",
        file=sys.stderr,
    )


@app.command("export")
def export(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log's name.")],
    target: Annotated[
        str, typer.Argument(metavar="DIR", help="The directory of data and quarantine.")
    ],
    metadata: Metadata,
    checkpoint: Checkpoint,
    value_format: Annotated[
        str, typer.Option("--value-format", metavar="FORMAT", help="bytes, json or csv.")
    ] = "bytes",
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="DDL",
            help="The columns of json and csv, such as 'id BIGINT, name STRING'.",
        ),
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            "--partition-by",
            metavar="COLUMN",
            help="A column that becomes a directory. Repeatable.",
        ),
    ] = None,
    password_file: Annotated[
        str | None,
        typer.Option("--password-file", metavar="FILE", help="A file on every machine."),
    ] = None,
    take_over: TakeOver = False,
    master: Master = "local[*]",
    conf: Conf = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write the new records of a log as Parquet, each record exactly once.

    The next run with the same checkpoint continues where this run ended. Use DIR only for this log
    and this checkpoint. Rows whose value does not fit the schema are written to DIR/quarantine.
    """
    with spark_session("export", metadata, master, conf) as spark:
        from bookie.spark.jobs.export import (
            ExportPlan,
            export_log,
            parse_schema,
            quarantine_of,
            quarantined_rows,
        )

        columns = None if schema is None else parse_schema(schema)
        plan = ExportPlan(target, value_format, columns, tuple(partition_by or ()))
        before = quarantined_rows(spark, target)
        rows = export_log(
            spark,
            metadata,
            log,
            plan,
            checkpoint=checkpoint,
            password_file=password_file,
            takes_over=take_over,
        )
        quarantined = max(0, quarantined_rows(spark, target) - before)
    quarantine = quarantine_of(target)
    print_record({"rows": rows, "quarantined": quarantined, "quarantine": quarantine}, output)
    _tell_quarantine(quarantined, quarantine)


@app.command("ingest")
def ingest(
    files: Annotated[
        str, typer.Argument(metavar="FILES", help="A directory or pattern, also as s3a://.")
    ],
    log: Annotated[str, typer.Argument(metavar="LOG", help="A transactional log.")],
    metadata: Metadata,
    checkpoint: Checkpoint,
    file_format: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="text, json, csv, parquet or binaryFile."),
    ] = "text",
    key: Annotated[
        str | None, typer.Option("--key", metavar="COLUMN", help="The column that is the key.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="DDL",
            help="The columns that files have, such as 'id BIGINT, name STRING'.",
        ),
    ] = None,
    header_check: Annotated[
        str,
        typer.Option(
            "--header-check",
            metavar="WHAT",
            help="For files with other columns than the schema: fail, quarantine, or any, which "
            "takes them as they are.",
        ),
    ] = "fail",
    option: SourceOption = None,
    max_bytes_per_trigger: Annotated[
        str | None,
        typer.Option(
            "--max-bytes-per-trigger",
            metavar="SIZE",
            help="Bytes that one batch reads, such as 64MiB; 1GiB by default.",
        ),
    ] = None,
    quarantine: Quarantine = None,
    too_large: TooLarge = "fail",
    create: Create = False,
    partitions: Partitions = None,
    take_over: TakeOver = False,
    master: Master = "local[*]",
    conf: Conf = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write the rows of new files in a directory to a log, each row exactly once.

    The next run with the same checkpoint reads only files that are new since this run. Lines of
    text and of JSON become values unchanged. A row of CSV or Parquet becomes a JSON object with the
    names of its columns. Rows that cannot become records are written to the quarantine, with the
    reason.
    """
    options = parse_pairs(option, "--option KEY=VALUE")
    max_bytes = None
    if max_bytes_per_trigger is not None:
        max_bytes = _size(max_bytes_per_trigger, "--max-bytes-per-trigger")
    with spark_session("ingest", metadata, master, conf) as spark:
        from bookie.spark.jobs.export import parse_schema
        from bookie.spark.jobs.ingest import ingest_files
        from bookie.spark.jobs.ingest_plan import IngestPlan
        from bookie.spark.jobs.moving import MoveTarget

        target = MoveTarget(
            metadata, log, checkpoint, create, partitions, quarantine, too_large, take_over
        )
        columns = None if schema is None else parse_schema(schema)
        plan = IngestPlan(files, file_format, key, columns, header_check, options, max_bytes)
        moved = ingest_files(spark, plan, target)
    _print_moved(moved, output)


def _print_moved(moved: Moved, output: OutputFormat) -> None:
    print_record(asdict(moved), output)
    _tell_quarantine(moved.quarantined, moved.quarantine)


def _tell_quarantine(rows: int, directory: str) -> None:
    if rows:
        print(f"{rows} rows are in {directory}; the column reason says why", file=sys.stderr)


@app.command("migrate-from-kafka")
def migrate_from_kafka(
    brokers: Annotated[str, typer.Argument(metavar="BROKERS", help="HOST:PORT,… of Kafka.")],
    topics: Annotated[
        str, typer.Argument(metavar="TOPICS", help="Names with commas between them.")
    ],
    metadata: Metadata,
    checkpoint: Checkpoint,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="LOG", help="One log for all; else each topic has its own."),
    ] = None,
    keep_partitions: Annotated[
        bool,
        typer.Option("--keep-partitions", help="Records keep the number of their partition."),
    ] = False,
    tombstones: Annotated[
        str,
        typer.Option(
            "--tombstones",
            metavar="WHAT",
            help="For records whose value is null: fail, skip, or empty, which gives them an empty "
            "value.",
        ),
    ] = "fail",
    times_ahead: Annotated[
        str,
        typer.Option(
            "--times-ahead",
            metavar="WHAT",
            help="For records whose time is later than the log allows: fail, or quarantine.",
        ),
    ] = "fail",
    option: SourceOption = None,
    quarantine: Quarantine = None,
    too_large: TooLarge = "fail",
    create: Create = False,
    partitions: Partitions = None,
    take_over: TakeOver = False,
    master: Master = "local[*]",
    conf: Conf = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write the new records of Kafka topics to logs, each record exactly once.

    Spark needs its package for Kafka: --conf spark.jars.packages=…. If the package is missing, the
    error names it. A header without a value gets an empty value. If a record has two headers with
    the same NAME, the second header becomes NAME#2.
    """
    options = parse_pairs(option, "--option KEY=VALUE")
    with spark_session("migrate-from-kafka", metadata, master, conf) as spark:
        from bookie.spark.jobs.migrate import MigratePlan
        from bookie.spark.jobs.migrate import migrate_from_kafka as run
        from bookie.spark.jobs.moving import MoveTarget

        target = MoveTarget(
            metadata, log, checkpoint, create, partitions, quarantine, too_large, take_over
        )
        plan = MigratePlan(brokers, topics, keep_partitions, tombstones, times_ahead, options)
        moved = run(spark, plan, target)
    _print_moved(moved, output)
