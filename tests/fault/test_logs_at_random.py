"""Random episodes of logs: writers, readers, consumers and publishers, while much goes wrong.

Three bookies are processes. Two writers in this process, and perhaps one in its own, take the log
from each other. Tails read from the beginning; consumers share a cursor, and two members form
a group. Two applications publish to a transactional log. Somebody truncates, resets a cursor, and
recovers the ledger that is written. A bookie is killed, stopped or hangs; a writer or a consumer is
killed, or stopped and woken. Writes of metadata are lost, not answered, or happen late.

Then all is calm. A new client takes the log over and reads everything, and all tails come to the
end. The checker of `tests/log_history` judges the history by the rules L1 to L9. What an episode
does follows from its number, which a failure names.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.fault.daemon_cluster import BOOKIES
from tests.fault.log_episode import LogEpisode
from tests.fault.lossy_cluster import lossy_cluster, with_frames
from tests.fault.metadata_servers import SHARED
from tests.fault.waiting import time_limit

STORES = ["local", *sorted(SHARED)]
LOG_EPISODES, LOG_EPISODES_OF_A_SOAK = 8, 334
"""On each of the three kinds of store."""
EPISODE_SECONDS_MAX = 900.0

AT_LEAST: dict[str, float] = {
    "log_opened": 1,
    "log_mended": 0.1,
    "roll": 0.1,
    "close": 0.1,
    "unknown append": 0.5,
    "duplicate": 0.2,
    "retry": 0.05,
    "rebalance": 2,
    "cursor taken": 1,
    "reset": 0.1,
    "truncation": 0.5,
    "truncation met": 0.1,
    "recovered by somebody else": 0.3,
    "batch published": 1,
    "batch answered": 0.1,
    "publication given up": 0.1,
    "request lost": 0.1,
    "reply lost": 0.1,
    "request late": 0.1,
    "records": 20,
}
"""How often something has to happen, for each episode of a soak."""
RARER = 5
"""So many times rarer it may be in the gate: how much an episode does depends on the machine."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", STORES)
async def test_log_episodes(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, is_soak: bool
) -> None:
    """One after the other on the same bookies, each with logs of its own."""
    uri = f"local://{tmp_path}/metadata" if kind == "local" else SHARED[kind](request).uri
    first = 1_000_000 * STORES.index(kind)
    episodes = LOG_EPISODES_OF_A_SOAK if is_soak else LOG_EPISODES
    counts: Counter[str] = Counter()
    framed = with_frames(kind, BOOKIES)
    async with lossy_cluster(uri, tmp_path, BOOKIES, by_frames=framed) as cluster:
        for number in range(first, first + episodes):
            episode = LogEpisode(cluster, number, counts)
            try:
                async with time_limit(EPISODE_SECONDS_MAX), AsyncExitStack() as stack:
                    clients = [await stack.enter_async_context(cluster.connect()) for _ in range(3)]
                    await episode.run(clients)
            except BaseException as error:
                error.add_note(f"episode {number} on {kind}: {episode}")
                error.add_note(cluster.describe())
                raise
    print(f"{kind}: {dict(sorted(counts.items()))}")
    share = episodes if is_soak else episodes / RARER
    rare = {
        what: counts[what] for what, least in AT_LEAST.items() if counts[what] < int(least * share)
    }
    assert not rare, f"too rare: {rare}, of {counts}"
