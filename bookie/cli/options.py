"""Options that many commands share.

An option is an annotated type. A command uses an option by naming this type in its signature:
``def show(metadata: Metadata, output: Output = OutputFormat.TABLE)``.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

_Uri = TypeVar("_Uri", str, str | None)


class OutputFormat(enum.StrEnum):
    """The output format of a command's result."""

    TABLE = "table"
    JSON = "json"


def _refuse_other_store(context: typer.Context, uri: _Uri) -> _Uri:
    """Refuse BOOKIE_METADATA if the file that BOOKIE_CONFIG names has another metadata store."""
    source = context.get_parameter_source("metadata")
    if source is not None and source.name == "ENVIRONMENT" and os.environ.get("BOOKIE_CONFIG"):
        from bookie.config import Sources

        Sources.read().require_one_store()
    return uri


_METADATA = typer.Option(
    "--metadata",
    "-m",
    envvar="BOOKIE_METADATA",
    show_envvar=True,
    callback=_refuse_other_store,
    metavar="URI",
    help="The metadata store, such as local:///var/lib/cluster/metadata.",
    show_default=False,
)
Metadata = Annotated[str, _METADATA]
OptionalMetadata = Annotated[str | None, _METADATA]

Output = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="The form of the result."),
]

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="BOOKIE_CONFIG",
        show_envvar=True,
        metavar="FILE",
        help="The bookie's configuration file (TOML).",
    ),
]

LedgerArgument = Annotated[
    int,
    typer.Argument(metavar="LEDGER", min=0, max=2**63 - 1, help="The ledger's id."),
]

Ensemble = Annotated[
    int, typer.Option("--ensemble", "-E", min=1, help="Bookies that share the entries.")
]

WriteQuorum = Annotated[
    int, typer.Option("--write-quorum", "-W", min=1, help="Copies of each entry.")
]

AckQuorum = Annotated[
    int, typer.Option("--ack-quorum", "-A", min=1, help="Copies that make an entry durable.")
]

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="A file that holds the ledger's password, without the line's end. Never an argument: "
        "the list of processes shows those.",
    ),
]

Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not ask. Needed where there is no terminal to ask at."),
]


def read_password(path: Path | None) -> bytes:
    """Return the content of a password file without its last line end; empty if `path` is None.

    Raises:
        OSError: the file is unreadable.
    """
    if path is None:
        return b""
    return path.read_bytes().removesuffix(b"\n").removesuffix(b"\r")


def parse_pairs(words: Sequence[str] | None, form: str) -> dict[str, str]:
    """Convert words ``NAME=VALUE`` to a mapping; of two equal names, the later value counts.

    Raises:
        typer.BadParameter: a word has no equals sign; the message shows the right `form`.
    """
    pairs: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals:
            raise typer.BadParameter(f"{word!r} must look like {form}")
        pairs[name] = value
    return pairs


class UnconfirmedError(typer.TyperException):
    """The command needs a confirmation, but has neither a terminal nor ``--yes``."""

    exit_code = 2


def confirm(question: str, *, yes: bool) -> None:
    """Ask `question` before an irreversible action; if the answer is not yes, raise an error.

    If `yes` is True, the function asks nothing. If standard input is not a terminal, the function
    cannot ask, so a script must give ``--yes``.

    Raises:
        UnconfirmedError: `yes` is False, and standard input is not a terminal.
        typer.Abort: the answer was not yes, or the input ended.
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    import sys

    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UnconfirmedError(f"without a terminal this needs --yes: {question}")
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as abort:
        print(file=sys.stderr)  # end the line of the question
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    if not agreed:
        raise typer.Abort
