"""A daemon imports what it uses, and imports it before it is ready."""

from __future__ import annotations

import json
import signal
from http.client import HTTPConnection

import pytest

from bookie.ids import Status
from tests.fault.daemon_process import Home, serving
from tests.fault.test_daemon_life import add_entries

CLIENTS_ROOMS = [f"bookie.ledger.{room}" for room in ("connection", "read", "recover", "write")]
"""Only repair uses them."""
NEEDLESS = {
    *("kazoo", "rich", "structlog", "grpc_reflection.v1alpha", "pyspark", "pytest"),
    *("bookie.api", "bookie.log", "bookie.testing", "bookie._pb.etcd_pb2"),
    *("bookie.metadata.etcd", "bookie.metadata.zookeeper"),
}


@pytest.mark.parametrize("repairs", [True, False])
async def test_a_ready_daemon_has_imported_what_it_needs_and_no_more(
    home: Home, repairs: bool
) -> None:
    """An import in the event loop would keep the first request, or the first scrape, waiting."""
    home.sections["repair"] = {"enabled": repairs}
    http = HTTPConnection(f"127.0.0.1:{home.sections['http']['port']}")
    async with serving(home.write(), "-X", "importtime") as daemon:
        await daemon.until("registered")
        assert await add_entries(home, 0, 3, 100) == [Status.OK] * 3
        http.request("GET", "/metrics")
        assert http.getresponse().status == 200
        http.close()
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0
    imported: list[str] = []
    events: dict[str, int] = {}
    for line in daemon.lines:
        if line.startswith("import time:"):
            imported.append(line.rpartition("|")[2].strip())
        elif line.startswith("{"):
            events[json.loads(line)["event"]] = len(imported)
    needless = NEEDLESS if repairs else NEEDLESS.union(CLIENTS_ROOMS)
    assert sorted(needless & set(imported)) == []
    assert imported[events["registered"] : events["stopping"]] == []
