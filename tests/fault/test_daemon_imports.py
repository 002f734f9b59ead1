"""A daemon imports what it uses, and imports nothing in its event loop once it is ready."""

from __future__ import annotations

import json
import os
import signal
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

from bookie.ids import Status
from tests.fault.daemon_process import Home, serving
from tests.fault.test_daemon_life import add_entries

CLIENTS_ROOMS = {f"bookie.ledger.{room}" for room in ("connection", "read", "recover", "write")}
"""Only repair uses them."""
NEEDLESS = {
    *("kazoo", "rich", "structlog", "grpc_reflection.v1alpha", "pyspark", "pytest"),
    *("bookie.api", "bookie.log", "bookie.testing", "bookie._pb.etcd_pb2"),
    *("bookie.metadata.etcd", "bookie.metadata.zookeeper"),
}
NOTES_IMPORTS = """
import os, sys, threading
def note(event, arguments):
    if event == "import" and threading.current_thread() is threading.main_thread():
        os.write(2, f"main thread: {arguments[0]}\\n".encode())
sys.addaudithook(note)
"""
"""Tells on standard error which modules the thread of the event loop looks for."""


@pytest.mark.parametrize("repairs", [True, False])
async def test_a_daemon_imports_what_it_needs_and_keeps_no_request_waiting(
    home: Home, tmp_path: Path, repairs: bool
) -> None:
    """An import in the event loop would keep the first request, or the first scrape, waiting.

    Repair comes in a thread once the bookie is registered.
    """
    home.sections["repair"] = {"enabled": repairs}
    http = HTTPConnection(f"127.0.0.1:{home.sections['http']['port']}")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(NOTES_IMPORTS)
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    async with serving(home.write(), "-X", "importtime", PYTHONPATH=path) as daemon:
        await daemon.until("registered")
        assert await add_entries(home, 0, 3, 100) == [Status.OK] * 3
        http.request("GET", "/metrics")
        assert http.getresponse().status == 200
        http.close()
        if repairs:
            await daemon.until("ledgers_surveyed")
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.end() == 0
    imported: dict[str, list[str]] = {"": []}
    looked_for: dict[str, list[str]] = {"": []}
    event = ""
    for line in daemon.lines:
        if line.startswith("import time:"):
            imported[event].append(line.rpartition("|")[2].strip())
        elif line.startswith("main thread:"):
            looked_for[event].append(line.partition(": ")[2])
        elif line.startswith("{"):
            told = json.loads(line)["event"]
            event = told if told in ("registered", "stopping") else event
            imported.setdefault(event, [])
            looked_for.setdefault(event, [])
    assert "bookie.daemon.daemon" in looked_for[""]
    assert sorted((NEEDLESS | CLIENTS_ROOMS) & set(imported[""])) == []
    assert looked_for["registered"] == []
    assert set(imported["registered"]) >= (CLIENTS_ROOMS if repairs else set())
    assert repairs or imported["registered"] == []
    assert sorted(NEEDLESS & set(imported["registered"])) == []
