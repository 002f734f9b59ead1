"""``bookie namespace`` and the commands that begin and end a cluster, on a store of this test."""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields

import pytest

from bookie.cluster import keys
from bookie.cluster.layout import read_layout
from bookie.log.catalog.log_policy import LogPolicy
from bookie.log.catalog.logs import LogManager, LogName
from bookie.metadata.memory.backend import MemoryStore
from tests.unit.cli.cli_store import bookie, on


def _shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[object, str]]:
    capsys.readouterr()
    assert bookie("namespace", "show", *words, "-o", "json") == 0
    lines = capsys.readouterr().out
    rows = json.loads(lines) if lines.startswith("[") else map(json.loads, lines.splitlines())
    return {row["key"]: (row["value"], row["decided_by"]) for row in rows}


def test_a_namespace_from_create_to_delete(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each value is shown with its level; a value left open comes from the level above."""
    assert bookie("namespace", "list") == 0
    assert "there are no namespaces" in "".join(capsys.readouterr())
    assert bookie("namespace", "create", "orders", "--set", "retention_seconds=60") == 0
    assert bookie("namespace", "create", "orders") == 1
    assert "orders exists" in capsys.readouterr().err
    assert bookie("namespace", "set", "orders", "--set", "quota_bytes=7") == 0
    assert bookie("namespace", "set", "orders", "--log", "l", "--set", "digest=hmac") == 0
    shown = _shown(capsys, "orders", "--log", "l")
    assert shown["retention_seconds"] == (60, "namespace")
    assert shown["quota_bytes"] == (7, "namespace")
    assert shown["digest"] == ("hmac", "log")
    assert shown["ensemble_size"] == (3, "default")
    assert bookie("namespace", "delete", "orders", "--yes") == 1
    assert "not empty" in capsys.readouterr().err
    assert bookie("namespace", "set", "orders", "--log", "l", "--set", "digest=") == 0
    assert bookie("namespace", "set", "orders", "--set", "quota_bytes=") == 0
    assert _shown(capsys, "orders")["quota_bytes"] == (0, "default")
    assert bookie("namespace", "delete", "orders", "--yes") == 0
    assert bookie("namespace", "show", "orders") == 1
    assert "no namespace orders" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        ("quota_bytes", 2),
        ("speed=7", 2),
        ("quota_bytes=many", 2),
        ("quota_bytes=-1", 2),
        ("quota_bytes=1.5GiB", 2),
        ("roll_bytes=1gb", 2),
        ("roll_seconds=1GiB", 2),
        ("retention_seconds=7w", 2),
        ("retention_seconds=1.5s", 2),
        ("partitions=2KiB", 2),
        ("quota_bytes=8388608TiB", 1),
        ("partitions=0", 1),
        ("partitions=1025", 1),
        ("digest=md5", 1),
        ("ack_quorum_size=4", 1),
    ],
)
def test_what_cannot_be_decided_is_a_sentence(
    uri: str, capsys: pytest.CaptureFixture[str], decision: str, status: int
) -> None:
    assert bookie("namespace", "create", "n", "--set", decision) == status
    assert "Traceback" not in capsys.readouterr().err
    assert on(uri, lambda store: store.get_children("/")) == []


def test_bytes_may_have_a_unit(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As in the settings; they are stored and shown as numbers."""
    words = [
        word
        for decision in (
            "roll_bytes=1GiB",
            "quota_bytes=10TiB",
            "retention_bytes=7",
            "partitions=8",
        )
        for word in ("--set", decision)
    ]
    assert bookie("namespace", "create", "orders", *words) == 0
    assert bookie("namespace", "set", "orders", "--log", "l", "--set", "roll_bytes=64MiB") == 0
    shown = _shown(capsys, "orders")
    assert shown["roll_bytes"] == (2**30, "namespace")
    assert shown["quota_bytes"] == (10 * 2**40, "namespace")
    assert shown["retention_bytes"] == (7, "namespace")
    assert shown["partitions"] == (8, "namespace")
    assert _shown(capsys, "orders", "--log", "l")["roll_bytes"] == (2**26, "log")


def test_times_may_have_a_unit(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--set", "retention_seconds=7d", "--set", "roll_seconds=1.5h")
    assert bookie("namespace", "create", "orders", *words) == 0
    shown = _shown(capsys, "orders")
    assert shown["retention_seconds"] == (7 * 86400, "namespace")
    assert shown["roll_seconds"] == (5400, "namespace")


def test_a_wrong_size_is_told_with_its_units(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bookie("namespace", "create", "n", "--set", "quota_bytes=many") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "quota_bytes must be a number of bytes, or one with a unit" in said
    assert "GiB" in said


def test_the_help_names_every_decision(capsys: pytest.CaptureFixture[str]) -> None:
    assert bookie("namespace", "create", "--help") == 0
    said = capsys.readouterr().out
    for field in fields(LogPolicy):
        assert field.name in said
    assert "10GiB" in said


def test_a_namespace_with_logs_is_not_deleted_by_a_command(
    uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the namespaces are in another store than the logs."""
    name = LogName("orders", "log")
    on(uri, lambda store: LogManager(store).create(name))
    for configuration in (uri, f"{uri}-shared"):
        monkeypatch.setenv("BOOKIE_METADATA__CONFIGURATION_URI", configuration)
        assert bookie("namespace", "create", "orders") == 0
        assert bookie("namespace", "delete", "orders", "--yes") == 1
        assert "not empty: there is /logs/orders/log" in capsys.readouterr().err
        assert bookie("namespace", "show", "orders") == 0
    on(uri, lambda store: LogManager(store).mark_deleted(name))
    on(uri, lambda store: LogManager(store).remove(name))
    assert bookie("namespace", "delete", "orders", "--yes") == 0


# ---- clusters


def test_a_cluster_has_the_layout_that_was_asked_for(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bookie("cluster", "init", "--layout", "spiral") == 1
    assert "flat and hierarchical" in capsys.readouterr().err
    assert bookie("cluster", "init", "--layout", "hierarchical") == 0
    layout = on(uri, read_layout)
    assert getattr(layout, "name", None) == "hierarchical"


def test_a_cluster_is_nuked_when_told_twice(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal the command needs --yes."""
    assert bookie("cluster", "nuke") == 1
    assert "cluster init" in capsys.readouterr().err
    assert bookie("cluster", "nuke", "--yes") == 0
    assert "there was no cluster" in capsys.readouterr().out
    assert bookie("cluster", "init") == 0
    assert bookie("cluster", "nuke") == 2
    assert "without a terminal this needs --yes: Delete cluster " in capsys.readouterr().err
    assert on(uri, lambda store: store.exists(keys.LAYOUT))
    assert bookie("cluster", "nuke", "--yes") == 0
    assert on(uri, lambda store: store.get_children("/")) == []


async def test_a_cluster_with_bookies_is_not_nuked(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with MemoryStore(uri.removeprefix("memory://")) as store:
        await store.put(keys.LAYOUT, b"")
        await store.put(keys.registration("b7", read_only=False), b"", ephemeral=True)
        status = await asyncio.to_thread(bookie, "cluster", "nuke", "--yes")
        assert status == 1
        assert "b7" in capsys.readouterr().err
        assert await store.exists(keys.LAYOUT)


def test_clusters_share_namespaces_in_a_store_of_their_own(
    uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two clusters that name one configuration store see one namespace; neither keeps it."""
    shared, other = f"{uri}-shared", f"{uri}-other"
    monkeypatch.setenv("BOOKIE_METADATA__CONFIGURATION_URI", shared)
    assert bookie("namespace", "create", "orders", "--set", "ack_quorum_size=3") == 0
    monkeypatch.setenv("BOOKIE_METADATA", other)
    assert _shown(capsys, "orders")["ack_quorum_size"] == (3, "namespace")
    monkeypatch.delenv("BOOKIE_METADATA__CONFIGURATION_URI")
    for one in (uri, other):
        assert bookie("namespace", "show", "orders", "--metadata", one) == 1
    monkeypatch.setenv("BOOKIE_METADATA__CONFIGURATION_URI", "redis://here")
    capsys.readouterr()
    assert bookie("namespace", "show", "orders") == 2
    assert "redis://here" in capsys.readouterr().err
