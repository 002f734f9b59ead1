"""A process that starts a bookie on damaged directories, case after case.

A process of its own, because a damaged index may kill the one that maps it, and a hang has to be
noticed from outside. Cases come on standard input and findings leave on standard output, one line
of JSON each; what else is printed goes to standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bookie.metadata.connect import open_store
from bookie.metadata.store import MetadataStore
from tests.matrix.cells import Cell, apply
from tests.matrix.examine import Finding, examine
from tests.matrix.fuzz import vandalize
from tests.matrix.specimen import SETTINGS, Author, Picture, restore
from tests.unit.node.engine.machine import Machine


class Laboratory:
    """One specimen, and what is done to copies of it."""

    def __init__(self, root: Path, store: MetadataStore, pictures: dict[str, Picture]) -> None:
        self._root = root
        self._store = store
        self._pictures = pictures

    async def cell(self, cell: Cell, starts: int) -> list[Finding]:
        """Start `starts` times on the damage of one cell."""
        changes = {"boot": "another boot"} if cell.place == "system crashed" else {}
        picture = self._pictures[cell.picture]
        return await self._starts(
            picture, starts, lambda: apply(cell, self._root, picture.earlier), **changes
        )

    async def fuzz(self, seed: int, starts: int) -> tuple[str, list[Finding]]:
        """Start `starts` times on a damage that the seed chooses; returns it in words."""
        rng = random.Random(seed)
        picture = self._pictures[rng.choice(["killed", "stopped", "first-life"])]
        words: list[str] = []
        findings = await self._starts(
            picture, starts, lambda: words.append(vandalize(rng, self._root))
        )
        return words[0], findings

    async def _starts(
        self, picture: Picture, starts: int, damage: Callable[[], None], boot: str = "boot-1"
    ) -> list[Finding]:
        await restore(picture, self._root, self._store)
        damage()
        findings = []
        for _ in range(starts):
            machine = Machine(self._root, changes=dict(SETTINGS))
            machine.clock.boot = boot
            findings.append(await examine(machine, self._store, picture.truth))
        return findings


async def handle(laboratory: Laboratory, case: dict[str, object]) -> dict[str, object]:
    """One case; whatever it raises is a finding, too."""
    starts = int(str(case["starts"]))
    try:
        cell = case.get("cell")
        if isinstance(cell, list):
            words, findings = "", await laboratory.cell(Cell(*cell), starts)
        else:
            words, findings = await laboratory.fuzz(int(str(case["seed"])), starts)
    except BaseException:  # noqa: BLE001  (the parent decides; a traceback is always a failure)
        return {"traceback": traceback.format_exc()}
    return {"words": words, "findings": [asdict(finding) for finding in findings]}


async def main() -> None:
    """Serve cases until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    directory = Path(tempfile.mkdtemp(prefix="bookie-matrix-", dir=sys.argv[1]))
    try:
        async with open_store(f"memory://{os.getpid()}") as store:
            machine = Machine(directory / "m", changes=dict(SETTINGS))
            pictures = await Author(machine, store, directory / "pictures").write()
            laboratory = Laboratory(machine.root, store, pictures)
            for line in sys.stdin:
                answer = await handle(laboratory, json.loads(line))
                print(json.dumps(answer), file=answers, flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main())
