"""``bookie node``: commands that show, check or change one running bookie."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bookie.cli.options import Metadata, Output, OutputFormat, Yes, confirm, parse_pairs
from bookie.cli.output import format_bytes, format_moment, print_record
from bookie.cli.stores import on_store, open_metadata
from bookie.errors import (
    BadRequestError,
    BookieUnreachableError,
    NoSuchKeyError,
    RequestError,
    TlsError,
    WrongBookieError,
)
from bookie.ids import BOOKIE_ID_METADATA_KEY, INSTANCE_ID_METADATA_KEY

if TYPE_CHECKING:
    import aiohttp

    from bookie.cluster.registration_record import Endpoint, Registration
    from bookie.config import SecuritySettings
    from bookie.metadata.store import MetadataStore

TIMEOUT_SECONDS = 5.0
POLL_SECONDS = 0.3
MISDIRECTED = 421
"""The HTTP status with which a bookie refuses a request for another bookie."""
UNDELETED_AT_ONCE = 100
"""The largest number of ledgers in one request to undelete."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

BookieArgument = Annotated[str, typer.Argument(metavar="BOOKIE", help="The bookie's id.")]


class Switch(enum.StrEnum):
    """The read-only switch of a bookie: a bookie with ``on`` refuses new entries."""

    ON = "on"
    OFF = "off"


@app.command("info")
def info(bookie: BookieArgument, metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """Show a bookie's version, its sizes, why it is read-only, and the state of its garbage."""
    _print(asyncio.run(_ask(metadata, bookie, "bookie")), output)


@app.command("readonly")
def readonly(
    bookie: BookieArgument,
    switch: Annotated[Switch, typer.Argument(help="Refuse new entries, or take them again.")],
    metadata: Metadata,
    persist: Annotated[
        bool, typer.Option("--persist", help="With on: stay read-only after a restart, too.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make a bookie refuse new entries, or accept them again; reads and recovery continue.

    With `on --persist`, the bookie stays read-only after a restart. With `on` alone, the bookie is
    read-only until its next start, unless an earlier `on --persist` is still in force. `off` ends
    both forms of `on`. A full bookie stays read-only until it has free space, even after `off`. If
    the bookie loses its data, it also loses the switch. The bookie accepts this command only from
    its own machine.
    """
    if persist and switch is Switch.OFF:
        raise typer.BadParameter("--persist goes with on; off always lasts")
    change = {"read_only": switch is Switch.ON} | ({"persist": True} if persist else {})
    answer = asyncio.run(_ask(metadata, bookie, "read-only", change))
    _print(answer, output)
    if persist and answer.get("read_only_persists") is not True:
        raise BadRequestError(
            f"bookie {bookie} is read-only only until its next start: its version "
            f"{answer.get('version', '')} has no switch that persists; upgrade it first"
        )


@app.command("check")
def check(
    bookie: BookieArgument,
    metadata: Metadata,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the check is done.")
    ] = True,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Make a bookie check that it stores all entries that it must have, and show the result.

    Exit status 1 means that ledgers are in limbo, entries are missing or unreadable, there is
    damage, or no check is complete. If the check finds all entries of a ledger, the ledger leaves
    limbo. The bookie accepts this command only from its own machine.

    A bookie also starts checks by itself. A check that the bookie starts by itself compares only
    the numbers of entries, unless the bookie is in doubt. A repair may run during a check.
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
    """Show the progress of a bookie's scrubber, and the damage found; exit with 1 for damage.

    The scrubber reads all files and the index again and again, at the rate
    storage.scrub_bytes_per_second. With --now the scrubber starts a whole pass at once, at a higher
    rate. A bookie accepts --now only from its own machine.
    """
    return _upkeep(metadata, bookie, "scrub", start=now, wait=now, output=output)


def _upkeep(
    metadata: str, bookie: str, work: str, *, start: bool, wait: bool, output: OutputFormat
) -> int:
    """Start a check or scrub if `start` is set, and print its status.

    Returns:
        the exit status: 1 if the printed status shows a problem.
    """
    status = asyncio.run(_start(metadata, bookie, work, start=start, wait=wait))
    report = status.pop("report") or {}
    # If the status and the older report have the same field, show the field of the status.
    print_record({**status, **report, **status}, output)
    return int(not status.get("whole", not status["needed"]))


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
    ledgers: Annotated[
        list[int] | None,
        typer.Argument(metavar="[LEDGER]…", min=0, help="With --undelete: only these ledgers."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Delete all absent ledgers now, without their grace."),
    ] = False,
    confirm_store: Annotated[
        bool,
        typer.Option(
            "--confirm-store",
            help="Trust the metadata store as it is; this alone deletes nothing.",
        ),
    ] = False,
    undelete: Annotated[
        bool,
        typer.Option("--undelete", help="Give absent ledgers a whole grace again."),
    ] = False,
    suspend: Annotated[
        bool, typer.Option("--suspend", help="Suspend deletion and compaction until --resume.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue deletion and compaction.")
    ] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make a bookie free the space of deleted ledgers now; without this command it does so later.

    If the metadata store has a proof of a ledger's deletion, the bookie deletes its copy at once.
    If a ledger is absent from the metadata store without a proof, the bookie first waits
    garbage.grace_seconds: the grace. If several ledgers are absent, and their share of the bookie's
    ledgers exceeds garbage.stop_share, the bookie deletes none of them. `bookie node info` shows
    how many ledgers wait, and why. --force deletes all absent ledgers at once.

    If the metadata store is empty, or was set back to an older state, the bookie deletes nothing
    until --confirm-store, even with --force. If there is a newer copy of the metadata store,
    restore that copy instead of using --confirm-store. After --confirm-store, ledgers that the
    store lacks count as absent ledgers.

    --undelete restarts the grace of the given or all absent ledgers. The bookie accepts this
    command only from its own machine. --force and --confirm-store ask first.
    """
    actions = {
        "force": force,
        "confirm-store": confirm_store,
        "undelete": undelete,
        "suspend": suspend,
        "resume": resume,
    }
    wanted = [action for action, is_wanted in actions.items() if is_wanted] or ["run"]
    if wanted[1:]:
        raise typer.BadParameter(f"give at most one of {', '.join(f'--{one}' for one in actions)}")
    if ledgers and not undelete:
        raise typer.BadParameter("ledgers are named only with --undelete")
    if force:
        confirm(
            f"Let {bookie} delete every ledger that the cluster does not list, however many, "
            "and without waiting?",
            yes=yes,
        )
    if confirm_store:
        confirm(
            f"Let {bookie} trust the metadata store as it is now? Ledgers that it lacks will be "
            "deleted after their grace.",
            yes=yes,
        )
    if undelete:
        _print(asyncio.run(_undelete(metadata, bookie, ledgers or [])), output)
    else:
        _print(asyncio.run(_ask(metadata, bookie, "garbage", {"action": wanted[0]})), output)


async def _undelete(metadata: str, bookie: str, ledgers: list[int]) -> dict[str, Any]:
    """Ask the bookie to restart the grace of `ledgers`; an empty list means all absent ledgers."""
    undeleted = 0
    answer: dict[str, Any] = {}
    for start in range(0, max(len(ledgers), 1), UNDELETED_AT_ONCE):
        some = ledgers[start : start + UNDELETED_AT_ONCE]
        change = {"action": "undelete", "ledgers": some}
        answer = await _ask(metadata, bookie, "garbage", change)
        undeleted += answer["undeleted_ledgers"]
    return answer | {"undeleted_ledgers": undeleted}


@app.command("compact")
def compact(
    bookie: BookieArgument, metadata: Metadata, output: Output = OutputFormat.TABLE
) -> None:
    """Make a bookie compact every file that holds dead data.

    By itself, a bookie compacts only files in which most data is dead. `bookie node info` shows the
    progress. The bookie accepts this command only from its own machine.
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
    """Set or remove placement labels of a bookie; without arguments, show its labels.

    The metadata store keeps the labels that this command sets. These labels override the labels in
    the bookie's own settings, and stay after a restart of the bookie. A running bookie registers
    changed labels within a second.
    """
    labels = parse_pairs(words, "key=value")
    both = labels.keys() & set(remove or [])
    if both:
        raise typer.BadParameter(f"{min(both)} is both set and removed")
    now = on_store(metadata, lambda store: _label(store, bookie, labels, remove or []))
    print_record({"bookie": bookie, "labels": now}, output)


async def _label(
    store: MetadataStore, bookie_id: str, labels: dict[str, str], remove: list[str]
) -> dict[str, str]:
    from bookie.cluster.cookies import CookieManager
    from bookie.ledger.place.labels import BookieLabels

    # Refuse a mistyped id: its labels would later apply to a bookie that joins with this id.
    if bookie_id not in await CookieManager(store).bookie_ids():
        raise NoSuchKeyError(f"no bookie {bookie_id} ever joined this cluster")
    kept = BookieLabels(store)
    if labels or remove:
        return await kept.change(bookie_id, labels, remove)
    return await kept.read(bookie_id)


def _print(record: dict[str, Any], output: OutputFormat) -> None:

    if output is OutputFormat.TABLE:
        for name in ("garbage_waiting_since_ms", "garbage_first_deletion_at_ms"):
            if record.get(name) is not None:
                record[name] = format_moment(record[name])
        record = {name.removesuffix("_ms"): value for name, value in record.items()}
        record = record | {
            name: format_bytes(size) for name, size in record.items() if name.endswith("_bytes")
        }
        record["read_only_reasons"] = ", ".join(record["read_only_reasons"])
    print_record(record, output)


async def _ask(
    metadata: str, bookie_id: str, path: str, change: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Send a PUT of `change` to the bookie's HTTP server, or a GET if `change` is None."""
    import aiohttp

    from bookie.config import load_settings

    settings = load_settings().security
    endpoint, instance_id, tls_name = await _http_address(metadata, bookie_id, settings)
    url, tls = f"{endpoint.protocol}://{endpoint.address}", None
    if endpoint.protocol == "https":
        from bookie.security import PemFiles

        tls = PemFiles(settings).client_context()
        token = _authorization(settings)
    else:
        token = {}
    # The address may lead to another bookie: a loopback address leads to a bookie of this machine.
    meant = {BOOKIE_ID_METADATA_KEY: bookie_id, INSTANCE_ID_METADATA_KEY: instance_id} | token
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout, headers=meant) as session:
            if change is None:
                call = session.get(f"{url}/{path}", ssl=tls or True, server_hostname=tls_name)
            else:
                call = session.put(
                    f"{url}/{path}", json=change, ssl=tls or True, server_hostname=tls_name
                )
            async with call as response:
                answer: dict[str, Any] = await response.json()
                if response.status == MISDIRECTED:
                    raise WrongBookieError(f"{url} answers: {answer['error']}")
                if response.status != 200:
                    raise RequestError(f"bookie {bookie_id} refused: {answer['error']}")
                return answer
    except aiohttp.ClientSSLError as error:
        raise TlsError(f"bookie {bookie_id} at {url}: {_tls_reason(error)}") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        is_connected = not isinstance(error, aiohttp.ClientConnectorError)
        if tls is not None and is_connected and isinstance(error, aiohttp.ClientOSError):
            raise TlsError(
                f"bookie {bookie_id} at {url} ended the TLS handshake; most often it refuses "
                "this client's certificate (security.certificate_file)"
            ) from error
        raise BookieUnreachableError(f"bookie {bookie_id} does not answer at {url}") from error


def _authorization(settings: SecuritySettings) -> dict[str, str]:
    """Return the header with this client's token; {} without a token.

    Send the header with the token only over TLS.
    """
    from bookie.security.token_file import AUTHORIZATION, TokenFile

    if not settings.token_file:
        return {}
    return {AUTHORIZATION: TokenFile(settings.token_file).authorization()}


def _tls_reason(error: aiohttp.ClientSSLError) -> str:
    """Return the reason for a TLS error: the fault of the certificate, or OpenSSL's message."""
    cause = error.__cause__ or error
    return str(getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or error)


async def _http_address(
    metadata: str, bookie_id: str, settings: SecuritySettings
) -> tuple[Endpoint, str, str | None]:
    """Return the bookie's HTTP address, the cluster's id, and the result of `tls_name_for`."""
    from bookie.cluster.directory import BookieDirectory
    from bookie.cluster.endpoints import endpoint_for
    from bookie.cluster.instance import read_instance_id

    async with open_metadata(metadata) as store, BookieDirectory(store) as directory:
        registration = directory.all().get(bookie_id)
        instance_id = await read_instance_id(store)
    if registration is None or registration.endpoint("http") is None:
        raise BookieUnreachableError(f"bookie {bookie_id} is not registered in this cluster")
    endpoint = endpoint_for(registration, "http", settings)
    return endpoint, instance_id, tls_name_for(registration, endpoint)


def tls_name_for(registration: Registration, endpoint: Endpoint) -> str | None:
    """Return the host that the certificate must name; None means the host of `endpoint`.

    By default HTTP listens on loopback, but the certificate names the host at which the bookie
    accepts entries. So for a loopback `endpoint`, a client must verify the host for entries.
    """
    from bookie.cluster.endpoints import speaks_tls
    from bookie.security.exposure import is_loopback

    if not speaks_tls(endpoint) or not is_loopback(endpoint.host):
        return None
    named = (one.host for one in registration.endpoints if one.name == "bookie" and speaks_tls(one))
    return next(named, None)
