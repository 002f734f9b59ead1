"""``bookie torture``: repeatedly breaks a local cluster while clients use a log.

The command kills bookies, pauses bookies, and cuts bookies off from the network. One of the bookies
loses its disks. The command kills writers, or pauses a writer and lets another writer take over the
log. At the same time, readers follow the log, consumers take turns with a cursor, and members join
and leave a group. In the end, the command checks the observations of all clients.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from bookie.cli.options import Output, OutputFormat
from bookie.cli.output import print_record
from bookie.cli.progress import progress_bar

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("torture")
def torture(
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="For how long things break.")
    ] = 60.0,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            help="Draws the same faults as the run that printed it; else by chance.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", "-d", metavar="DIR", help="Keep everything here; without it nothing is kept."
        ),
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Break a local cluster while clients use a log, and check that no record was lost.

    The command checks that no acknowledged record is lost, and that no record is in the log twice.
    The command checks that all readers see the same order of records, and that appends succeed
    again after each fault. The command checks that cursors never move back, and that all records
    before a cursor were consumed. Runs with the same seed have the same faults, but a fault may
    come at another moment of the clients' work.

    Exit status 1 means that one of these checks failed.
    """
    from bookie.testing.torture.run import Torture

    chosen = secrets.randbelow(2**32) if seed is None else seed
    with (
        nullcontext(data) if data is not None else tempfile.TemporaryDirectory() as directory,
        progress_bar("torturing", total=int(seconds), unit="s") as advance,
    ):
        home = Path(directory).absolute()
        home.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(Torture(home, seconds, chosen).run(advance))
    print_record(
        {
            "seed": chosen,
            "faults": dict(sorted(found.faults.items())),
            "acknowledged": found.acknowledged,
            "records": found.records,
            "owners": found.owners,
            "kept": not found.findings,
        },
        output,
    )
    for finding in found.findings:
        print(f"broken: {finding}", file=sys.stderr)
    return int(bool(found.findings))
