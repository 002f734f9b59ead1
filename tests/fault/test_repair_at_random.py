"""Random episodes with repair: bookies lose copies, and every acknowledged entry gets them back.

`repair_episode` says what an episode does, `standing_copies` how its end is judged. Three tests
damage the end of an episode, and the checker must name the damage.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bookie.entry.batch import EntryBatch
from bookie.entry.entry import pack_batch
from bookie.ids import Status
from bookie.ledger.copies.replica_plan import quorum_of
from bookie.ledger.metadata import LedgerMetadata
from bookie.ledger.write.requests import RequestEncoder
from tests.fault.disk_damage import punch_hole
from tests.fault.repair_actors import payload_of
from tests.fault.repair_episode import RepairEpisode, repair_episode, run_seed, store_of
from tests.fault.stores_to_stop import own_store

EPISODES = 60
"""On the three kinds of store in turn."""
SEEDS_OF_A_SOAK = 17
"""In place of each of them; a soak draws them anew."""
A_LOCAL_SEED = 0


@pytest.mark.timeout(18 * 3600)
@pytest.mark.parametrize("seed", range(EPISODES))
async def test_an_episode(seed: int, tmp_path: Path, is_soak: bool) -> None:
    """``python -m tests.fault.repair_episode SEED`` shows one again."""
    seeds = [seed]
    if is_soak:
        draw = random.SystemRandom()
        seeds = [EPISODES + draw.randrange(10**9) for _ in range(SEEDS_OF_A_SOAK)]
    for one in seeds:
        print(f"seed {one} on {store_of(one)}")
        directory = tmp_path / str(one)
        directory.mkdir()
        counts = await run_seed(directory, one)
        print(dict(sorted(counts.items())))
        assert counts["entries acknowledged"] > 0
        assert counts["entries read"] > 0


# ---- the checker


async def problems_after(
    path: Path, damage: Callable[[RepairEpisode, LedgerMetadata], Awaitable[None]]
) -> tuple[list[str], LedgerMetadata]:
    """What the checker says about an episode without trouble that is damaged at its end."""
    found: list[str] = []
    async with (
        own_store(store_of(A_LOCAL_SEED), path) as server,
        repair_episode(server, path, A_LOCAL_SEED) as episode,
    ):
        metadata = await episode.run_and(lambda one: damage(episode, one), found)
    return found, metadata


async def remove(episode: RepairEpisode, ledger_id: int, name: str) -> None:
    """A bookie loses its entries of a ledger, and nobody repairs it."""
    await episode.away_for(
        name,
        lambda: punch_hole(episode.cluster.homes[name].ledgers, ledger_id, keep_ends=False),
    )


async def test_the_checker_sees_a_missing_copy(tmp_path: Path) -> None:
    victim = ""

    async def damage(episode: RepairEpisode, metadata: LedgerMetadata) -> None:
        nonlocal victim
        victim = metadata.fragments[0].bookies[0]
        await remove(episode, metadata.ledger_id, victim)

    problems, metadata = await problems_after(tmp_path, damage)
    name = f"ledger {metadata.ledger_id}"
    missing = [one for one in problems if one.startswith(f"{name}: no copy of entry ")]
    assert missing
    assert all(f" on {victim}: " in one for one in missing)
    assert not [one for one in problems if "is lost" in one]
    assert all(one.startswith(name) for one in problems), "it names the others as whole"


async def test_the_checker_sees_a_foreign_copy(tmp_path: Path) -> None:
    """A bookie stores another entry in the place, with a digest that is right."""
    victim = ""

    async def damage(episode: RepairEpisode, metadata: LedgerMetadata) -> None:
        nonlocal victim
        victim = metadata.fragments[0].bookies[0]
        await remove(episode, metadata.ledger_id, victim)
        encoder = RequestEncoder(
            metadata, quorum_of(metadata), episode.client._connected.pool.next_request_id
        )
        foreign: EntryBatch = pack_batch(
            metadata.ledger_id, 0, -1, 0, [payload_of(metadata.ledger_id + 1, 0)], encoder.digester
        )
        request_id, data = encoder.entries(foreign, recovery=True)
        lane = episode.client._connected.pool.connection(victim).recovery("")
        status, message = await lane.request(request_id, data)
        assert status is Status.OK, message

    problems, metadata = await problems_after(tmp_path, damage)
    name = f"ledger {metadata.ledger_id}"
    assert f"{name}: a foreign copy of entry 0 on {victim}" in problems
    assert any(one.startswith(f"{name}: the copies of entry 0 differ") for one in problems)


async def test_the_checker_sees_a_lost_entry(tmp_path: Path) -> None:
    """Every member lost it."""

    async def damage(episode: RepairEpisode, metadata: LedgerMetadata) -> None:
        for name in sorted({name for one in metadata.fragments for name in one.bookies}):
            await remove(episode, metadata.ledger_id, name)

    problems, metadata = await problems_after(tmp_path, damage)
    lost = f"ledger {metadata.ledger_id}: entry 0 is lost: it stands on no member"
    assert lost in problems
    assert metadata.last_entry_id >= 0
