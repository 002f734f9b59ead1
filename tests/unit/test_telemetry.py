"""Metrics and log lines, as an operator's tools see them."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families

from bookie.daemon.repair_process import RepairProcessMetrics
from bookie.telemetry import Event, Metrics, configure_logging, event_log
from bookie.telemetry import metrics as telemetry
from bookie.telemetry.fast_metrics import FastCounter

PACKAGE = Path(telemetry.__file__).parents[1]


class Terminal(io.StringIO):
    """Takes what a terminal would show."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, put back as it was afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers, root.level = handlers, level
    logging.captureWarnings(capture=False)


def families(metrics: Metrics) -> dict[str, str]:
    """Metric family name → type, as a scraper parses them."""
    body, _ = metrics.exposition()
    return {family.name: family.type for family in text_string_to_metric_families(body.decode())}


def test_every_declared_metric_is_exposed_under_its_name() -> None:
    """The attribute name is the metric name behind the prefix `bookie_`."""
    metrics = Metrics()
    exposed = families(metrics)
    declared = vars(metrics).keys() - {"registry", "info"}
    assert declared
    assert {f"bookie_{name.removesuffix('_total')}" for name in declared} <= exposed.keys()


def test_names_say_what_is_counted() -> None:
    """A counter by its end, and an amount by its unit."""
    metrics = Metrics()
    for name, metric in vars(metrics).items():
        is_counter = isinstance(metric, Counter | FastCounter)
        assert is_counter == name.endswith("_total"), name
    body, _ = metrics.exposition()
    for family in text_string_to_metric_families(body.decode()):
        words = re.findall(r"[a-z]+", family.documentation.lower())
        if words[0] in ("time", "seconds") or "in seconds" in family.documentation:
            assert family.name.endswith("_seconds"), family.documentation
        if words[0] == "bytes":
            assert "bytes" in family.name.split("_"), family.documentation


@pytest.mark.parametrize(
    "slang",
    ["tells", "told", "looked for", "no more", "left alone", "greediest", "at the last look"],
)
def test_help_texts_use_plain_words(slang: str) -> None:
    body, _ = Metrics().exposition()
    texts = [line for line in body.decode().splitlines() if line.startswith("# HELP bookie_")]
    assert texts
    assert [line for line in texts if slang in line] == []


def test_a_process_that_repairs_exposes_no_bookie() -> None:
    exposed = families(RepairProcessMetrics())
    assert {"bookie_repair_auditor", "process_open_fds"} <= exposed.keys()
    assert not {"bookie_server_status", "bookie_disk_free_bytes"} & exposed.keys()


def test_names_are_ours_or_the_standard_process_ones() -> None:
    """Names have only these prefixes, and `_created` series are left out."""
    metrics = Metrics()
    assert all(name.startswith(("bookie_", "process_")) for name in families(metrics))
    assert b"_created" not in metrics.exposition()[0]


@pytest.mark.parametrize(
    ("metric", "values"),
    [("errors_total", telemetry.ERROR_KINDS), ("reads_total", telemetry.READ_SOURCES)],
)
def test_label_values_are_declared_counted_from_zero_and_used(
    metric: str, values: tuple[str, ...]
) -> None:
    """A rate sees the first error only if the series was there before; no value is dead."""
    exposed = Metrics().exposition()[0].decode()
    assert all(re.search(rf'bookie_{metric}{{\w+="{value}"}} 0.0', exposed) for value in values)
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        used |= set(re.findall(rf'{metric}\.labels\("(\w+)"\)', path.read_text(encoding="utf-8")))
    assert used == set(values)


def test_alerts_ask_for_metrics_that_exist() -> None:
    """Every name and every kind of error in the rules for Prometheus is one that is exposed."""
    rules = (PACKAGE.parent / "conf" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    asked = re.findall(r"bookie_\w+", rules)
    assert asked
    assert {re.sub(r"_(bucket|total)$", "", name) for name in asked} <= families(Metrics()).keys()
    kinds = {kind for text in re.findall(r'kind=~?"([^"]+)"', rules) for kind in text.split("|")}
    assert kinds
    assert kinds <= set(telemetry.ERROR_KINDS)


def test_two_bookies_in_one_process_do_not_share_metrics() -> None:
    """Each object has its own registry."""
    first, second = Metrics(), Metrics()
    first.entries_added_total.inc(3)
    first.requests_total.labels(rpc="Read", status="OK").inc()
    assert b"bookie_entries_added_total 3.0" in first.exposition()[0]
    assert b"bookie_entries_added_total 0.0" in second.exposition()[0]
    assert b'bookie_requests_total{rpc="Read",status="OK"} 1.0' in first.exposition()[0]


def test_histograms_end_above_the_time_after_which_a_device_is_given_up() -> None:
    """Buckets rise, and reach what their metric can measure."""
    for buckets in (telemetry.SECONDS_BUCKETS, telemetry.BYTES_BUCKETS, telemetry.COUNT_BUCKETS):
        assert list(buckets) == sorted(set(buckets))
    assert telemetry.BYTES_BUCKETS[-1] >= 8 * 1024 * 1024


def test_importing_telemetry_imports_no_prometheus() -> None:
    """A client that only logs does not pay for it."""
    code = (
        "import sys, bookie.telemetry;"
        "bookie.telemetry.configure_logging('info', 'console');"
        "sys.exit(bool({'prometheus_client', 'structlog', 'rich'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_event_is_one_json_line(root_logger: logging.Logger) -> None:
    """Keys: timestamp, level, logger, event, bound fields, fields of the call (which win)."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream, bookie_id="b1")
    event_log("bookie.node").info("ledger_fenced", ledger_id=7, reason="recovery")
    line = json.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "bookie.node",
        "event": "ledger_fenced",
        "bookie_id": "b1",
        "ledger_id": 7,
        "reason": "recovery",
    }
    assert stream.getvalue().count("\n") == 1


def test_levels_below_the_configured_one_are_dropped(root_logger: logging.Logger) -> None:
    """`info` says nothing at level `warning`."""
    stream = io.StringIO()
    configure_logging("warning", "json", stream=stream)
    log = event_log("bookie.x")
    log.info("b")
    log.warning("c")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["c"]


def test_a_failure_carries_its_traceback_in_the_same_line(root_logger: logging.Logger) -> None:
    """`error` writes the exception it is given."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    try:
        raise OSError("disk gone")
    except OSError as error:
        event_log("bookie.x").error("storage_failed", error=error, path="/data")
    (line,) = stream.getvalue().splitlines()
    parsed = json.loads(line)
    assert (parsed["level"], parsed["path"]) == ("error", "/data")
    assert "OSError: disk gone" in parsed["exception"]


def test_records_of_other_libraries_and_warnings_are_rendered_too(
    root_logger: logging.Logger,
) -> None:
    """One format for the whole process."""
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    logging.getLogger("grpc").warning("bound to %s", "port")
    with warnings.catch_warnings():
        warnings.simplefilter("always", DeprecationWarning)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["logger"], first["event"]) == ("grpc", "bound to port")
    assert second["logger"] == "py.warnings"


def test_what_is_caught_nowhere_is_a_line_too() -> None:
    """In the main thread, in another, in a destructor, in a task; and a record that is wrong."""
    script = """
import asyncio, logging, threading
from bookie.telemetry import configure_logging, log_uncaught

configure_logging("info", "json")
log_uncaught()

class Grave:
    def __del__(self):
        raise ValueError("in a destructor")

def fail(where):
    raise ValueError(where)

async def lose_a_task():
    asyncio.create_task(asyncio.sleep(0)).add_done_callback(lambda _: fail("in a callback"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

Grave()
thread = threading.Thread(target=fail, args=("in a thread",), name="t1")
thread.start()
thread.join()
asyncio.run(lose_a_task())
logging.getLogger("other").warning("%d", "no number")
fail("in the main thread")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines if line["logger"] != "asyncio"] == [
        "unraisable_exception",
        "uncaught_exception",
        "log_line_lost",
        "uncaught_exception",
    ]
    text = done.stderr
    for where in ("in a destructor", "in a thread", "in a callback", "in the main thread"):
        assert f"ValueError: {where}" in text
    assert lines[1]["thread"] == "t1"
    assert lines[3]["logger"] == "other"


def test_the_console_format_names_event_and_fields(root_logger: logging.Logger) -> None:
    """It is for people: a traceback has its own lines, and only a terminal gets colours."""
    stream, terminal = io.StringIO(), Terminal()
    configure_logging("info", "console", stream=stream, bookie="b1")
    event_log("bookie.x").info("started", port=3181, reason="two words", left="")
    when, _, said = stream.getvalue().partition(" ")
    assert when.endswith("Z")
    assert " ".join(said.split()) == (
        "[info ] started [bookie.x] bookie=b1 port=3181 reason='two words' left=''"
    )
    try:
        raise OSError("disk gone")
    except OSError as error:
        event_log("bookie.x").error("failed", error)
    assert stream.getvalue().endswith("\nOSError: disk gone\n")
    configure_logging("info", "console", stream=terminal)
    event_log("bookie.x").info("started", port=3181)
    assert "\x1b[1mstarted" in terminal.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_without_configuration_an_event_reads_as_text(caplog: pytest.LogCaptureFixture) -> None:
    """A program that embeds the client keeps its own logging."""
    with caplog.at_level(logging.INFO, logger="bookie.x"):
        event_log("bookie.x").info("ledger_closed", ledger_id=3, last_entry_id=9)
    assert caplog.messages == ["ledger_closed ledger_id=3 last_entry_id=9"]
    assert caplog.records[0].funcName.startswith("test_without")
    assert str(Event("plain")) == "plain"
