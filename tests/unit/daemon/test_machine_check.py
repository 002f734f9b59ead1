"""The measurements behind ``bookie doctor``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookie.cli import app
from bookie.daemon import machine_check
from bookie.daemon.descriptors import DESCRIPTORS_MIN
from bookie.daemon.machine_check import Severity

MOUNTS = b"""\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:5 / /dev rw - devtmpfs devtmpfs rw
24 22 0:40 / /tmp/shm\\040space rw,nosuid shared:9 master:2 - tmpfs tmpfs rw
25 22 0:41 / /tmp/shm\\040space rw - nfs4 server:/x rw
"""


def test_syncs_are_measured_and_leave_nothing(tmp_path: Path) -> None:
    """As many latencies as asked for, and no file left behind."""
    latencies = machine_check.measure_syncs(tmp_path, 5)
    assert len(latencies) == 5
    assert all(0 <= latency < 60 for latency in latencies)
    assert list(tmp_path.iterdir()) == []


def test_slow_syncs_are_a_warning() -> None:
    """The 99th percentile decides."""
    assert machine_check.evaluate_syncs("journal", [0.0002] * 100).verdict is Severity.OK
    slow = machine_check.evaluate_syncs("journal", [0.0002] * 98 + [0.5] * 2)
    assert slow.verdict is Severity.WARN
    assert slow.numbers["p50_seconds"] == 0.0002
    assert slow.numbers["p99_seconds"] == 0.5


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/etc", "ext4"), ("/dev/null", "devtmpfs"), ("/tmp/shm space/x", "nfs4"), ("/tmp", "ext4")],
)
def test_file_system_is_that_of_the_deepest_last_mount(path: str, kind: str) -> None:
    """The longest mount point wins, the later one among equals; octal escapes are understood."""
    assert machine_check.file_system_of(Path(path), MOUNTS)[0] == kind


@pytest.mark.parametrize("name", ["ümlaut", "\udcff\udcfe", "a\x85b", "back\\slash", "tab\there"])
def test_mount_points_may_have_any_name(name: str) -> None:
    """A name is bytes; the kernel escapes a few of them."""
    written = os.fsencode(name)
    for character in b"\\\t":
        written = written.replace(bytes([character]), b"\\%03o" % character)
    mounts = MOUNTS + b"40 1 8:9 / /mnt/%s rw - xfs /dev/x rw\n\n" % written
    assert machine_check.file_system_of(Path("/mnt", name, "x"), mounts) == ("xfs", f"/mnt/{name}")
    assert machine_check.file_system_of(Path("/etc"), mounts)[0] == "ext4"


def test_doctor_of_a_directory_with_any_name(tmp_path: Path) -> None:
    """Unprintable text is printed escaped, also on a terminal without umlauts."""
    directory = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(directory)
    done = subprocess.run(
        [sys.executable, "-m", "bookie", "doctor", directory, "--syncs", "10"],
        env=os.environ | {"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert b"journal sync" in done.stdout, done.stderr
    assert b"\\xb5s" in done.stdout
    assert done.stderr == b""


def test_real_mounts_are_readable(tmp_path: Path) -> None:
    """This machine's table of mounts names a type for any path."""
    assert machine_check.file_system_of(tmp_path)[0] != "unknown"


def test_nearest_existing_parent(tmp_path: Path) -> None:
    """A directory that does not exist yet is measured where it would be made."""
    assert machine_check.nearest_existing(tmp_path / "a" / "b") == tmp_path


def test_same_device_is_a_warning(tmp_path: Path) -> None:
    """Journal and ledgers on one device compete."""
    assert machine_check.check_devices(tmp_path, tmp_path).verdict is Severity.WARN
    assert machine_check.check_devices(tmp_path, Path("/proc")).verdict is Severity.OK


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        (DESCRIPTORS_MIN - 1, Severity.FAIL),
        (DESCRIPTORS_MIN, Severity.WARN),
        (1024, Severity.WARN),
        (65536, Severity.OK),
        (-1, Severity.OK),
    ],
)
def test_open_files(limit: int, verdict: Severity) -> None:
    """A small limit is a warning, one that cannot work a failure; -1 is unlimited."""
    assert machine_check.check_files_limit(limit).verdict is verdict


def test_interpreter() -> None:
    """Too old, or with the assertions stripped, is a failure."""
    assert machine_check.check_python((3, 11, 0), optimized=False).verdict is Severity.OK
    assert machine_check.check_python((3, 10, 9), optimized=False).verdict is Severity.FAIL
    assert machine_check.check_python((3, 12, 1), optimized=True).verdict is Severity.FAIL


def test_missing_library_is_a_failure() -> None:
    """A library that is not installed is named, with the command that installs it."""
    check = machine_check.check_libraries(["pytest", "no-such-library"])
    assert check.verdict is Severity.FAIL
    assert check.advice == "pip install no-such-library"


def test_clocks() -> None:
    """Both clocks can be judged on any Linux."""
    assert machine_check.check_monotonic_clock().verdict is Severity.OK
    assert machine_check.check_clock_synchronised().verdict in {Severity.OK, Severity.WARN}


def test_unwritable_directory_is_a_failure() -> None:
    """A directory that refuses files fails the machine (also for root, as in /proc)."""
    checks = machine_check.check_directory("journal", Path("/proc"), syncs=10)
    assert checks[-1].verdict is Severity.FAIL
    assert len(checks[-1].found) > 0


def test_doctor_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints every check with its numbers and exits with 0 on a sound machine."""
    assert app.run(["doctor", str(tmp_path), "--syncs", "10", "--output", "json"]) == 0
    checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["journal sync"]["numbers"]["count"] == 10
    assert checks["python"]["verdict"] == "ok"


def test_doctor_measures_the_configured_directories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a configuration both of its directories are measured, also before they exist."""
    (tmp_path / "bookie.toml").write_text(
        f'[storage]\njournal_dir = "{tmp_path}/a/journal"\nledgers_dir = "{tmp_path}/b/ledgers"\n',
        encoding="utf-8",
    )
    words = ["doctor", "--config", str(tmp_path / "bookie.toml"), "--syncs", "10", "-o", "json"]
    assert app.run(words) == 0
    names = {check["check"] for check in json.loads(capsys.readouterr().out)}
    assert {"journal sync", "ledgers sync", "devices"} <= names
    assert not (tmp_path / "a").exists()


def test_doctor_fails_where_a_bookie_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    """One failed check is exit status 1."""
    assert app.run(["doctor", "/proc", "--syncs", "10"]) == 1
    assert "fail" in capsys.readouterr().out
