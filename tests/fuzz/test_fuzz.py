"""Every parser of bytes from outside keeps its contract, whatever the bytes.

For each row of the table: its seeds, the inputs that once failed (`corpus`), and thousands of
changed seeds. By day the changes are always the same. A soak takes a hundred times as many, from a
seed that it prints.

Every test bounds the memory of a parser, and every input its processor time.
"""

from __future__ import annotations

import random
import secrets

import pytest

from tests.fuzz.edits import drawn
from tests.fuzz.table import HAS_SPARK, TARGETS
from tests.fuzz.target import CORPUS, bounded_growth, watched

SEED = 20261128
SOAK_FACTOR = 100
IN_ONE_MESSAGE = 2000
"""An input that is longer is cut in the message of a failure."""


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_taken_and_the_corpus_is_answered(name: str) -> None:
    """A seed that the parser refuses would make all its changes worthless."""
    target = TARGETS[name]
    with watched(target), bounded_growth(name):
        for seed in target.seeds:
            assert target.check(seed), seed[:IN_ONE_MESSAGE]
        for data in target.corpus:
            target.check(data)


def test_the_corpus_belongs_to_the_table() -> None:
    """A renamed row would forget its inputs."""
    named = {path.name for path in CORPUS.iterdir()}
    assert {name for name in named if HAS_SPARK or not name.startswith("spark.")} <= TARGETS.keys()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", TARGETS)
def test_changed_seeds(name: str, is_soak: bool) -> None:
    """No foreign error, no hang, no growth, and what is taken survives its own encoder."""
    target, seed = TARGETS[name], SEED
    count = target.examples
    if is_soak:
        seed, count = secrets.randbits(32), count * SOAK_FACTOR
        print(f"fuzz {name}: seed {seed}")
    rng = random.Random(f"{name} {seed}")
    taken = 0
    with watched(target), bounded_growth(f"{name} with seed {seed}"):
        for number in range(count):
            data = drawn(rng, target.seeds)
            try:
                taken += target.check(data)
            except Exception as error:
                path = f"{CORPUS.name}/{name}"
                error.add_note(
                    f"seed {seed}, input {number}, for {path}: {data[:IN_ONE_MESSAGE]!r}"
                )
                raise
    assert taken, "no change was small enough for the parser"
