"""Cluster settings and labels of bookies: judged, ordered and followed, on both stores."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bookie.cluster import following, keys
from bookie.cluster.cluster_settings import ClusterSettings
from bookie.cluster.labels import BookieLabels
from bookie.errors import ConfigurationError, FormatError, MetadataUnavailableError
from bookie.metadata.connect import open_store
from bookie.metadata.memory import MemoryStore
from bookie.metadata.store import MetadataStore

_names = itertools.count()


@pytest.fixture(params=["memory", "local"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    uri = f"memory://settings-{next(_names)}"
    if request.param == "local":
        uri = f"local://{tmp_path}/metadata"
    async with open_store(uri) as opened:
        yield opened


@pytest.fixture
async def memory() -> AsyncIterator[MemoryStore]:
    async with MemoryStore(f"settings-{next(_names)}") as opened:
        yield opened


@pytest.fixture
async def two() -> AsyncIterator[tuple[MemoryStore, MemoryStore]]:
    """Two sessions on one store."""
    name = f"settings-{next(_names)}"
    async with MemoryStore(name) as one, MemoryStore(name) as other:
        yield one, other


class Told:
    """What a follower was told."""

    def __init__(self) -> None:
        self._news: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    def __call__(self, state: dict[str, str]) -> None:
        self._news.put_nowait(state)

    async def until(self, state: dict[str, str]) -> None:
        """Wait until this is what was told last."""
        async with asyncio.timeout(10):
            while await self._news.get() != state:
                pass


@asynccontextmanager
async def following_(manager: Any, *words: str) -> AsyncIterator[Told]:
    """Follow for the duration of the block."""
    told = Told()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(manager.follow(*words, told))
        yield told
        task.cancel()


# ---- settings


async def test_settings_are_set_and_unset_in_one_step(store: MetadataStore) -> None:
    """Each is a record of its own, which holds what a flag would say."""
    settings = ClusterSettings(store)
    assert await settings.read() == {}
    await settings.set({"log.level": "debug", "storage.reserve_bytes": "1GiB"})
    await settings.set({"log.level": "error"})
    assert await settings.read() == {"log.level": "error", "storage.reserve_bytes": "1GiB"}
    record = await store.get(keys.setting("storage.reserve_bytes"))
    assert record is not None
    assert (record.key, record.value) == ("/config/settings/storage.reserve_bytes", b"1GiB")
    await settings.unset(["log.level", "storage.reserve_bytes"])
    assert await settings.read() == {}
    with pytest.raises(ConfigurationError, match=r"there is no cluster setting log\.level"):
        await settings.unset(["log.level"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"log.levl": "debug"}, "cluster setting log.levl: unknown setting.*did you mean level"),
        ({"log.level": "loud"}, "cluster setting log.level: log.level: input should be"),
        ({"bookie.id": "b1"}, "each process has its own bookie.id"),
        ({"a/b": "c"}, "unknown section"),
        ({"limits.disk_usage_max": "0.5"}, "low_watermark must be at most disk_usage_max"),
    ],
)
async def test_what_is_wrong_changes_nothing(
    values: dict[str, str], words: str, store: MetadataStore
) -> None:
    """One sentence, and what came with it is not set either."""
    settings = ClusterSettings(store)
    with pytest.raises(ConfigurationError, match=words):
        await settings.set({"http.port": "80", **values})
    assert await settings.read() == {}


async def test_two_that_belong_together(store: MetadataStore) -> None:
    """They come in one step, and neither goes while the other needs it."""
    settings = ClusterSettings(store)
    low, high = "limits.disk_usage_low_watermark", "limits.disk_usage_max"
    await settings.set({high: "0.5", low: "0.4"})
    with pytest.raises(ConfigurationError, match="must be at most disk_usage_max"):
        await settings.unset([low])
    await settings.unset([low, high])


async def test_what_was_written_past_us_can_be_removed(store: MetadataStore) -> None:
    """Nothing else can be set meanwhile; a record that is no text is named."""
    settings = ClusterSettings(store)
    await settings.set({"log.level": "debug"})
    await store.put(keys.setting("no.such"), b"1")
    with pytest.raises(ConfigurationError, match=r"cluster setting no\.such: unknown section"):
        await settings.set({"http.port": "80"})
    await store.put(keys.setting("http.host"), b"\xff")
    with pytest.raises(FormatError, match=r"/config/settings/http\.host is no text"):
        await settings.read()
    await settings.unset(["http.host"])
    await settings.unset(["no.such"])
    assert await settings.read() == {"log.level": "debug"}


async def test_changes_of_two_at_a_time_are_judged_one_after_the_other(
    memory: MemoryStore,
) -> None:
    """Each of them is right by itself; together they would not be, and one is refused."""
    low, high = "limits.disk_usage_low_watermark", "limits.disk_usage_max"
    refused: list[str] = []

    async def change(name: str, text: str) -> None:
        try:
            await ClusterSettings(memory).set({name: text})
        except ConfigurationError as error:
            refused.append(str(error))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(change(high, "0.91"))
        tasks.create_task(change(low, "0.94"))
        for port in range(5):
            tasks.create_task(change("http.port", str(port)))
    assert len(refused) == 1
    assert "must be at most disk_usage_max" in refused[0]
    assert len(await ClusterSettings(memory).read()) == 2


async def test_followers_hear_of_every_change(store: MetadataStore) -> None:
    """First of what is there; of other keys nothing."""
    settings = ClusterSettings(store)
    await settings.set({"log.level": "debug"})
    async with following_(settings) as told:
        await told.until({"log.level": "debug"})
        await settings.set({"http.port": "80"})
        await told.until({"log.level": "debug", "http.port": "80"})
        await settings.unset(["log.level"])
        await told.until({"http.port": "80"})
        await store.put(keys.setting("http.port"), b"\xff")
        await settings.unset(["http.port"])
        await told.until({})


async def test_followers_outlive_outages_and_lost_sessions(
    two: tuple[MemoryStore, MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was changed by somebody else meanwhile is told when the store is back."""
    monkeypatch.setattr(following, "RETRY_SECONDS_MAX", 0.1)
    memory, other = two
    async with following_(ClusterSettings(memory)) as told:
        settings = ClusterSettings(other)
        await settings.set({"log.level": "debug"})
        await told.until({"log.level": "debug"})
        memory.disconnect()
        await settings.set({"log.level": "error"})
        with pytest.raises(MetadataUnavailableError):
            await ClusterSettings(memory).read()
        memory.reconnect()
        await told.until({"log.level": "error"})
        memory.expire_session()
        await settings.set({"log.level": "info"})
        await told.until({"log.level": "info"})


async def test_following_begins_during_an_outage(two: tuple[MemoryStore, MemoryStore]) -> None:
    """It waits for the store."""
    memory, other = two
    memory.disconnect()
    async with following_(ClusterSettings(memory)) as told:
        await asyncio.sleep(0)
        await ClusterSettings(other).set({"log.level": "debug"})
        memory.reconnect()
        await told.until({"log.level": "debug"})


async def test_following_ends_with_the_store() -> None:
    """Quietly: whoever closed it is stopping."""
    async with asyncio.TaskGroup() as tasks:
        async with MemoryStore(f"settings-{next(_names)}") as store:
            told = Told()
            task = tasks.create_task(ClusterSettings(store).follow(told))
            await told.until({})
        async with asyncio.timeout(10):
            await task


# ---- labels


async def test_labels_are_set_and_removed(store: MetadataStore) -> None:
    """One record per bookie, which goes with the last label."""
    labels = BookieLabels(store)
    assert await labels.read("b1") == {}
    assert await labels.change("b1", {"zone": "a", "rack": "r1"}) == {"zone": "a", "rack": "r1"}
    assert await labels.change("b1", {"zone": "b"}, ["rack"]) == {"zone": "b"}
    assert await labels.read("b2") == {}
    record = await store.get("/config/labels/b1")
    assert record is not None
    assert record.value == b"zone=b"
    assert await labels.change("b1", {}, ["zone"]) == {}
    assert not await store.exists("/config/labels")


async def test_wrong_labels_are_refused(store: MetadataStore) -> None:
    """Names and values that no setting could hold, and the removal of what was never given."""
    labels = BookieLabels(store)
    for wrong in ({"zone": "a b"}, {"": "a"}, {"zone": ""}):
        with pytest.raises(ConfigurationError, match="the label has the name or value"):
            await labels.change("b1", wrong)
    with pytest.raises(ConfigurationError, match="bookie b1 was given no label zone"):
        await labels.change("b1", {"rack": "r1"}, ["zone"])
    assert await labels.read("b1") == {}
    for damage in (b"\xff", b"zone", b"zone=a b"):
        await store.put("/config/labels/b1", damage)
        with pytest.raises(FormatError, match="/config/labels/b1 holds no labels"):
            await labels.read("b1")


async def test_labels_of_two_at_a_time_are_all_kept(store: MetadataStore) -> None:
    """Nobody overwrites what another one has just said."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(8):
            tasks.create_task(BookieLabels(store).change("b1", {f"name-{number}": "x"}))
    assert len(await BookieLabels(store).read("b1")) == 8


async def test_labels_are_followed_by_bookie(store: MetadataStore) -> None:
    """Those of another one with a longer name are not ours."""
    labels = BookieLabels(store)
    async with following_(labels, "b1") as told:
        await told.until({})
        await labels.change("b11", {"zone": "x"})
        await labels.change("b1", {"zone": "a"})
        await told.until({"zone": "a"})
        await labels.change("b1", {}, ["zone"])
        await told.until({})
