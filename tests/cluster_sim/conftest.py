"""What the simulation of clusters shares with that of one engine: quiet logs, and figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.conftest import _quiet, report

__all__ = ["_quiet", "parametrize_seeds", "report", "trace_elsewhere"]

ROOT = Path(__file__).parents[2]


def parametrize_seeds(
    metafunc: pytest.Metafunc, name: str, usual: tuple[int, int], of_a_soak: tuple[int, int]
) -> None:
    """Give a test that has the argument `name` ranges of seeds: how many in all, and in each."""
    if name not in metafunc.fixturenames:
        return
    is_soak = metafunc.config.getoption("hypothesis_profile", None) == "soak"
    last, step = of_a_soak if is_soak else usual
    chunks = [range(first, first + step) for first in range(0, last, step)]
    metafunc.parametrize(name, chunks, ids=lambda chunk: f"{chunk[0]} to {chunk[-1]}")


def trace_elsewhere(script: str, seed: int, hash_seed: str, *words: str) -> int:
    """The checksum of everything that happened in a seed, in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-m", f"tests.cluster_sim.{script}", str(seed), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(found.stdout.split()[-1])
