"""``bookie doctor``: checks if this machine is fit to run a bookie."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookie.cli.options import ConfigFile, Output, OutputFormat
from bookie.cli.output import Record, print_records

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("doctor")
def doctor(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[JOURNAL_DIR [LEDGERS_DIR]]",
            help="The directories to measure; those of --config, or the current one, when absent.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    syncs: Annotated[
        int, typer.Option("--syncs", min=10, max=100_000, help="Syncs to measure.")
    ] = 200,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Check whether this machine is fit to run a bookie.

    The command measures the sync latency of the given directories. The command checks the file
    systems, the free space, the limit of open files, the clocks, and the version of Python. The
    command also checks that all libraries are installed. With --config the command also checks the
    certificate, the token keys, the versions of etcd servers, and the addresses that serve without
    TLS. Exit status 1 means that a bookie must not run here.
    """
    from bookie.daemon.machine_check import Severity, check_machine

    journal_dir, ledgers_dir = _directories(directories or [], config)
    checks = check_machine(journal_dir, ledgers_dir, syncs=syncs)
    if config is not None:
        from bookie.config import load_settings
        from bookie.daemon.security_check import check_security
        from bookie.env import SystemClock

        checks += check_security(load_settings(config), SystemClock().now_ms() / 1000)
    records: list[Record] = [
        {
            "check": check.name,
            "verdict": check.verdict.value,
            "found": check.found,
            "advice": check.advice,
            "numbers": check.numbers,
        }
        if output is OutputFormat.JSON
        else {
            "verdict": check.verdict.value,
            "check": check.name,
            "found": check.found + (f" ({check.advice})" if check.advice else ""),
        }
        for check in checks
    ]
    print_records(records, output)
    return int(any(check.verdict is Severity.FAIL for check in checks))


def _directories(given: list[Path], config: Path | None) -> tuple[Path, Path | None]:
    if len(given) > 2:
        raise typer.BadParameter("give at most two directories, the journal's and the ledgers'")
    if given:
        return given[0], given[1] if len(given) == 2 else None
    if config is not None:
        from bookie.config import load_settings

        storage = load_settings(config).storage
        return storage.journal_dir, storage.ledgers_dir
    return Path.cwd(), None
