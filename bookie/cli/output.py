"""Results on standard output: aligned columns for people, JSON for programs.

A result is one record (a mapping) or a list of records. The keys of the first record are the
columns of a table. A table has no frame, and each record is one line, so that ``grep``, ``awk`` and
``cut`` can process it. In JSON, numbers stay numbers, and a list stays a list even if it has only
one record.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from bookie.cli.options import OutputFormat

Cell = str | int | float | bool | None | Sequence[str] | Sequence[int] | Mapping[str, object]
Record = Mapping[str, Cell]


def print_records(
    records: Sequence[Record],
    output: OutputFormat,
    *,
    empty: str = "",
    file: TextIO | None = None,
) -> None:
    """Print a list of records as a table or as JSON; print `empty` instead of an empty table."""
    stream = sys.stdout if file is None else file
    if output is OutputFormat.JSON:
        print(json.dumps([dict(record) for record in records], indent=2), file=stream)
    elif records:
        print("\n".join(table_lines(records)), file=stream)
    elif empty:
        print(empty, file=stream)


def print_record(record: Record, output: OutputFormat, *, file: TextIO | None = None) -> None:
    """Print one record as a JSON object, or as lines of ``name  value``."""
    stream = sys.stdout if file is None else file
    if output is OutputFormat.JSON:
        print(json.dumps(dict(record), indent=2), file=stream)
        return
    width = max((len(_title(name)) for name in record), default=0)
    for name, value in record.items():
        print(f"{_title(name):<{width}}  {_text(value)}".rstrip(), file=stream)


def table_lines(records: Sequence[Record]) -> list[str]:
    """Return the lines of a table: aligned columns, with numbers aligned to the right."""
    names = list(records[0])
    rows = [[_text(record.get(name)) for name in names] for record in records]
    titles = [_title(name).upper() for name in names]
    numeric = [all(_is_number(record.get(name)) for record in records) for name in names]
    widths = [
        max(len(titles[column]), *(len(row[column]) for row in rows))
        for column in range(len(names))
    ]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in [titles, *rows]
    ]


def format_bytes(count: float) -> str:
    """Return a size as short text with a unit, such as ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_moment(ms: int) -> str:
    """Return ms since 1970 as text in UTC, such as "2024-10-04T09:30:00+00:00"."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).isoformat("T", "seconds")


def _title(name: str) -> str:
    return name.replace("_", " ")


def _is_number(value: Cell) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _text(value: Cell) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case float():
            return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
        case int():
            return str(value)
        case Mapping():
            return " ".join(f"{name}={item}" for name, item in value.items())
        case _:
            return ", ".join(map(str, value))
