"""Arguments of ``bookie log``: completes names of logs, and parses places, times and time spans."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bookie.log.catalog.log_metadata import LogDefinition
    from bookie.log.read.start_position import LogStart
    from bookie.metadata.store import MetadataStore

_OFFSET = re.compile(r"\d{1,19}", re.ASCII)
_ENTRY = re.compile(r"(\d{1,19}):(\d{1,19})", re.ASCII)
_SPAN = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(s|m|h|d)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def complete_log(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of logs that begin with `incomplete`; empty if the store does not answer."""
    from bookie.cli.stores import on_store
    from bookie.errors import BookieError

    uri = ctx.params.get("metadata")
    if not uri:
        return []
    try:
        names = on_store(uri, _names)
    except (BookieError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


async def _names(store: MetadataStore) -> list[str]:
    from bookie.log.catalog.logs import LogManager

    return [str(name) async for name in LogManager(store).list_logs()]


LogArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The log: LOG, or NAMESPACE/LOG.",
        autocompletion=complete_log,
    ),
]

PartitionOption = Annotated[
    int | None,
    typer.Option(
        "--partition", "-p", min=0, metavar="N", help="Only this partition; all by default."
    ),
]


def parse_place(text: str | None, option: str, *, words: bool = True) -> LogStart:
    """Parse ``earliest``, ``latest``, ``OFFSET`` or ``LEDGER:ENTRY`` into a place in a log.

    Raises:
        typer.BadParameter: `text` is not a place. Also raised for ``earliest`` and ``latest`` if
            `words` is False.
    """
    if text is None:
        return None
    if words and text == "earliest":
        return "earliest"
    if words and text == "latest":
        return "latest"
    if _OFFSET.fullmatch(text):
        return int(text)
    if entry := _ENTRY.fullmatch(text):
        return int(entry[1]), int(entry[2])
    forms = "earliest, latest, OFFSET or LEDGER:ENTRY" if words else "OFFSET or LEDGER:ENTRY"
    raise typer.BadParameter(f"{text!r} must look like {forms}", param_hint=option)


def parse_time(text: str | None, option: str) -> int | None:
    """Convert an ISO 8601 time with a zone, or a number of ms since 1970, to ms since 1970.

    Raises:
        typer.BadParameter: `text` is not a time.
    """
    from bookie.env.clock import parse_moment
    from bookie.errors import BadRequestError

    if text is None:
        return None
    try:
        return parse_moment(text)
    except BadRequestError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def parse_span(text: str, option: str) -> float:
    """Convert a span of time, such as ``90s``, ``15m``, ``24h`` or ``7d``, to seconds.

    Raises:
        typer.BadParameter: `text` is not a span of time.
    """
    span = _SPAN.fullmatch(text)
    if span is None:
        raise typer.BadParameter(
            f"{text!r} must be a number with a unit s, m, h or d", param_hint=option
        )
    return float(span[1]) * _SECONDS[span[2]]


def check_partition(
    name: object, definition: LogDefinition, partition: int | None, *places: LogStart
) -> None:
    """Check that the log has the partition, and that the partition is given if it is needed.

    An offset or an entry in `places` needs a partition if the log has several partitions.

    Raises:
        typer.BadParameter: the partition does not exist, or is needed but None.
    """
    count = definition.partitions
    if partition is not None and partition >= count:
        raise typer.BadParameter(
            f"the log {name} has {count} partitions, and no partition {partition}",
            param_hint="--partition",
        )
    if partition is None and count > 1 and any(isinstance(one, int | tuple) for one in places):
        raise typer.BadParameter(
            f"the log {name} has {count} partitions; an offset or an entry needs one of them",
            param_hint="--partition",
        )
