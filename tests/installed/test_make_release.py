"""`make release` in a fresh clone, and the wheel that it makes in a fresh environment."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from tests.installed.environments import ROOT, fresh_clone, installed, run, running_cluster

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def released(clone: Path) -> Path:
    """The folder that the verb fills. It takes this environment as it is, and makes no image."""
    words = ["make", "--no-print-directory", f"VENV={sys.prefix}", f"--old-file={sys.prefix}/.dev"]
    run([*words, "PODMAN=", "release"], clone)
    return clone / "dist"


def test_what_a_release_builds_is_installed_and_runs(tmp_path: Path, wheel: Path) -> None:
    """The wheel comes from the sdist and lacks nothing; a cluster of it takes and gives entries."""
    dist = released(fresh_clone(tmp_path / "bookie"))
    wheel_name, sdist_name = f"bookie-{VERSION}-py3-none-any.whl", f"bookie-{VERSION}.tar.gz"
    assert {path.name for path in dist.iterdir()} == {
        wheel_name,
        sdist_name,
        f"bookie-{VERSION}.cdx.json",
        "news.md",
        "SHA256SUMS",
    }
    run(["sha256sum", "--check", "--strict", "SHA256SUMS"], dist)

    materials = json.loads((dist / f"bookie-{VERSION}.cdx.json").read_text(encoding="utf-8"))
    (digest,) = materials["metadata"]["component"]["hashes"]
    assert digest["content"] == hashlib.sha256((dist / wheel_name).read_bytes()).hexdigest()

    news = (dist / "news.md").read_text(encoding="utf-8")
    assert re.match(rf"## {re.escape(VERSION)}, ", news)
    for path in (ROOT / "changes").glob("*.*.md"):
        assert path.read_text(encoding="utf-8").splitlines()[0] in news

    with zipfile.ZipFile(dist / wheel_name) as made, zipfile.ZipFile(wheel) as expected:
        assert sorted(made.namelist()) == sorted(expected.namelist())
    with tarfile.open(dist / sdist_name) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
    assert {"LICENSE", "README.md", "bookie/py.typed", "pyproject.toml"} <= names

    programs = installed(dist / wheel_name, tmp_path / "venv")
    assert VERSION in run([str(programs / "bookie"), "--version"], tmp_path)
    with running_cluster(programs, tmp_path):
        store = f"--metadata=local://{tmp_path}/data/metadata"
        ledger = run([str(programs / "bookie"), "ledger", "create", store], tmp_path).strip()
        said = f"seq 1000 | {programs}/bookie ledger append {ledger} {store}"
        run(["bash", "-c", said], tmp_path)
        said = run([str(programs / "bookie"), "ledger", "read", ledger, store], tmp_path)
        assert said.splitlines() == [str(number) for number in range(1, 1001)]
