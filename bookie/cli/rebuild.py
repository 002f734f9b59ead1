"""``bookie rebuild``: make again what can be made from a stopped bookie's files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookie.cli.options import ConfigFile, Output, OutputFormat, Yes

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Make the index of a stopped bookie again from its files.",
)


@app.callback()
def _group() -> None:
    """Keep ``index`` a command of its own, whatever joins it."""


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
    """Set the index aside and make it again from the journal files and entry logs.

    The bookie must be stopped. When it starts again it fences every open ledger that it belongs
    to, because fences that only the old index knew are gone: writers of these ledgers go on
    elsewhere or are recovered. The old index is kept; remove it when the bookie is well.
    The cluster is not asked for its settings: give the directories if they come from there.
    """
    from bookie.cli.options import confirm
    from bookie.cli.output import print_record
    from bookie.cli.progress import progress_bar
    from bookie.config import load_settings
    from bookie.server.loop import prepare_process
    from bookie.server.rebuild import rebuild_index, size_of_files

    given = {"storage.journal_dir": journal_dir, "storage.ledgers_dir": ledgers_dir}
    overrides = {name: str(path) for name, path in given.items() if path is not None}
    settings = load_settings(config, overrides).storage
    confirm(
        f"Make the index in {settings.ledgers_dir} again? Every open ledger of this bookie will be "
        "fenced at its next start.",
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
