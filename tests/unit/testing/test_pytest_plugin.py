"""The plugin as its users have it: a project of their own, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[3]
PLUGIN = "bookie.testing.pytest_plugin"

USERS_TESTS = """
import asyncio
import bookie.errors

async def test_async(bookie_cluster):
    async with bookie_cluster(bookies=4) as c, c.connect() as bk:
        async with bk.create_ledger() as writer:
            await writer.append(b"before")
            await c.kill(0)
            await writer.append(b"after")

def test_without_a_plugin_for_async_tests(bookie_cluster):
    async def main():
        async with bookie_cluster(fsync=False) as c, c.connect() as bk:
            return len(bk.bookies())

    assert asyncio.run(main()) == 3

def test_sync(sync_bookie_cluster):
    with sync_bookie_cluster.connect() as bk, bk.create_ledger() as writer:
        assert writer.append(b"entry") == 0
"""

NOTHING_LOADED = """
import sys

def test_nothing_is_loaded():
    assert "bookie.testing.pytest_plugin" in sys.modules
    heavy = {"bookie.api", "bookie.errors", "grpc", "numpy", "uvloop", "lmdb", "pydantic"}
    assert not heavy & set(sys.modules)
"""


def run_pytest(directory: Path, text: str, *plugins: str) -> str:
    """Run pytest on a test file there, with these plugins only; returns what it printed."""
    (directory / "test_users.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-W", "error"),
            *(f"-p{name}" for name in (PLUGIN, *plugins)),
            *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
            str(directory),
        ],
        cwd=directory,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fixtures_give_clusters(tmp_path: Path) -> None:
    """In the loop of pytest-asyncio, in one of the test's own, and without one."""
    assert "3 passed" in run_pytest(tmp_path, USERS_TESTS, "pytest_asyncio.plugin")


def test_the_plugin_costs_nothing_unused(tmp_path: Path) -> None:
    """pytest loads it for every project beside which bookie is installed."""
    assert "1 passed" in run_pytest(tmp_path, NOTHING_LOADED, "pytest_asyncio.plugin")


def test_pytest_finds_it() -> None:
    """The entry point names a module that has both fixtures."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"bookie": PLUGIN}
    plugin = import_module(PLUGIN)
    assert {"bookie_cluster", "sync_bookie_cluster"} <= set(vars(plugin))
