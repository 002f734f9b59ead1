"""Cluster settings and labels of bookies: judged, ordered and followed, on every store."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bookie.cluster import keys
from bookie.cluster.cluster_settings import ClusterSettings
from bookie.errors import ConfigurationError, FormatError
from bookie.ledger.place.labels import BookieLabels
from bookie.metadata.store import MetadataStore
from tests.conformance.backends import Backend

SECONDS_MAX = 120.0
OURS, THEIRS = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


class Told:
    """News that a follower got."""

    def __init__(self) -> None:
        self._news: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    def __call__(self, state: dict[str, str]) -> None:
        self._news.put_nowait(state)

    async def until(self, state: dict[str, str]) -> None:
        """Wait until this is what was told last."""
        async with asyncio.timeout(SECONDS_MAX):
            while await self._news.get() != state:
                pass

    async def next_is(self, state: dict[str, str]) -> None:
        """Wait for what is told next, which has to be this."""
        async with asyncio.timeout(SECONDS_MAX):
            assert await self._news.get() == state


@asynccontextmanager
async def following(manager: Any, *words: str, **options: str) -> AsyncIterator[Told]:
    """Follow for the duration of the block."""
    told = Told()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(manager.follow(*words, told, **options))
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
    """While it is wrong, other settings cannot be set. A record that is not text is named."""
    settings = ClusterSettings(store)
    await settings.set({"log.level": "debug"})
    await store.put(keys.setting("http.port"), b"x")
    with pytest.raises(ConfigurationError, match=r"cluster setting http\.port: http\.port: input"):
        await settings.set({"http.host": "::1"})
    await store.put(keys.setting("http.host"), b"\xff")
    with pytest.raises(FormatError, match=r"/config/settings/http\.host is no text"):
        await settings.read()
    await settings.unset(["http.host"])
    await settings.unset(["http.port"])
    assert await settings.read() == {"log.level": "debug"}


async def test_what_a_newer_version_set_is_ignored(
    store: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    """And named in the log. Starts and other settings go on."""
    settings = ClusterSettings(store)
    names = ("log.level", "log.news", "new.section")
    await store.put(keys.setting("log.news"), b"1")
    await store.put(keys.setting("new.section"), b"1")
    await settings.set({"log.level": "debug"})
    assert tuple(await settings.read()) == names
    assert await settings.read_known() == {"log.level": "debug"}
    for line, name in zip(caplog.messages, names[1:], strict=True):
        assert line.startswith(f"setting_ignored key='{name}'")
    with pytest.raises(ConfigurationError, match="unknown setting"):
        await settings.set({"log.news": "2"})
    await settings.unset(["log.level"])
    await settings.unset(["log.news", "new.section"])
    assert await settings.read() == {}


async def test_changes_of_two_at_a_time_are_judged_one_after_the_other(
    backend: Backend,
) -> None:
    """Each of them is right by itself; together they would not be, and one is refused."""
    stores = [await backend.open() for _ in range(2)]
    low, high = "limits.disk_usage_low_watermark", "limits.disk_usage_max"
    refused: list[str] = []

    async def change(number: int, name: str, text: str) -> None:
        try:
            await ClusterSettings(stores[number % 2]).set({name: text})
        except ConfigurationError as error:
            refused.append(str(error))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(change(0, high, "0.91"))
        tasks.create_task(change(1, low, "0.94"))
        for port in range(5):
            tasks.create_task(change(port, "http.port", str(port)))
    assert len(refused) == 1
    assert "must be at most disk_usage_max" in refused[0]
    assert len(await ClusterSettings(stores[0]).read()) == 2


async def test_followers_hear_of_every_change(store: MetadataStore) -> None:
    """First of what is there; of other keys nothing."""
    settings = ClusterSettings(store)
    await settings.set({"log.level": "debug"})
    async with following(settings) as told:
        await told.until({"log.level": "debug"})
        await settings.set({"http.port": "80"})
        await told.until({"log.level": "debug", "http.port": "80"})
        await settings.unset(["log.level"])
        await told.until({"http.port": "80"})
        await store.put(keys.setting("http.port"), b"\xff")
        await settings.unset(["http.port"])
        await told.until({})


async def test_followers_outlive_outages(cut_off_backend: Backend) -> None:
    """A follower learns of changes during an outage when the store is back."""
    store, other = await cut_off_backend.open(), await cut_off_backend.open()
    settings = ClusterSettings(other)
    async with following(ClusterSettings(store)) as told:
        await settings.set({"log.level": "debug"})
        await told.until({"log.level": "debug"})
        await cut_off_backend.disconnect(store)
        await settings.set({"log.level": "error"})
        await cut_off_backend.reconnect(store)
        await told.until({"log.level": "error"})
        await settings.set({"log.level": "info"})
        await told.until({"log.level": "info"})


async def test_followers_outlive_lost_sessions(backend: Backend) -> None:
    """A settings watcher owns nothing that ends with a session."""
    store = await backend.open(session_timeout_seconds=2.0)
    settings = ClusterSettings(await backend.open())
    async with following(ClusterSettings(store)) as told:
        await told.until({})
        await backend.expire(store)
        await settings.set({"log.level": "info"})
        await told.until({"log.level": "info"})


async def test_following_begins_during_an_outage(cut_off_backend: Backend) -> None:
    """It waits for the store."""
    store, other = await cut_off_backend.open(), await cut_off_backend.open()
    await cut_off_backend.disconnect(store)
    async with following(ClusterSettings(store)) as told:
        await ClusterSettings(other).set({"log.level": "debug"})
        await cut_off_backend.reconnect(store)
        await told.until({"log.level": "debug"})


async def test_nothing_of_another_cluster_is_taken(store: MetadataStore) -> None:
    """A store may come back from an outage as another one, or empty."""
    await store.put(keys.INSTANCE_ID, OURS.encode())
    settings, labels = ClusterSettings(store), BookieLabels(store)
    async with (
        following(settings, instance_id=OURS) as told,
        following(labels, "b1", instance_id=OURS) as told_labels,
    ):
        await told.until({})
        await told_labels.until({})
        for found in (THEIRS, None):
            if found is None:
                await store.delete(keys.INSTANCE_ID)
            else:
                await store.put(keys.INSTANCE_ID, found.encode())
            await settings.set({"log.level": "debug"})
            await labels.change("b1", {"rack": "theirs"})
        await settings.set({"log.level": "error"})
        await labels.change("b1", {"rack": "ours"})
        await store.put(keys.INSTANCE_ID, OURS.encode())
        await told.next_is({"log.level": "error"})
        await told_labels.next_is({"rack": "ours"})


async def test_following_ends_with_the_store(backend: Backend) -> None:
    """Quietly: whoever closed it is stopping."""
    async with asyncio.TaskGroup() as tasks:
        async with backend.session() as store:
            told = Told()
            task = tasks.create_task(ClusterSettings(store).follow(told))
            await told.until({})
        async with asyncio.timeout(SECONDS_MAX):
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
    """Impossible names and values are refused, and so is the removal of an unset one."""
    labels = BookieLabels(store)
    for wrong in ({"zone": "a b"}, {"": "a"}, {"zone": ""}):
        with pytest.raises(ConfigurationError, match="the label has the name or value"):
            await labels.change("b1", wrong)
    with pytest.raises(ConfigurationError, match="bookie b1 has no label zone"):
        await labels.change("b1", {"rack": "r1"}, ["zone"])
    assert await labels.read("b1") == {}
    for damage in (b"\xff", b"zone", b"zone=a b"):
        await store.put("/config/labels/b1", damage)
        with pytest.raises(FormatError, match="/config/labels/b1 holds no labels"):
            await labels.read("b1")


async def test_labels_of_two_at_a_time_are_all_kept(backend: Backend) -> None:
    """Nobody overwrites what another one has just said."""
    stores = [await backend.open() for _ in range(2)]
    async with asyncio.TaskGroup() as tasks:
        for number in range(8):
            labels = BookieLabels(stores[number % 2])
            tasks.create_task(labels.change("b1", {f"name-{number}": "x"}))
    assert len(await BookieLabels(stores[0]).read("b1")) == 8


async def test_labels_are_followed_by_bookie(store: MetadataStore) -> None:
    """Those of another one with a longer name are not ours."""
    labels = BookieLabels(store)
    async with following(labels, "b1") as told:
        await told.until({})
        await labels.change("b11", {"zone": "x"})
        await labels.change("b1", {"zone": "a"})
        await told.until({"zone": "a"})
        await labels.change("b1", {}, ["zone"])
        await told.until({})
