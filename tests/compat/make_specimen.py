"""Directories and metadata as one version of the program leaves them, packed for the tests.

``python -m tests.compat.make_specimen TREE NAME`` runs three bookies and a client of the tree at
TREE and packs two specimens: ``specimens/NAME-stopped`` after an orderly stop, and
``specimens/NAME-killed`` after SIGKILL without a checkpoint. Beside each archive stands a file with
what is in it. Run it once for each release, and only with the program of that release.

In the middle the first bookie is killed and starts again, so that it has an entry log from its
replay besides journal files. The metadata directory and the three bookies lie side by side. Cookies
name the absolute paths of the machine that made them, so a test moves them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from bookie.daemon.local.process import child_environment
from tests.servers.ports import claimed_ports

SPECIMENS = Path(__file__).parent / "specimens"
BOOKIES = ("b1", "b2", "b3")

SETTINGS = """
[bookie]
id = "{name}"
[listen]
port = {port}
[http]
port = {http_port}
[metadata]
uri = "{uri}"
session_timeout_seconds = 2.0
[garbage]
interval_seconds = 3600.0
[storage]
journal_dir = "{home}/journal"
ledgers_dir = "{home}/ledgers"
journal_file_bytes_max = "5MiB"
journal_allocate_bytes = "64KiB"
block_bytes_max = "5MiB"
checkpoint_interval_seconds = 3600.0
reserve_bytes = 0
"""
"""Small files; a checkpoint only at a start and at an orderly stop."""


class Tree:
    """The program of one version, run as processes of this interpreter's environment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._environment = child_environment(os.environ) | {"PYTHONPATH": str(path)}

    async def run(self, *words: str) -> str:
        """Run Python with these arguments to its end; its standard output."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            cwd=self._path,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, words
        return output.decode()

    @asynccontextmanager
    async def serving(self, config: Path) -> AsyncIterator[asyncio.subprocess.Process]:
        """A bookie that is registered; killed at the end if it still runs."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bookie", "serve", "--config", str(config)),
            cwd=self._path,
            env=self._environment,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            lines = [await process.stderr.readline()]
            while b'"event": "registered"' not in lines[-1]:
                assert lines[-1], lines
                lines.append(await process.stderr.readline())
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.stderr.read()


async def make(tree: Tree, path: Path, *, stop: signal.Signals) -> list[dict[str, object]]:
    """Leave a cluster in `path`, whose bookies ended by `stop`; what a reader has to find."""
    uri = f"local://{path}/metadata"
    await tree.run("-m", "bookie", "cluster", "init", "--metadata", uri)
    filling = str(Path(__file__).with_name("filling.py"))
    configs = [write_settings(path, name, uri) for name in BOOKIES]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(tree.serving(configs[0]))
        others = [await stack.enter_async_context(tree.serving(config)) for config in configs[1:]]
        ledgers: list[dict[str, object]] = json.loads(await tree.run(filling, uri))
        first.kill()
        await first.wait()
        again = await stack.enter_async_context(tree.serving(configs[0]))
        ledgers += json.loads(await tree.run(filling, uri))
        for process in (again, *others):
            process.send_signal(stop)
            await process.wait()
    for config in configs:
        config.unlink()
    return ledgers


def write_settings(path: Path, name: str, uri: str) -> Path:
    """The settings of one bookie."""
    port, http_port = claimed_ports(2)
    config = path / f"{name}.toml"
    config.write_text(
        SETTINGS.format(name=name, port=port, http_port=http_port, uri=uri, home=path / name),
        encoding="utf-8",
    )
    return config


def pack(path: Path, name: str, ledgers: list[dict[str, object]]) -> None:
    """Write the archive, and beside it what is in it, one ledger a line."""
    with tarfile.open(SPECIMENS / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for child in sorted(path.iterdir()):
            archive.add(child, arcname=child.name)
    lines = ",\n".join(json.dumps(ledger) for ledger in ledgers)
    (SPECIMENS / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


async def main(tree: Path, name: str) -> None:
    """Make and pack both specimens."""
    SPECIMENS.mkdir(exist_ok=True)
    for how, stop in (("stopped", signal.SIGTERM), ("killed", signal.SIGKILL)):
        path = Path(tempfile.mkdtemp(prefix="specimen-"))
        try:
            ledgers = await make(Tree(tree), path, stop=stop)
            pack(path, f"{name}-{how}", ledgers)
        finally:
            shutil.rmtree(path)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).absolute(), sys.argv[2]))
