"""``bookie node``: one bookie, running."""

from __future__ import annotations

import asyncio
import enum
from typing import Annotated, Any

import typer

from bookie.cli.options import Metadata, Output, OutputFormat

TIMEOUT_SECONDS = 5.0

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Ask one running bookie, or switch it to read-only.",
)

BookieArgument = Annotated[str, typer.Argument(metavar="BOOKIE", help="The bookie's id.")]


class Switch(enum.StrEnum):
    """Whether new entries are refused."""

    ON = "on"
    OFF = "off"


@app.command("info")
def info(bookie: BookieArgument, metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """Show what a bookie says of itself: version, sizes, whether it is read-only and why."""
    _print(asyncio.run(_ask(metadata, bookie, None)), output)


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
    _print(asyncio.run(_ask(metadata, bookie, switch is Switch.ON)), output)


def _print(record: dict[str, Any], output: OutputFormat) -> None:
    from bookie.cli.output import format_bytes, print_record

    if output is OutputFormat.TABLE:
        record = record | {
            name: format_bytes(size) for name, size in record.items() if name.endswith("_bytes")
        }
        record["read_only_reasons"] = ", ".join(record["read_only_reasons"])
    print_record(record, output)


async def _ask(metadata: str, bookie_id: str, read_only: bool | None) -> dict[str, Any]:
    """Ask the bookie's own HTTP server, which its registration names."""
    import aiohttp

    from bookie.errors import BookieUnreachableError, RequestError

    url = await _http_address(metadata, bookie_id)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            if read_only is None:
                call = session.get(f"{url}/bookie")
            else:
                call = session.put(f"{url}/read-only", json={"read_only": read_only})
            async with call as response:
                answer: dict[str, Any] = await response.json()
                if response.status != 200:
                    raise RequestError(f"bookie {bookie_id} refused: {answer['error']}")
                return answer
    except (aiohttp.ClientError, TimeoutError) as error:
        raise BookieUnreachableError(f"bookie {bookie_id} does not answer at {url}") from error


async def _http_address(metadata: str, bookie_id: str) -> str:
    from bookie.cluster.directory import BookieDirectory
    from bookie.errors import BookieUnreachableError
    from bookie.metadata.connect import open_store

    async with open_store(metadata) as store, BookieDirectory(store) as directory:
        registration = directory.all().get(bookie_id)
    endpoint = registration.endpoint("http") if registration is not None else None
    if endpoint is None:
        raise BookieUnreachableError(f"bookie {bookie_id} is not registered in this cluster")
    return f"http://{endpoint.host}:{endpoint.port}"
