"""Code of a user on a simulated cluster: logs work, faults come, and the seed decides all of it."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import bookie
from bookie.api import BookKeeper
from bookie.errors import BadRequestError, BookieError
from bookie.testing import FAULTS, SIMULATED_URI, simulate

ROOT = Path(__file__).parents[3]
RECORDS = 30


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Bookies die in here, and say so."""
    caplog.set_level("CRITICAL")


async def read(bk: BookKeeper, log: str) -> list[bytes]:
    """All records, as soon as they can be read."""
    while True:
        try:
            return [record.value async for record in bk.read_log(log)]
        except BookieError:
            await asyncio.sleep(0.5)


async def orders(bk: BookKeeper) -> list[bytes]:
    """Append to a log while faults come, and read it with another client."""
    number = 0
    while number < RECORDS:
        try:
            async with bk.open_log("orders") as log:
                while number < RECORDS:
                    await log.append(b"%d" % number, producer=("shop", number))
                    number += 1
                    await asyncio.sleep(random.random())
        except BookieError:
            await asyncio.sleep(0.5)
    while True:
        try:
            async with bookie.connect(SIMULATED_URI) as other:
                return await read(other, "orders")
        except BookieError:
            await asyncio.sleep(0.5)


async def naive(bk: BookKeeper) -> list[bytes]:
    """Append again after an error, with a producer's number or without."""
    return await _outbox(bk, numbered=False)


async def numbered(bk: BookKeeper) -> list[bytes]:
    """The same, done right."""
    return await _outbox(bk, numbered=True)


async def _outbox(bk: BookKeeper, *, numbered: bool) -> list[bytes]:
    number = 0
    while number < RECORDS:
        try:
            async with bk.open_log("outbox", patience_seconds=1.0) as log:
                while number < RECORDS:
                    producer = ("shop", number) if numbered else None
                    async with asyncio.timeout(0.5):
                        await log.append(b"%d" % number, producer=producer)
                    number += 1
                    await asyncio.sleep(0.2)
        except (BookieError, TimeoutError):
            await asyncio.sleep(0.1)
    return await read(bk, "outbox")


def test_a_log_survives_what_the_seeds_draw() -> None:
    """Whatever comes, the records are there once, in their order; no real time passes."""
    happened: set[str] = set()
    for seed in range(4):
        outcome = simulate(seed, orders)
        assert outcome.result == [b"%d" % number for number in range(RECORDS)]
        assert outcome.virtual_seconds > 5
        happened.update(line.partition("fault: ")[2] for line in outcome.story)
    assert len(happened.intersection(FAULTS)) > len(FAULTS) / 2


def test_the_same_seed_is_the_same_run_in_other_processes() -> None:
    """Whatever the hashes of strings are there; another seed is another run."""
    program = (
        "import logging; logging.disable()\n"
        "from bookie.testing import simulate\n"
        "from tests.unit.testing.test_testing_simulate import orders\n"
        "print(simulate(7, orders).trace)"
    )
    traces = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4711")
    ]
    here = simulate(7, orders)
    assert [int(one) for one in traces] == [here.trace, here.trace]
    assert simulate(8, orders).trace != here.trace
    assert simulate(7, orders) == here


def test_chance_of_python_is_the_same_afterwards() -> None:
    """A simulation seeds it, and gives it back."""

    async def draw(_: BookKeeper) -> float:
        return random.random()

    random.seed(5)
    expected = random.random(), random.random()
    random.seed(5)
    first = random.random()
    assert simulate(1, draw).result == simulate(1, draw).result
    assert (first, random.random()) == expected


def test_a_failure_names_its_seed_and_tells_the_story() -> None:
    """Also one of the user's own code."""

    async def fail(bk: BookKeeper) -> None:
        await orders(bk)
        raise LookupError("no such order")

    with pytest.raises(LookupError, match="no such order") as caught:
        simulate(3, fail)
    seed, *story = caught.value.__notes__
    assert "simulate(seed=3)" in seed
    assert any("fault: " in line for line in story)


def test_a_workload_that_hangs_ends_in_virtual_time() -> None:
    """After a day that takes no time."""

    async def hang(_: BookKeeper) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError) as caught:
        simulate(3, hang, faults=(), seconds_max=120.0)
    assert "simulate(seed=3)" in caught.value.__notes__[0]


def test_unknown_faults_are_refused() -> None:
    """A misspelled one would never come."""

    async def nothing(_: BookKeeper) -> None:
        pass

    with pytest.raises(BadRequestError, match="earthquake"):
        simulate(1, nothing, faults=("kill", "earthquake"))


def test_it_works_within_a_running_loop() -> None:
    """As in a test of pytest-asyncio."""

    async def nothing(bk: BookKeeper) -> int:
        return len(bk.bookies())

    async def within() -> int:
        return simulate(1, nothing, bookies=3, faults=()).result

    assert asyncio.run(within()) == 3


def test_the_guide_is_right() -> None:
    """Its program runs as written, and without numbers a seed shows what it says."""
    guide = (ROOT / "docs" / "testing-your-code.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (program,) = (block for block in blocks if "simulate(" in block)
    right: dict[str, Any] = {}
    exec(program, right)
    right["test_every_order_is_there_once"]()
    wrong: dict[str, Any] = {}
    exec(program.replace(', producer=("shop", number)', ""), wrong)
    with pytest.raises(AssertionError):
        wrong["test_every_order_is_there_once"]()


def test_seeds_find_a_retry_that_writes_twice() -> None:
    """A few seeds show what an outbox without numbers does; one with numbers stands them."""
    expected = [b"%d" % number for number in range(RECORDS)]
    faults = ("kill", "pause", "cut both ways", "slow network", "lost replies")

    def run(seed: int, workload: Callable[[BookKeeper], Awaitable[list[bytes]]]) -> list[bytes]:
        return simulate(seed, workload, faults=faults, fault_seconds=20.0).result

    seed = next(seed for seed in range(12) if run(seed, naive) != expected)
    assert run(seed, numbered) == expected
