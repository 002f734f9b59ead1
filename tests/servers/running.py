"""The servers that session-scoped fixtures keep running from test to test."""

from __future__ import annotations

PIDS: set[int] = set()
"""Their process ids, which no single test is blamed for. A fixture adds its own when it has started
a server and takes it out when it has stopped it."""
