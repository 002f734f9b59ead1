"""The bill of materials of the pins, and the audit of the pins against advisories."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_packaging import ROOT, pins

SETS = ("core", "spark", "build", "test", "dev", "docs")


def python(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a script of `requirements/`."""
    return subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The bill of materials, as it is written into a folder that did not exist."""
    path = tmp_path_factory.mktemp("sbom") / "dist" / "bill.json"
    done = python(f"{ROOT}/requirements/sbom.py", str(path))
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    return made


def test_the_bill_of_materials_names_every_pin(bill: dict[str, Any]) -> None:
    """Each with its version, the file and its hash, and a licence: all pins of today have one."""
    found = {one["name"]: one for one in bill["components"]}
    expected = {name: version for of in SETS for name, version in pins(of).items()}
    assert sorted(one["name"] for one in bill["components"]) == sorted(expected)
    for name, version in expected.items():
        row = found[name]
        assert row["version"] == str(version)
        assert row["purl"].startswith(f"pkg:pypi/{name}@{version}?file_name=")
        (digest,) = row["hashes"]
        assert digest["alg"] == "SHA-256"
        assert len(bytes.fromhex(digest["content"])) == 32
        assert row["licenses"]
    assert len({row["hashes"][0]["content"] for row in found.values()}) == len(found)
    assert found["aiohttp"]["scope"] == "required"
    assert found["pyspark"]["scope"] == "optional"
    assert {found[name]["scope"] for name in ("setuptools", "pytest", "mypy")} == {"excluded"}
    assert bill["metadata"]["component"]["name"] == "bookie"


def test_the_bill_of_materials_says_who_requires_whom(bill: dict[str, Any]) -> None:
    """The package requires what `pyproject.toml` asks for, and that brings the rest of the core."""
    graph = {row["ref"]: row.get("dependsOn", []) for row in bill["dependencies"]}
    names = {one["bom-ref"]: one["name"] for one in bill["components"]}
    reached: set[str] = set()
    waiting = list(graph[bill["metadata"]["component"]["bom-ref"]])
    while waiting:
        ref = waiting.pop()
        if names[ref] not in reached:
            reached.add(names[ref])
            waiting += graph[ref]
    assert reached >= set(pins("core")) | set(pins("spark"))
    assert not reached & {"pytest", "mypy", "pip-audit"}


def test_a_bill_of_materials_of_other_pins_is_refused(tmp_path: Path) -> None:
    """A pin was changed by hand, and nobody looked up its file."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "requirements" / "core.txt").open("a", encoding="utf-8") as core:
        core.write("left-out==1.0\n")
    done = python(f"{tmp_path}/requirements/sbom.py", f"{tmp_path}/bill.json")
    assert done.returncode == 1
    assert "run `make lock`" in done.stderr
    assert not (tmp_path / "bill.json").exists()


class _Advisories(BaseHTTPRequestHandler):
    """Answers as OSV does: one distribution has an advisory, another one is not found."""

    weak = ""
    unknown = ""

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = query["package"]["name"]
        found = [{"id": "TEST-1", "summary": "weak", "affected": []}] if name == self.weak else []
        body = json.dumps({"vulns": found} if found else {}).encode()
        self.send_response(404 if name == self.unknown else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (of the base class)
        pass


@contextmanager
def advisories(weak: str = "", unknown: str = "") -> Iterator[str]:
    """The address of a service of advisories on loopback."""
    handler = type("Handler", (_Advisories,), {"weak": weak, "unknown": unknown})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/query"
        finally:
            server.shutdown()
            thread.join()


def audited(address: str) -> subprocess.CompletedProcess[str]:
    """The audit against a service."""
    return python(f"{ROOT}/requirements/audit.py", address)


def test_an_audit_looks_up_every_pin() -> None:
    """It passes if no pin has an advisory, and it says how many were looked up."""
    expected = {name for of in SETS for name in pins(of)}
    with advisories() as address:
        done = audited(address)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(expected)} pins were looked up, 0 advisories were found\n"


def test_an_audit_fails_for_a_weak_pin() -> None:
    """It names the distribution and the advisory."""
    with advisories(weak="kazoo") as address:
        done = audited(address)
    assert done.returncode == 1
    assert f"kazoo {pins('core')['kazoo']}: TEST-1, fixed in no version\n" in done.stdout


def test_an_audit_that_cannot_ask_is_not_green() -> None:
    """A pin that the service cannot look up is no clean pin."""
    with advisories(unknown="kazoo") as address:
        done = audited(address)
    assert done.returncode == 2
    assert done.stderr.startswith("NOT AUDITED: ")
    assert done.stdout == ""
