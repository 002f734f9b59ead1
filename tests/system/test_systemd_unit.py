"""The service file as systemd itself judges it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

SYSTEMD = Path(__file__).parents[2] / "conf" / "systemd"
PROGRAM = "/opt/bookie/bin/bookie"
EXPOSURE_MAX = 2.0
"""On systemd's scale from 0 (sealed) to 10 (unconfined)."""


def analyze(*arguments: str | Path) -> str:
    """What `systemd-analyze` prints; it must end with success."""
    program = shutil.which("systemd-analyze")
    assert program, "systemd-analyze is missing: apt-get install systemd"
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def installed_unit(tmp_path: Path) -> Path:
    """The unit with a program that exists here; systemd looks for it."""
    text = (SYSTEMD / "bookie.service").read_text(encoding="utf-8")
    assert text.count(f"ExecStart={PROGRAM} serve") == 1
    unit = tmp_path / "bookie.service"
    unit.write_text(text.replace(PROGRAM, "/bin/true"), encoding="utf-8")
    return unit


def test_systemd_accepts_the_unit_without_a_word(tmp_path: Path) -> None:
    """An unknown key is only a warning for systemd, so any output fails."""
    assert analyze("verify", "--man=no", installed_unit(tmp_path)) == ""


def test_a_failed_disk_is_not_served_from_again() -> None:
    """Nothing restarts a bookie whose disk failed, and so hides it, by status or by signal."""
    text = (SYSTEMD / "bookie.service").read_text(encoding="utf-8")
    found = re.search(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)
    assert found
    assert {"74", "SIGBUS"} <= set(found[1].split())
    # A port that is taken and a disk that is not mounted yet are tried again.
    assert "1" not in found[1].split()


def test_the_service_is_confined(tmp_path: Path) -> None:
    """Loosening the hardening shows here."""
    report = analyze("security", "--offline=true", "--no-pager", installed_unit(tmp_path))
    found = re.search(r"Overall exposure level for bookie.service: ([0-9.]+)", report)
    assert found, report
    assert float(found[1]) <= EXPOSURE_MAX, report


def test_the_account_can_be_made() -> None:
    """systemd-sysusers reads the file that comes with the unit."""
    program = shutil.which("systemd-sysusers")
    assert program, "systemd-sysusers is missing: apt-get install systemd"
    done = subprocess.run(
        [program, "--dry-run", str(SYSTEMD / "bookie.sysusers")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
