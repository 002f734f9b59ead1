"""The settings of a running bookie: what a change in the cluster changes, ignores and announces."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest

from bookie.cluster.cluster_settings import ClusterSettings
from bookie.config import Settings, Sources
from bookie.config.load import section_type
from bookie.config.section import is_dynamic
from bookie.daemon.live_settings import LiveSettings, fetch_cluster_settings
from bookie.errors import ConfigurationError, MetadataUnavailableError
from bookie.metadata.connect import open_store
from bookie.telemetry import configure_logging, set_log_level

RATE = "storage.scrub_bytes_per_second"


class Life:
    """One bookie's settings, what was applied of them and what was logged."""

    def __init__(self, cluster: dict[str, str] | None = None, **flags: str) -> None:
        given = {name.replace("__", "."): value for name, value in flags.items()}
        self.live = LiveSettings(Sources.read(None, given, environment={}), cluster or {})
        self.applied: list[Settings] = []
        self._log = StringIO()
        configure_logging("info", "json", stream=self._log)

    def _apply(self, settings: Settings) -> None:
        set_log_level(settings.log.level)
        self.applied.append(settings)

    def take(self, **cluster: str) -> list[tuple[str, str]]:
        """Other cluster settings; event and setting of each line that was logged about them."""
        self._log.truncate(0)
        self._log.seek(0)
        self.live.take({n.replace("__", "."): v for n, v in cluster.items()}, self._apply)
        return [(line["event"], line["key"]) for line in self.lines()]

    def lines(self) -> list[dict[str, Any]]:
        """The last lines, with all their fields."""
        return [json.loads(line) for line in self._log.getvalue().splitlines()]


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Changes to the log of the process are undone afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def test_a_dynamic_setting_is_applied() -> None:
    """Once; the other way round when it is unset."""
    life = Life()
    assert life.take(storage__scrub_bytes_per_second="1MiB") == [("setting_changed", RATE)]
    (line,) = life.lines()
    assert (line["value"], line["was"]) == (2**20, 4 * 2**20)
    assert [settings.storage.scrub_bytes_per_second for settings in life.applied] == [2**20]
    assert life.take(storage__scrub_bytes_per_second="1MiB") == []
    assert life.take() == [("setting_changed", RATE)]
    assert life.applied[1:] == [Settings()]


def test_one_that_is_not_dynamic_waits_for_a_restart() -> None:
    """It is announced, and not smuggled in with the next one that is applied."""
    life = Life()
    assert life.take(storage__read_threads="9") == [
        ("setting_needs_restart", "storage.read_threads")
    ]
    assert life.lines()[0]["runs_with"] == 4
    assert not life.applied
    both = {"storage__read_threads": "9", "bookie__labels": "zone=a"}
    assert life.take(**both) == [("setting_changed", "bookie.labels")]
    assert life.applied[0].storage.read_threads == 4
    assert life.applied[0].bookie.labels == {"zone": "a"}
    # Back to what it runs with: nothing waits any more.
    assert life.take(bookie__labels="zone=a") == []
    assert life.live.cluster == ["bookie.labels"]


def test_the_bookie_itself_has_the_last_word() -> None:
    """Values of its file, variables or flags stay, and the log names the overridden settings."""
    life = Life(storage__scrub_bytes_per_second="7MiB")
    assert life.take(storage__scrub_bytes_per_second="1MiB") == [("setting_overridden", RATE)]
    assert life.lines()[0]["by"] == f"flag {RATE}"
    assert life.live.settings.storage.scrub_bytes_per_second == 7 * 2**20
    assert life.live.overridden == life.live.cluster == [RATE]
    assert not life.applied


def test_a_wrong_setting_is_ignored_and_the_others_are_not() -> None:
    """It is logged once; what it was before counts on."""
    life = Life({RATE: "1MiB"})
    good = {"log__level": "warning"}
    wrong = {"storage__scrub_bytes_per_second": "fast", "no__such": "1"}
    ignored = [("setting_ignored", "no.such"), ("setting_ignored", RATE)]
    assert life.take(**wrong) == ignored
    assert "must be a number of bytes" in str(life.lines()[1]["reason"])
    assert life.take(**wrong, **good) == [("setting_changed", "log.level")]
    (settings,) = life.applied
    assert (settings.log.level, settings.storage.scrub_bytes_per_second) == ("warning", 2**20)
    assert life.take(storage__scrub_bytes_per_second="slow", **good) == [
        ("setting_ignored", RATE),
    ]
    assert life.take(storage__scrub_bytes_per_second="2MiB", **good) == []
    assert life.applied[1].storage.scrub_bytes_per_second == 2 * 2**20


def test_two_that_belong_together_are_taken_beside_a_wrong_one() -> None:
    """In the order in which they are right."""
    life = Life()
    marks = {"limits__disk_usage_max": "0.5", "limits__disk_usage_low_watermark": "0.4"}
    assert sorted(life.take(no__such="1", **marks)) == [
        ("setting_changed", "limits.disk_usage_low_watermark"),
        ("setting_changed", "limits.disk_usage_max"),
        ("setting_ignored", "no.such"),
    ]
    assert life.live.settings.limits.disk_usage_max == 0.5


def test_one_that_contradicts_the_bookies_own_is_ignored() -> None:
    """Right for the cluster, wrong here."""
    life = Life(limits__disk_usage_low_watermark="0.9")
    assert life.take(limits__disk_usage_max="0.8") == [
        ("setting_ignored", "limits.disk_usage_max"),
    ]
    with pytest.raises(ConfigurationError, match=r"with cluster setting limits\.disk_usage_max"):
        Life({"limits.disk_usage_max": "0.8"}, limits__disk_usage_low_watermark="0.9")


@pytest.mark.parametrize(("before", "after"), [("info", "error"), ("error", "info")])
def test_a_change_of_the_level_is_told_under_the_more_talkative_one(
    before: str, after: str
) -> None:
    """Whichever way it goes."""
    life = Life()
    life.take(log__level=before)
    assert life.take(log__level=after) == [("setting_changed", "log.level")]


def test_relations_between_dynamic_settings_name_no_others() -> None:
    """So a section with new dynamic and old other settings is right whenever the new one is."""
    dynamic = {
        f"{section}.{key}"
        for section in Settings.model_fields
        for key, field in section_type(section).model_fields.items()
        if is_dynamic(field)
    }
    assert {
        "log.level",
        RATE,
        "storage.compaction_bytes_per_second",
        "storage.compaction_interval_seconds",
        "storage.compaction_live_share_minor",
        "storage.compaction_live_share_major",
        "limits.disk_usage_max",
        "limits.disk_usage_low_watermark",
        "limits.integrity_check_bytes_per_second",
        "limits.integrity_check_interval_seconds",
        "limits.lac_watches_max",
        "garbage.interval_seconds",
        "garbage.grace_seconds",
        "garbage.stop_share",
        "garbage.proof_seconds",
    } <= dynamic
    assert not dynamic & {"storage.block_bytes_max", "limits.read_bytes_max", "listen.port"}


async def test_a_start_asks_the_store_of_its_own_settings() -> None:
    """In a session of its own; a store that does not answer is one sentence."""
    uri = "memory://live-settings"
    settings = Sources.read(None, {"metadata.uri": uri}, environment={}).first_settings()
    async with open_store(uri) as store:
        assert await fetch_cluster_settings(settings) == {}
        await ClusterSettings(store).set({"log.level": "debug"})
        assert await fetch_cluster_settings(settings) == {"log.level": "debug"}
    nowhere = {"metadata.uri": "etcd://127.0.0.1:1/x", "metadata.session_timeout_seconds": "1"}
    settings = Sources.read(None, nowhere, environment={}).first_settings()
    with pytest.raises(MetadataUnavailableError):
        await fetch_cluster_settings(settings)
