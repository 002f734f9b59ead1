"""The demonstration, as a user starts it, on as much text as it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookie.daemon.local.process import child_environment

OTHER_CLUSTER = {"BOOKIE_SECURITY__CA_FILE": "/nowhere/ca.pem"}
"""What a user's shell may hold for a cluster that speaks TLS."""


@pytest.mark.timeout(1800)
def test_every_acknowledged_byte_survives_the_demonstration(tmp_path: Path) -> None:
    """200 MB of real text, one bookie killed midway, then all: SHA-256 says that all came back."""
    done = subprocess.run(
        [sys.executable, "-m", "bookie", "demo", "--data", str(tmp_path), "-o", "json"],
        capture_output=True,
        text=True,
        env=child_environment(os.environ) | OTHER_CLUSTER,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps = {step["step"]: step["figures"] for step in json.loads(done.stdout)}
    assert int(steps["made a file of Python sources"].removeprefix("bytes ")) >= 200_000_000
    assert {f"killed bookie-{number} with -9" for number in (1, 2, 3)} <= steps.keys()
    assert "identical yes" in steps["SHA-256 of what came back"]
