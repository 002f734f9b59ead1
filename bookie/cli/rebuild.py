"""``bookie rebuild``: rebuilds a stopped bookie's index from the bookie's other files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookie.cli.options import ConfigFile, Output, OutputFormat, Yes, confirm
from bookie.cli.output import print_record
from bookie.cli.progress import progress_bar

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make ``index`` a subcommand; otherwise typer would run it as ``bookie rebuild``."""


@app.command("index")
def index(
    config: ConfigFile = None,
    journal_dir: Annotated[
        Path | None,
        typer.Option("--journal-dir", metavar="DIR", help="Overrides storage.journal_dir."),
    ] = None,
    ledgers_dir: Annotated[
        Path | None,
        typer.Option("--ledgers-dir", metavar="DIR", help="Overrides storage.ledgers_dir."),
    ] = None,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make a new index from the journal files and entry logs, and keep the old index beside it.

    Stop the bookie first. If only the old index has the fence of a ledger, this fence is lost. So
    after its next start, the bookie puts all of its ledgers in limbo, until a check has found their
    entries. The writers of the bookie's open ledgers continue with other bookies. Delete the old
    index when the bookie works again.

    The command does not read the cluster's settings. If the cluster's settings name the bookie's
    directories, give the directories as options.
    """
    from bookie.config import load_settings
    from bookie.daemon.loop import prepare_process
    from bookie.daemon.rebuild import rebuild_index, size_of_files

    given = {"storage.journal_dir": journal_dir, "storage.ledgers_dir": ledgers_dir}
    overrides = {name: str(path) for name, path in given.items() if path is not None}
    settings = load_settings(config, overrides).storage
    confirm(
        f"Make the index in {settings.ledgers_dir} again? Every ledger of this bookie will be "
        "in limbo from its next start until a check has found it whole.",
        yes=yes,
    )
    prepare_process()
    with progress_bar("reading", total=size_of_files(settings)) as advance:
        done = rebuild_index(settings, advance)
    print_record(
        {
            "index": done.index_dir,
            "old_index": done.old_index,
            "files": done.files,
            "bytes": done.size_bytes,
            "seconds": round(done.seconds, 3),
            "megabytes_per_second": round(done.size_bytes / max(done.seconds, 1e-9) / 1e6, 1),
            "ledgers": done.ledgers,
            "entries": done.entries,
            "damage": list(done.damage),
            "needs_integrity_check": True,
        },
        output,
    )
