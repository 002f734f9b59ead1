"""``bookie namespace`` and the commands that begin and end a cluster, on a store of this test."""

from __future__ import annotations

import asyncio
import json

import pytest

from bookie.cluster import keys
from bookie.cluster.layout import read_layout
from bookie.metadata.memory.backend import MemoryStore
from tests.unit.cli.cli_store import bookie, on


def _shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, tuple[object, str]]:
    capsys.readouterr()
    assert bookie("namespace", "show", *words, "-o", "json") == 0
    lines = capsys.readouterr().out
    rows = json.loads(lines) if lines.startswith("[") else map(json.loads, lines.splitlines())
    return {row["key"]: (row["value"], row["decided_by"]) for row in rows}


def test_a_namespace_from_create_to_delete(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is decided where is shown; what is left open comes from above."""
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
