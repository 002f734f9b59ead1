"""``bookie torture``, as a user starts it, for a few seconds."""

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
def test_a_tortured_log_keeps_its_promises(tmp_path: Path) -> None:
    """Faults come, records are acknowledged and read, and the judge finds nothing."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bookie", "torture", "--seconds", "6", "--seed", "5"),
            *("--data", str(tmp_path), "-o", "json"),
        ],
        capture_output=True,
        text=True,
        env=child_environment(os.environ) | OTHER_CLUSTER,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["seed"], found["kept"]) == (5, True)
    assert found["faults"]
    assert 0 < found["acknowledged"] <= found["records"]
    assert found["owners"] > 2
