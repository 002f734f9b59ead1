"""How soon a running bookie takes a dynamic setting of its cluster.

The time runs from the return of the write to the line ``setting_changed`` in the bookie's log. The
bookie is a process of its own. Its metadata is on a store of each kind. A second is allowed.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bookie.cluster.cluster_settings import ClusterSettings
from bookie.cluster.instance import initialize_cluster
from bookie.metadata.connect import open_store
from tests.fault.daemon_cluster import home_of
from tests.fault.daemon_process import serving
from tests.fault.metadata_servers import SERVERS

CHANGES = 100
SETTING = "limits.lac_watches_max"


@contextmanager
def _uri(kind: str, directory: Path) -> Iterator[str]:
    if kind == "local":
        yield f"local://{directory}/metadata"
        return
    with SERVERS[kind](directory) as server:
        yield server.uri


async def _measure(uri: str, directory: Path) -> list[float]:
    """Seconds of each change."""
    found = []
    clock = asyncio.get_running_loop().time
    async with open_store(uri) as store:
        await initialize_cluster(store)
        settings = ClusterSettings(store)
        async with serving(home_of(uri, directory, "b1").write()) as daemon:
            await daemon.until("registered")
            for number in range(1, CHANGES + 1):
                await settings.set({SETTING: str(number)})
                began = clock()
                await daemon.until("setting_changed")
                found.append(clock() - began)
                daemon.lines.clear()
    return found


def main() -> None:
    """Print a line for each kind of store."""
    print(f"a dynamic setting, from its write to the bookie's log, {CHANGES} changes, ms")
    print(f"{'store':<6} {'p50':>7} {'p99':>7} {'max':>7}")
    for kind in ("local", *sorted(SERVERS)):
        with tempfile.TemporaryDirectory() as name, _uri(kind, Path(name)) as uri:
            ordered = sorted(1e3 * s for s in asyncio.run(_measure(uri, Path(name))))
        p99 = ordered[CHANGES * 99 // 100 - 1]
        print(f"{kind:<6} {statistics.median(ordered):>7.1f} {p99:>7.1f} {ordered[-1]:>7.1f}")


if __name__ == "__main__":
    main()
