"""``bookie repair``: shows and pauses the repair of copies, and runs a repair process.

This module also has the commands ``bookie cluster decommission``, ``bookie ledger repair`` and
``bookie ledger set-quorum``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.config import MetadataUri, Set
from bookie.cli.options import (
    ConfigFile,
    LedgerArgument,
    Metadata,
    Output,
    OutputFormat,
    Yes,
    confirm,
)
from bookie.cli.output import Record, format_moment, print_record, print_records
from bookie.cli.stores import on_instance, on_store, open_client, worker_name
from bookie.errors import BadRequestError, BadVersionError, FormatError, NoSuchKeyError

if TYPE_CHECKING:
    from bookie.config import Sources
    from bookie.ledger.catalog.dependents import Dependents
    from bookie.ledger.copies.marks import UnderreplicationManager
    from bookie.ledger.copies.quorum_change import QuorumChanged
    from bookie.ledger.copies.replica_repair import RepairOutcome
    from bookie.metadata.store import MetadataStore

WAIT_SECONDS = 1.0
"""The shortest pause in seconds between two listings of the ledgers that must move."""
WAIT_SHARE = 20.0
"""A pause between two listings takes at least this many times as long as the last listing."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

BookieArgument = Annotated[str, typer.Argument(metavar="BOOKIE", help="The bookie's id.")]


@app.command("status")
def status(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """Show lost and leaving bookies, the number of ledgers that lack copies, and the last audit."""
    print_record(on_instance(metadata, _status), output)


async def _status(store: MetadataStore) -> Record:
    from bookie.cluster import keys
    from bookie.ledger.copies.departures import Departures, RepairFailures
    from bookie.ledger.copies.marks import UnderreplicationManager

    marks = UnderreplicationManager(store)
    marked = {mark.ledger_id: mark.marked_ms async for mark in marks.marked()}
    failures = [one async for one in RepairFailures(store).present(marked)]
    audited = await marks.checked_ms("replicas")
    return {
        "enabled": await marks.is_enabled(),
        "marked_ledgers": len(marked),
        "oldest_mark": format_moment(min(marked.values())) if marked else "none",
        # A locked ledger without a mark is being moved or recovered, so it does not count here.
        "under_repair": len(marked.keys() & await marks.locked()),
        "failing_ledgers": len(failures),
        "lost_bookies": sorted(await Departures(store, keys.LOST_BOOKIES).names()),
        "leaving_bookies": sorted(await Departures(store, keys.LEAVING_BOOKIES).names()),
        "last_audit": "never" if audited is None else format_moment(audited),
    }


@app.command("list")
def list_(
    metadata: Metadata,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="At most so many ledgers.")
    ] = 1000,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the ledgers that lack copies, with the time of detection and the last repair's error.

    At the end, the list has open ledgers without a writer whose recovery failed.
    """
    records = on_instance(metadata, lambda store: _list(store, limit + 1))
    print_records(records[:limit], output, empty="no ledger lacks copies")
    if len(records) > limit:
        print("there are more: add --limit", file=sys.stderr)


async def _list(store: MetadataStore, limit: int) -> list[Record]:
    from bookie.ledger.copies.departures import RepairFailures
    from bookie.ledger.copies.marks import UnderreplicationManager

    marks = UnderreplicationManager(store)
    failures = RepairFailures(store)
    records: list[Record] = []
    async for mark in marks.marked():
        failure = await failures.find(mark.ledger_id)
        records.append(
            {
                "ledger_id": mark.ledger_id,
                "missing_on": list(mark.replicas),
                "since": format_moment(mark.marked_ms),
                "worker": await _worker_of(marks, mark.ledger_id),
                "attempts": 0 if failure is None else failure.attempts,
                "reason": "" if failure is None else failure.reason,
            }
        )
        if len(records) == limit:
            return records
    marked = {record["ledger_id"] for record in records}
    async for failure in failures.present(()):
        if failure.ledger_id not in marked and len(records) < limit:
            records.append(
                {
                    "ledger_id": failure.ledger_id,
                    "missing_on": [],
                    "since": format_moment(failure.failed_ms),
                    "worker": await _worker_of(marks, failure.ledger_id),
                    "attempts": failure.attempts,
                    "reason": failure.reason,
                }
            )
    return records


async def _worker_of(marks: UnderreplicationManager, ledger_id: int) -> str:
    """Return the name of the worker that locks a ledger; empty if no worker locks the ledger."""
    try:
        return await marks.worker_of(ledger_id) or ""
    except FormatError:
        return "unknown: its lock cannot be read"


@app.command("history")
def history(
    metadata: Metadata,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="At most so many repairs.")
    ] = 20,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the last repairs that have ended, sorted by time, the newest first.

    The times come from the clocks of the workers. Each worker keeps its last 100 repairs, and a
    repair is shown within a few seconds of its end. If the repair of a ledger fails repeatedly, the
    worker keeps only the last failure. If records are damaged, the exit status is 1.
    """
    records, damaged = on_instance(metadata, _history)
    print_records(records[:limit], output, empty="no repair has ended yet")
    if damaged:
        raise FormatError(f"not listed, because their records are damaged: {', '.join(damaged)}")


async def _history(store: MetadataStore) -> tuple[list[Record], list[str]]:
    from bookie.ledger.copies.repair_history import ended_repairs

    found, damaged = await ended_repairs(store)
    records: list[Record] = [
        {
            "ended": format_moment(one.ended_ms),
            "ledger_id": one.ledger_id,
            "worker": worker,
            "outcome": one.outcome,
            "entries": one.entries,
            "bytes": one.packet_bytes,
            "seconds": one.seconds,
            "detail": one.detail,
        }
        for worker, one in found
    ]
    return records, damaged


@app.command("disable")
def disable(metadata: Metadata) -> None:
    """Pause repair in the whole cluster; repairs that have already begun continue to their end."""
    from bookie.ledger.copies.marks import UnderreplicationManager

    on_instance(metadata, lambda store: UnderreplicationManager(store).disable())


@app.command("enable")
def enable(metadata: Metadata) -> None:
    """Resume repair after `disable`."""
    from bookie.ledger.copies.marks import UnderreplicationManager

    on_instance(metadata, lambda store: UnderreplicationManager(store).enable())


@app.command("trigger")
def trigger(metadata: Metadata) -> None:
    """Start an audit of every entry of every copy now; the elected auditor runs it."""
    from bookie.ledger.copies.marks import UnderreplicationManager

    async def work(store: MetadataStore) -> None:
        marks = UnderreplicationManager(store)
        if not await marks.is_enabled():
            raise BadRequestError("repair is disabled in this cluster; enable it first")
        await marks.forget_check("replicas")

    on_instance(metadata, work)


@app.command("serve")
def serve(config: ConfigFile = None, overrides: Set = None, metadata: MetadataUri = None) -> int:
    """Run a repair process until SIGTERM, for clusters whose bookies have repair.enabled off.

    The process audits the cluster while it is elected, and repairs ledgers that lack copies.
    Several repair processes share the work. The settings come from the same sources as for `bookie
    serve`; bookie.id is not needed. The process serves metrics over HTTP: on a machine with a
    bookie, choose another port by --set http.port=8001. The exit statuses are the same as those of
    `bookie serve`.
    """
    from bookie.cli.serve import run_service

    return run_service(config, overrides, metadata, _start_repair)


def _start_repair(sources: Sources) -> Coroutine[object, object, None]:
    from bookie.daemon.repair_process import run_repair_process

    return run_repair_process(sources)


def decommission(
    bookie: BookieArgument,
    metadata: Metadata,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Return when the bookie is forgotten, and show the progress."),
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Let the bookie stay; copies that moved stay moved.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Remove a bookie from the cluster for ever: move its copies away, then delete its cookie.

    The bookie becomes read-only, and other bookies copy its entries. When no ledger names the
    bookie any more, stop the bookie. A command that waits (--wait) then deletes the bookie's
    cookie; without --wait, run the command again to delete it. You can also use the command for a
    bookie that is already lost.
    """
    if cancel:
        on_instance(metadata, lambda store: _cancel(store, bookie))
        return
    if not on_store(metadata, lambda store: _is_leaving(store, bookie)):
        confirm(f"Move all copies away from bookie {bookie}, and forget it?", yes=yes)
    on_store(metadata, lambda store: _leave(store, bookie, wait=wait))


async def _leave(store: MetadataStore, bookie: str, *, wait: bool) -> None:
    from bookie.cluster import keys
    from bookie.ledger.copies.departures import Departures

    await Departures(store, keys.LEAVING_BOOKIES).add(bookie)
    now = asyncio.get_running_loop().time
    told = ""
    while True:
        began = now()
        done, sentence = await _decommission(store, bookie)
        if sentence != told:
            print(sentence, flush=True)
            told = sentence
        if done or not wait:
            return
        await asyncio.sleep(max(WAIT_SECONDS, WAIT_SHARE * (now() - began)))


async def _is_leaving(store: MetadataStore, bookie: str) -> bool:
    """True if the bookie's decommission has begun; if not, check that it can begin.

    Raises:
        NoSuchKeyError: the bookie has no cookie in this cluster.
        BadRequestError: no other bookie is writable, so the bookie's copies cannot move.
    """
    from bookie.cluster import keys
    from bookie.cluster.cookies import CookieManager
    from bookie.cluster.instance import read_status
    from bookie.ledger.copies.departures import Departures

    status = await read_status(store)
    if await Departures(store, keys.LEAVING_BOOKIES).find(bookie) is not None:
        return True
    if bookie not in await CookieManager(store).bookie_ids():
        raise NoSuchKeyError(f"this cluster has no bookie {bookie}")
    if not set(status.writable) - {bookie}:
        raise BadRequestError(f"no other bookie is writable, so nobody can take {bookie}'s copies")
    return False


async def _decommission(store: MetadataStore, bookie: str) -> tuple[bool, str]:
    """Do one step of a decommission; delete the cookie if no ledger names the stopped bookie.

    Returns:
        True if the bookie has left the cluster, otherwise False; and a sentence for the operator.

    Raises:
        BadRequestError: another command cancelled the decommission.
    """
    from bookie.cluster import keys
    from bookie.cluster.cookies import CookieManager
    from bookie.cluster.instance import read_status
    from bookie.ledger.catalog.dependents import find_dependents, reliable_bookies
    from bookie.ledger.catalog.ledgers import LedgerManager
    from bookie.ledger.copies.departures import Departures

    leaving, cookies = Departures(store, keys.LEAVING_BOOKIES), CookieManager(store)
    status = await read_status(store)
    is_registered = bookie in {*status.writable, *status.read_only}
    cookie = await cookies.read(bookie)
    found = await find_dependents(LedgerManager(store), bookie, await reliable_bookies(cookies))
    done = True, f"bookie {bookie} has left the cluster"
    # Ask only now if another command cancelled the decommission, because the listing may take long.
    if await leaving.find(bookie) is None:
        if found.named.count or found.unreadable.count or await cookies.read(bookie) is not None:
            raise BadRequestError(f"bookie {bookie} stays: its decommission was cancelled")
        return done  # another decommission command deleted the cookie first
    if found.named.count:
        return False, await _left(store, bookie, found)
    if found.unreadable.count:
        which = f"{found.unreadable.count} ledgers ({found.unreadable})"
        return False, f"the metadata of {which} cannot be read: they may name {bookie}"
    if is_registered:
        return False, f"no ledger names {bookie} any more: stop it, and its cookie is deleted"
    if cookie is not None:
        try:
            await cookies.delete(bookie, cookie.version)
        except NoSuchKeyError:
            pass
        except BadVersionError:
            return False, f"bookie {bookie} has just changed its cookie, and is not forgotten yet"
    await leaving.remove(bookie)
    await Departures(store, keys.LOST_BOOKIES).remove(bookie)
    return done


async def _left(store: MetadataStore, bookie: str, found: Dependents) -> str:
    """Return a sentence about the ledgers that still name the bookie.

    If ledgers do not move for a known reason, the sentence includes this reason.
    """
    from bookie.ledger.copies.departures import RepairFailures
    from bookie.ledger.copies.marks import UnderreplicationManager

    sentence = f"{found.named.count} ledgers still name {bookie}"
    if found.not_closed.count:
        sentence += (
            f", {found.not_closed.count} of them are not closed ({found.not_closed}): "
            "they move when they are closed"
        )
    marks = UnderreplicationManager(store)
    if not await marks.is_enabled():
        return f"{sentence}; repair is disabled: bookie repair enable"
    failures = RepairFailures(store)
    async for mark in marks.marked(lambda replicas: bookie in replicas):
        if failure := await failures.find(mark.ledger_id):
            return f"{sentence}; ledger {mark.ledger_id} could not be moved ({failure.reason})"
    return sentence


async def _cancel(store: MetadataStore, bookie: str) -> None:
    from bookie.cluster import keys
    from bookie.ledger.copies.departures import Departures

    if not await Departures(store, keys.LEAVING_BOOKIES).remove(bookie):
        raise NoSuchKeyError(f"bookie {bookie} is not on its way out of the cluster")


def repair(ledger: LedgerArgument, metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """Repair one ledger in this process: read all its copies, then complete or move the copies."""
    from bookie.daemon.loop import run

    outcomes = run(_repair_ledger(metadata, ledger))
    records: list[Record] = [
        {
            "bookie": one.bookie_id,
            "outcome": one.outcome,
            "entries": one.entries,
            "bytes": one.packet_bytes,
            "detail": one.detail,
        }
        for one in outcomes
    ]
    print_records(records, output, empty="nothing to do")
    if any(not one.is_whole for one in outcomes):
        raise BadRequestError(f"ledger {ledger} does not have all its copies")


def set_quorum(
    ledger: LedgerArgument,
    write_quorum: Annotated[
        int, typer.Option("--write-quorum", min=1, help="The copies that each entry shall have.")
    ],
    metadata: Metadata,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change the write quorum of a closed ledger: copy its entries, then change its metadata.

    If the new write quorum is greater than the ensemble size, the ensembles grow to the size of the
    write quorum. A write quorum below the ack quorum is refused. During the change, readers find
    all entries. If the command is interrupted, the metadata is unchanged: run the command again. A
    smaller write quorum does not delete surplus copies by itself.
    """
    from bookie.daemon.loop import run

    done = run(_set_quorum(metadata, ledger, write_quorum))
    record: Record = {
        "ledger_id": ledger,
        "former_write_quorum": done.before.write_quorum_size,
        "write_quorum": done.after.write_quorum_size,
        "former_ensemble": done.before.ensemble_size,
        "ensemble": done.after.ensemble_size,
        "entries": done.entries,
        "bytes": done.packet_bytes,
    }
    print_record(record, output)


async def _set_quorum(uri: str, ledger_id: int, write_quorum_size: int) -> QuorumChanged:
    from bookie.config import RepairSettings
    from bookie.env.pace import Pace
    from bookie.ledger.copies.quorum_change import QuorumChange

    async with open_client(uri) as (client, store):
        pace = Pace(lambda: RepairSettings().bytes_per_second_max)
        change = QuorumChange(client, store, worker_name(), pace)
        return await change.run(ledger_id, write_quorum_size)


async def _repair_ledger(uri: str, ledger_id: int) -> list[RepairOutcome]:
    from bookie.config import RepairSettings
    from bookie.env import SystemClock
    from bookie.ledger.copies.marks import UnderreplicationManager
    from bookie.repair.replicator import Replicator
    from bookie.repair.worker import RepairWorker
    from bookie.telemetry import Metrics

    clock, name = SystemClock(), worker_name()
    async with open_client(uri) as (client, store):
        marks = UnderreplicationManager(store, name, clock)
        worker = RepairWorker(client, store, RepairSettings, Metrics(), clock, name, marks)
        return await Replicator(worker).repair_now(ledger_id)
