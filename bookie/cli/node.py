"""``bookie node``: one bookie, running."""

from __future__ import annotations

import asyncio
import enum
from typing import Annotated, Any

import typer

from bookie.cli.options import Metadata, Output, OutputFormat, Yes, confirm

TIMEOUT_SECONDS = 5.0
POLL_SECONDS = 0.3

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Ask one running bookie, switch it to read-only, have it check its data or free space.",
)

BookieArgument = Annotated[str, typer.Argument(metavar="BOOKIE", help="The bookie's id.")]


class Switch(enum.StrEnum):
    """Whether new entries are refused."""

    ON = "on"
    OFF = "off"


@app.command("info")
def info(bookie: BookieArgument, metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """Show what a bookie says of itself: version, sizes, read-only or not, space freed."""
    _print(asyncio.run(_ask(metadata, bookie, "bookie")), output)


@app.command("readonly")
def readonly(
    bookie: BookieArgument,
    switch: Annotated[Switch, typer.Argument(help="Refuse new entries, or take them again.")],
    metadata: Metadata,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make a bookie refuse new entries, or take them again; reads and recovery go on.

    The bookie takes this only from its own machine. A bookie that is full stays read-only until
    it has room, whatever is said here.
    """
    change = {"read_only": switch is Switch.ON}
    _print(asyncio.run(_ask(metadata, bookie, "read-only", change)), output)


@app.command("check")
def check(
    bookie: BookieArgument,
    metadata: Metadata,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the check is done.")
    ] = True,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Have a bookie that may have lost data check its ledgers in limbo; show what it found.

    Ledgers that are whole leave limbo. Exits with 1 when some are not. The bookie takes this only
    from its own machine, and checks by itself as long as there is doubt.
    """
    return _upkeep(metadata, bookie, "check", start=True, wait=wait, output=output)


@app.command("scrub")
def scrub(
    bookie: BookieArgument,
    metadata: Metadata,
    now: Annotated[
        bool, typer.Option("--now", help="Read everything now, and wait until that is done.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Show how far a bookie's scrubber is and what it found damaged; exit with 1 if anything is.

    The scrubber reads all files and the index again and again (storage.scrub_bytes_per_second).
    With --now, which a bookie takes only from its own machine, it reads them at once and faster.
    """
    return _upkeep(metadata, bookie, "scrub", start=now, wait=now, output=output)


def _upkeep(
    metadata: str, bookie: str, work: str, *, start: bool, wait: bool, output: OutputFormat
) -> int:
    """Start some work in the background, show its status; 1 if the bookie is not sound."""
    from bookie.cli.output import print_record

    status = asyncio.run(_start(metadata, bookie, work, start=start, wait=wait))
    report = status.pop("report") or {}
    print_record(status | report, output)
    return int(bool(status["needed"]))


async def _start(
    metadata: str, bookie: str, work: str, *, start: bool, wait: bool
) -> dict[str, Any]:
    status = await _ask(metadata, bookie, work, {} if start else None)
    while wait and status["running"]:
        await asyncio.sleep(POLL_SECONDS)
        status = await _ask(metadata, bookie, work)
    return status


@app.command("gc")
def gc(
    bookie: BookieArgument,
    metadata: Metadata,
    force: Annotated[
        bool, typer.Option("--force", help="Delete what is gone, however many ledgers that are.")
    ] = False,
    suspend: Annotated[
        bool, typer.Option("--suspend", help="Delete and compact nothing until --resume.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Delete and compact again.")] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Have a bookie look for deleted ledgers now, and free their space; it does so by itself, too.

    A ledger goes once two listings do not have it: `bookie node info` shows the outcome. The
    bookie takes this only from its own machine. With --force it asks first.
    """
    if force + suspend + resume > 1:
        raise typer.BadParameter("give at most one of --force, --suspend and --resume")
    if force:
        confirm(
            f"Let {bookie} delete every ledger that the cluster does not list, however many?",
            yes=yes,
        )
    action = "force" if force else "suspend" if suspend else "resume" if resume else "run"
    _print(asyncio.run(_ask(metadata, bookie, "garbage", {"action": action})), output)


@app.command("compact")
def compact(
    bookie: BookieArgument, metadata: Metadata, output: Output = OutputFormat.TABLE
) -> None:
    """Have a bookie compact every file that holds anything dead; `bookie node info` shows it.

    By itself it takes only files that are mostly dead. The bookie takes this only from its own
    machine.
    """
    _print(asyncio.run(_ask(metadata, bookie, "compaction", {"action": "run"})), output)


@app.command("label")
def label(
    bookie: BookieArgument,
    metadata: Metadata,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="Labels, as in bookie.labels."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="KEY", help="A label to take away; may be repeated."),
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say where a bookie stands, for placement; show what was said if nothing is given.

    These labels are kept in the metadata store, win over those of the bookie's own settings, and
    survive its restart. A running bookie registers them within a second.
    """
    from bookie.cli.output import print_record

    labels: dict[str, str] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals:
            raise typer.BadParameter(f"{word!r} must look like key=value")
        labels[name] = value
    both = labels.keys() & set(remove or [])
    if both:
        raise typer.BadParameter(f"{min(both)} is both set and removed")
    print_record(asyncio.run(_label(metadata, bookie, labels, remove or [])), output)


async def _label(
    metadata: str, bookie_id: str, labels: dict[str, str], remove: list[str]
) -> dict[str, Any]:
    from bookie.cli.stores import open_metadata
    from bookie.cluster.cookies import CookieManager
    from bookie.cluster.labels import BookieLabels
    from bookie.errors import NoSuchKeyError

    async with open_metadata(metadata) as store:
        # Labels of a mistyped bookie would wait for it for ever.
        if bookie_id not in await CookieManager(store).bookie_ids():
            raise NoSuchKeyError(f"no bookie {bookie_id} ever joined this cluster")
        kept = BookieLabels(store)
        if labels or remove:
            now = await kept.change(bookie_id, labels, remove)
        else:
            now = await kept.read(bookie_id)
    return {"bookie": bookie_id, "labels": now}


def _print(record: dict[str, Any], output: OutputFormat) -> None:
    from bookie.cli.output import format_bytes, print_record

    if output is OutputFormat.TABLE:
        record = record | {
            name: format_bytes(size) for name, size in record.items() if name.endswith("_bytes")
        }
        record["read_only_reasons"] = ", ".join(record["read_only_reasons"])
    print_record(record, output)


async def _ask(
    metadata: str, bookie_id: str, path: str, change: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Ask the bookie's own HTTP server, which its registration names; `change` is a command."""
    import aiohttp

    from bookie.errors import BookieUnreachableError, RequestError

    url = await _http_address(metadata, bookie_id)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            if change is None:
                call = session.get(f"{url}/{path}")
            else:
                call = session.put(f"{url}/{path}", json=change)
            async with call as response:
                answer: dict[str, Any] = await response.json()
                if response.status != 200:
                    raise RequestError(f"bookie {bookie_id} refused: {answer['error']}")
                return answer
    except (aiohttp.ClientError, TimeoutError) as error:
        raise BookieUnreachableError(f"bookie {bookie_id} does not answer at {url}") from error


async def _http_address(metadata: str, bookie_id: str) -> str:
    from bookie.cli.stores import open_metadata
    from bookie.cluster.directory import BookieDirectory
    from bookie.errors import BookieUnreachableError

    async with open_metadata(metadata) as store, BookieDirectory(store) as directory:
        registration = directory.all().get(bookie_id)
    endpoint = registration.endpoint("http") if registration is not None else None
    if endpoint is None:
        raise BookieUnreachableError(f"bookie {bookie_id} is not registered in this cluster")
    return f"http://{endpoint.host}:{endpoint.port}"
