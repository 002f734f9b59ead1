"""``bookie inspect``: shows the files of a stopped bookie, and changes no data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.options import Output, OutputFormat
from bookie.cli.output import Record, print_record, print_records
from bookie.cli.progress import progress_bar

if TYPE_CHECKING:
    from bookie.daemon.inspection import FileSummary
    from bookie.node.engine.format.blocks import FileKind
    from bookie.node.engine.index.entry_index import Index

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The directory.")
]
FileOrDirectory = Annotated[
    Path, typer.Argument(metavar="PATH", exists=True, help="A directory, or one file.")
]
Blocks = Annotated[bool, typer.Option("--blocks", help="List every block.")]
Records = Annotated[bool, typer.Option("--records", help="List every record of every block.")]


@app.command("journal")
def journal(
    path: FileOrDirectory,
    blocks: Blocks = False,
    records: Records = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the journal files: their blocks and records, and the offset where each file ends."""
    from bookie.node.engine.format.blocks import FileKind

    _print_files(path, FileKind.JOURNAL, output, blocks=blocks, records=records)


@app.command("log")
def log(
    path: FileOrDirectory,
    blocks: Blocks = False,
    records: Records = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the entry logs in a bookie's ledgers directory."""
    from bookie.node.engine.format.blocks import FileKind

    _print_files(path, FileKind.ENTRY_LOG, output, blocks=blocks, records=records)


@app.command("index")
def index(
    directory: Directory,
    ledger: Annotated[
        int | None,
        typer.Option("--ledger", min=0, help="Show the stored entries of one ledger."),
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="Show the files instead.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the checksum of every page and row.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the index in a bookie's ledgers directory: ledgers, files, or one ledger's entries."""
    from bookie.daemon.inspection import opened_index

    with opened_index(directory) as opened:
        if verify:
            print_record({"valid": True, "pages": opened.verify_pages()}, output)
        elif ledger is not None:
            print_records(_entry_records(opened, ledger), output, empty="no entry is indexed")
        elif files:
            print_records(_file_records(opened), output, empty="no files")
        else:
            if output is OutputFormat.TABLE:
                print_record(_index_summary(opened), output)
                print()
            print_records(_ledger_records(opened), output, empty="no ledgers")


@app.command("cookie")
def cookie(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", exists=True, file_okay=False, help="The directories."),
    ],
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the cookies in directories; exit with 1 if the cookies belong to several bookies."""
    from bookie.daemon.inspection import read_cookie

    cookies = [read_cookie(directory) for directory in directories]
    print_records(
        [
            {
                "directory": str(directory),
                "bookie_id": cookie.bookie_id,
                "state": cookie.state.value,
                "instance_id": cookie.instance_id,
                "unique_id": cookie.unique_id,
                "incarnation": cookie.incarnation,
                "state_number": cookie.state_number,
                "settled": cookie.is_settled,
                "in_doubt": cookie.is_in_doubt,
                "journal_dirs": cookie.journal_dirs,
                "ledger_dirs": cookie.ledger_dirs,
            }
            for directory, cookie in zip(directories, cookies, strict=True)
        ],
        output,
    )
    if any(cookies[0].differences(cookie) for cookie in cookies):
        raise typer.Exit(1)


def _print_files(
    path: Path, kind: FileKind, output: OutputFormat, *, blocks: bool, records: bool
) -> None:
    from bookie.daemon.inspection import files_in, inspect_file

    paths = files_in(path, kind)
    summaries: list[FileSummary] = []
    with progress_bar("reading", total=sum(p.stat().st_size for p in paths)) as advance:
        for file in paths:
            summaries.append(inspect_file(file))
            advance(file.stat().st_size)
    for_each = _record_rows if records else _block_rows if blocks else _file_row
    print_records([row for summary in summaries for row in for_each(summary)], output)


def _file_row(summary: FileSummary) -> list[Record]:
    sequences = [block.sequence for block in summary.blocks]
    return [
        {
            "file": summary.path,
            "kind": summary.kind,
            "number": summary.number,
            "size_bytes": summary.size_bytes,
            "end": summary.end,
            "blocks": len(summary.blocks),
            "entries": summary.entries,
            "first_sequence": sequences[0] if sequences else None,
            "last_sequence": sequences[-1] if sequences else None,
            "blocks_beyond_end": summary.blocks_beyond,
        }
    ]


def _block_rows(summary: FileSummary) -> list[Record]:
    return [
        {
            "file": summary.number,
            "offset": block.offset,
            "end": block.end,
            "sequence": block.sequence,
            "durable_upto": block.durable_upto,
            "records": len(block.records),
            "entries": block.entries,
        }
        for block in summary.blocks
    ]


def _record_rows(summary: FileSummary) -> list[Record]:
    return [
        {"file": summary.number, "block": block.offset, "record": record}
        for block in summary.blocks
        for record in block.records
    ]


def _index_summary(index: Index) -> Record:
    from bookie.node.engine.index.entry_index import (
        META_BOOKIE,
        META_CLEAN,
        META_FORMAT,
        META_INSTANCE,
    )

    def text(name: bytes) -> str | None:
        value = index.meta(name)
        return None if value is None else value.decode("utf-8", "replace")

    mark = index.mark()
    return {
        "bookie_id": text(META_BOOKIE),
        "instance_id": text(META_INSTANCE),
        "format": text(META_FORMAT),
        "mark": None if mark is None else f"file {mark.file_number}, offset {mark.offset}",
        "stopped_cleanly": text(META_CLEAN) == "1",
        "needs_integrity_check": index.needs_integrity_check(),
    }


def _ledger_records(index: Index) -> list[Record]:
    from bookie.daemon.inspection import LEDGERS_PER_READ

    records: list[Record] = []
    after = -1
    while rows := index.ledgers(after, LEDGERS_PER_READ):
        records += [
            {
                "ledger_id": ledger_id,
                "entries": row.entries,
                "bytes": row.payload_bytes,
                "first_entry_id": row.first_entry_id,
                "last_entry_id": row.last_entry_id,
                "max_lac": row.max_lac,
                "fenced": row.fenced,
                "limbo": row.limbo,
                "deleted": row.deleted_at_ms is not None,
            }
            for ledger_id, row in rows
        ]
        after = rows[-1][0]
    return records


def _file_records(index: Index) -> list[Record]:
    from bookie.node.engine.format.blocks import FileKind

    return [
        {
            "file": number,
            "kind": "journal" if row.kind == FileKind.JOURNAL else "log",
            "state": row.state.name,
            "size_bytes": row.size_bytes,
            "live_bytes": row.live_bytes,
        }
        for number, row in sorted(index.files().items())
    ]


def _entry_records(index: Index, ledger_id: int) -> list[Record]:
    from bookie.daemon.inspection import entry_ranges

    return [
        {"first_entry_id": first, "last_entry_id": last, "entries": last - first + 1}
        for first, last in entry_ranges(index, ledger_id)
    ]
