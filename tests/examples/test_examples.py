"""The programs in `examples/` do what they say, as real processes on a real cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bookie.sync
from bookie.daemon.local.process import child_environment

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 300.0


class Terminal:
    """Starts examples on one cluster."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.uri = f"local://{directory}/cluster/metadata"
        self.errors = directory / "errors.txt"
        """What the examples logged: under load a bookie may be slow, which changes no result."""
        self.environment = child_environment(os.environ) | {
            "BOOKIE_METADATA": self.uri,
            "PYTHONPATH": str(ROOT),
        }

    def run(self, example: str, *words: str, status: int = 0) -> list[str]:
        """Run an example to its end; the lines that it printed."""
        with self.start(example, *words) as process:
            lines = process.communicate(timeout=SECONDS_MAX)[0].splitlines()
        assert process.returncode == status, (lines, self.errors.read_text())
        return lines

    @contextmanager
    def start(self, example: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Start an example; it is killed if it runs for too long, and at the end."""
        with (
            self.errors.open("a") as errors,
            subprocess.Popen(
                [sys.executable, str(ROOT / "examples" / f"{example}.py"), *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self.directory,
                env=self.environment,
            ) as process,
        ):
            late = threading.Timer(SECONDS_MAX, process.kill)
            late.start()
            try:
                yield process
            finally:
                late.cancel()
                process.kill()
                late.join()


def until(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines that it prints up to one with `text`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if text in line:
            return lines
    raise AssertionError(f"ended before {text!r}: {lines}")


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A cluster of three bookies, as `make run` starts it, for all tests of this file."""
    directory = tmp_path_factory.mktemp("examples")
    words = [sys.executable, "-m", "bookie", "local", "--data", str(directory / "cluster")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as supervisor:
        try:
            until(supervisor, "The cluster is up")
            yield Terminal(directory)
        finally:
            supervisor.send_signal(signal.SIGINT)
            supervisor.communicate()
    assert supervisor.returncode == 0


def test_a_second_counter_goes_on_without_a_gap(terminal: Terminal) -> None:
    """The first one ends; its last addition may have counted without its knowledge."""
    with terminal.start("replicated_counter", "--pause-seconds", "0.01") as first:
        assert until(first, "5") == ["took over at 0", "1", "2", "3", "4", "5"]
        taken, *values = terminal.run("replicated_counter", "--times", "5", "--pause-seconds", "0")
        *rest, ended = until(first, "ended")
        assert first.wait(SECONDS_MAX) == 0
    known = int(rest[-1]) if rest else 5
    begin = int(taken.removeprefix("took over at "))
    assert begin in (known, known + 1)
    assert list(map(int, rest)) == list(range(6, known + 1))
    assert list(map(int, values)) == list(range(begin + 1, begin + 6))
    assert "counter" in ended
    with bookie.sync.connect(terminal.uri) as bk:
        assert sum(int(record.value) for record in bk.read_log("counter")) == begin + 5


def test_an_outbox_is_sent_once(terminal: Terminal) -> None:
    """A crash between the append and the mark leaves no duplicate."""
    first = terminal.run("outbox_producer", "--crash", "orders.db", "tea", "cake", status=1)
    (tea,) = first
    assert re.fullmatch(r"tea is at offset \d+", tea)
    again = terminal.run("outbox_producer", "orders.db", "coffee")
    assert [line.partition(" ")[0] for line in again] == ["tea", "cake", "coffee", "log:"]
    assert again[0] == tea
    assert again[-1] == "log: tea cake coffee"
    assert terminal.run("outbox_producer", "orders.db") == ["log: tea cake coffee"]


def test_a_cache_follows_its_log(terminal: Terminal) -> None:
    """Also one that starts later."""
    with terminal.start("tailing_cache") as early:
        until(early, "following")
        terminal.run("tailing_cache", "colour=red", "size=7")
        assert until(early, "size")[-1] == "{'colour': 'red', 'size': '7'}"
        terminal.run("tailing_cache", "colour=", "size=8")
        assert until(early, "{'size': '8'}")
        with terminal.start("tailing_cache") as late:
            assert until(late, "{'size': '8'}")


def test_workers_share_the_jobs(terminal: Terminal) -> None:
    """Each job has one worker; what one leaves behind is the other's."""
    with (
        terminal.start("group_of_workers", "work", "anna") as anna,
        terminal.start("group_of_workers", "work", "bert") as bert,
    ):
        owned = [re.compile(rf"{name} has jobs#\d jobs#\d$") for name in ("anna", "bert")]
        for process, pattern in zip((anna, bert), owned, strict=True):
            assert process.stdout is not None
            assert any(pattern.match(line) for line in process.stdout)
        terminal.run("group_of_workers", "make", "40")
        done: list[str] = []
        threads = [
            threading.Thread(target=collect, args=(process, name, done))
            for process, name in ((anna, "anna"), (bert, "bert"))
        ]
        for thread in threads:
            thread.start()
        wait_for(done, 40)
        assert len({line.split(":")[0] for line in done}) == 2
        bert.send_signal(signal.SIGINT)
        assert bert.wait(SECONDS_MAX) == 0
        terminal.run("group_of_workers", "make", "40")
        wait_for(done, 80)
        anna.send_signal(signal.SIGINT)
        for thread in threads:
            thread.join()
        assert anna.wait(SECONDS_MAX) == 0
    assert all(line.startswith("anna") for line in done[40:])
    jobs = [line.partition(": ")[2] for line in done]
    assert sorted(jobs[:40]) == sorted(jobs[40:]) == sorted(set(jobs))
    for customer in range(10):
        numbers = [int(job.split()[1]) for job in jobs[:40] if job.endswith(f"r {customer}")]
        assert numbers == sorted(numbers)


NEWS = threading.Condition()


def collect(process: subprocess.Popen[str], name: str, done: list[str]) -> None:
    """Add the jobs that a worker does to `done`."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"{name}: "):
            with NEWS:
                done.append(line.rstrip())
                NEWS.notify_all()


def wait_for(done: list[str], count: int) -> None:
    """Wait until so many jobs are done."""
    with NEWS:
        assert NEWS.wait_for(lambda: len(done) >= count, SECONDS_MAX), done


def test_sales_are_counted_once(terminal: Terminal) -> None:
    """A crash in the middle of a transaction leaves neither its sum nor its position."""
    sales = ["tea=3", "tea=4", "cake=5"]
    crashed = terminal.run("exactly_once_sqlite", "--crash-after", "1", "sums.db", *sales, status=1)
    assert crashed == ["from offset 0"]
    again = terminal.run("exactly_once_sqlite", "sums.db")
    assert again == ["from offset 1", "cake 5", "tea 7"]
    assert terminal.run("exactly_once_sqlite", "sums.db")[1:] == ["cake 5", "tea 7"]
