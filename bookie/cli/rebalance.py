"""``bookie cluster rebalance``: moves copies of ledgers from fuller bookies to emptier bookies."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.options import Metadata, Output, OutputFormat
from bookie.cli.output import Record, print_records
from bookie.cli.stores import open_client, worker_name
from bookie.errors import BadRequestError

if TYPE_CHECKING:
    from bookie.ledger.copies.replica_repair import RepairOutcome
    from bookie.repair.rebalance import RebalanceReport


def rebalance(
    metadata: Metadata,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would move, and move nothing.")
    ] = False,
    bytes_per_second_max: Annotated[
        int | None,
        typer.Option(
            "--bytes-per-second-max",
            metavar="N",
            min=0,
            help="Copy at most so many bytes per second; 0 is no limit. By default 8 MiB.",
        ),
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Move copies of closed ledgers from fuller bookies to emptier bookies, such as new bookies.

    The command ends when the devices of all writable bookies are about equally full, or when no
    further copy can move. The numbers of bytes are estimates from the metadata. You may interrupt
    the command at any time, and run it again to continue. After a copy has moved to another bookie,
    the old bookie deletes the copy when repair.unnamed_copies_grace_seconds have passed.
    """
    from bookie.daemon.loop import run

    report = run(_rebalance(metadata, bytes_per_second_max, dry_run=dry_run))
    records: list[Record] = [
        {
            "bookie": name,
            "bytes_before": one.before,
            "bytes_from": one.given,
            "bytes_to": one.taken,
            "bytes_after": one.before - one.given + one.taken,
        }
        for name, one in report.bookies.items()
    ]
    print_records(records, output)
    if not (report.is_balanced or report.failed):
        print(
            "more cannot move: no room, or ledgers are too large, not closed, or bound",
            file=sys.stderr,
        )
    if report.failed:
        raise BadRequestError(f"{report.failed} copies could not be moved")


async def _rebalance(
    uri: str, bytes_per_second_max: int | None, *, dry_run: bool
) -> RebalanceReport:
    from bookie.config import RepairSettings
    from bookie.repair.rebalance import Rebalance

    def tell(outcome: RepairOutcome) -> None:
        sentence = f"ledger {outcome.ledger_id}: {outcome.outcome}: {outcome.detail}"
        print(sentence, file=sys.stderr, flush=True)

    rate = bytes_per_second_max
    if rate is None:
        rate = RepairSettings().bytes_per_second_max
    async with open_client(uri) as (client, store):
        return await Rebalance(client, store, worker_name(), rate, tell).run(dry_run=dry_run)
