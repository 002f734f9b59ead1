"""What the simulation of clusters shares with that of one engine: quiet logs, and figures."""

from __future__ import annotations

from tests.sim.conftest import _quiet, report

__all__ = ["_quiet", "report"]
