"""No two processes that run tests give their servers the same port."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.servers.ports import PORTS, claimed_ports

ROOT = Path(__file__).parents[2]


def test_a_port_belongs_to_one_process() -> None:
    """Another process cannot take it before a server listens. It is given out once."""
    ports = claimed_ports(3)
    assert len(set(ports)) == 3
    assert all(port in PORTS for port in ports)
    program = f"from tests.servers.ports import claim; print([claim(port) for port in {ports}])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout == "[False, False, False]\n", done.stderr
    assert not set(claimed_ports(3)) & set(ports)
