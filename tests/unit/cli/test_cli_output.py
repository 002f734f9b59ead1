"""Tables and JSON on standard output."""

from __future__ import annotations

import io
import json

import pytest

from bookie.cli.options import OutputFormat
from bookie.cli.output import (
    Record,
    format_bytes,
    print_record,
    print_records,
    table_lines,
)
from bookie.cli.progress import progress_bar

RECORDS: list[Record] = [
    {"ledger_id": 7, "state": "OPEN", "bookies": ["b1", "b2"], "length": None},
    {"ledger_id": 12345, "state": "CLOSED", "bookies": [], "length": 10},
]


def test_table_aligns_columns_and_puts_numbers_right() -> None:
    """One record a line, no frame, titles from the names."""
    assert table_lines(RECORDS) == [
        "LEDGER ID  STATE   BOOKIES  LENGTH",
        "        7  OPEN    b1, b2        -",
        "    12345  CLOSED               10",
    ]


def test_json_list_stays_a_list() -> None:
    """JSON of records is a list also when there is none or one, with numbers as numbers."""
    for records in (RECORDS[:0], RECORDS[:1], RECORDS):
        file = io.StringIO()
        print_records(records, OutputFormat.JSON, empty="nothing", file=file)
        assert json.loads(file.getvalue()) == records


def test_empty_table_says_so() -> None:
    """A person reads a sentence when there is nothing to show."""
    file = io.StringIO()
    print_records([], OutputFormat.TABLE, empty="no ledgers", file=file)
    assert file.getvalue() == "no ledgers\n"


def test_record_as_lines_and_as_object() -> None:
    """One record is name and value a line, or a JSON object."""
    lines, document = io.StringIO(), io.StringIO()
    print_record({"ledger_id": 3, "open": True}, OutputFormat.TABLE, file=lines)
    print_record({"ledger_id": 3, "open": True}, OutputFormat.JSON, file=document)
    assert lines.getvalue() == "ledger id  3\nopen       yes\n"
    assert json.loads(document.getvalue()) == {"ledger_id": 3, "open": True}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 * 1024**3, "3.0 GiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    """Sizes carry binary units."""
    assert format_bytes(count) == text


def test_progress_is_silent_when_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    """Only a terminal on standard error gets a bar."""
    with progress_bar("writing", total=10) as advance:
        advance(10)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize("unit", ["bytes", "entries"])
def test_progress_shows_its_title(unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Watched, it draws on standard error and never on standard output."""
    with progress_bar("writing", total=10, unit=unit, watched=True) as advance:
        advance(10)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "writing" in captured.err
