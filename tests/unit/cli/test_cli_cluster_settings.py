"""``bookie cluster settings``, ``bookie node label`` and ``bookie config show --cluster``."""

from __future__ import annotations

import json

import pytest

from bookie.cli import app
from bookie.cluster.cookie import Cookie, CookieState
from bookie.cluster.cookies import CookieManager
from bookie.cluster.instance import initialize_cluster
from bookie.metadata.store import MetadataStore
from tests.unit.cli.cli_store import on

MISUSED = app.EXIT_MISUSED


@pytest.fixture
def uri(uri: str) -> str:
    """A cluster that the bookie b1 has joined, which the environment names."""

    async def join(store: MetadataStore) -> None:
        instance_id = await initialize_cluster(store)
        cookie = Cookie(
            bookie_id="b1",
            instance_id=instance_id,
            unique_id="00000000000000000000000000000001",
            state=CookieState.READY,
            journal_dirs=("/j",),
            ledger_dirs=("/l",),
        )
        await CookieManager(store).create(cookie)

    on(uri, join)
    return uri


def settings(*words: str) -> int:
    return app.run(["cluster", "settings", *words])


def test_set_list_and_unset(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """People see which are dynamic; programs get all of it."""
    assert settings("list") == 0
    assert "the cluster has no settings" in capsys.readouterr().out
    assert settings("set", "log.level=debug", "storage.read_threads=9") == 0
    assert settings("list", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"setting": "log.level", "value": "debug", "default": '"info"', "dynamic": True},
        {"setting": "storage.read_threads", "value": "9", "default": "4", "dynamic": False},
    ]
    assert settings("unset", "log.level", "storage.read_threads") == 0
    assert settings("list", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["set", "log.level"], "must look like section.key=value"),
        (["set", "log.levl=debug"], "unknown setting log.levl; did you mean level?"),
        (["set", "log.level=debug", "metadata.uri=x"], "has its own metadata.uri"),
        (["set", "storage.read_threads=many"], "cluster setting storage.read_threads"),
        (["unset", "log.level"], "there is no cluster setting log.level"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    words: list[str], sentence: str, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2, and nothing was set."""
    assert settings(*words) == MISUSED
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert settings("list", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_store_without_a_cluster_gets_no_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped scope would never be read."""
    monkeypatch.setenv("BOOKIE_METADATA", "memory://cli-settings-none")
    assert settings("set", "log.level=debug") == 1
    assert "holds no cluster" in capsys.readouterr().err


def test_show_says_who_gave_what(
    uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the cluster's settings if asked for."""
    assert settings("set", "log.level=debug", "listen.port=1", "storage.reserve_bytes=2048") == 0
    monkeypatch.setenv("BOOKIE_LISTEN__PORT", "2")
    capsys.readouterr()
    assert app.run(["config", "show", "--cluster", "--origins", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"setting": "listen.port", "value": "2", "from": "BOOKIE_LISTEN__PORT"},
        {"setting": "log.level", "value": '"debug"', "from": "cluster setting log.level"},
        {"setting": "metadata.uri", "value": f'"{uri}"', "from": "BOOKIE_METADATA"},
        {
            "setting": "storage.reserve_bytes",
            "value": '"2KiB"',
            "from": "cluster setting storage.reserve_bytes",
        },
    ]
    assert app.run(["config", "show", "--cluster", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["log"]["level"] == "debug"
    assert app.run(["config", "show", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["log"]["level"] == "info"


def test_check_with_the_clusters_settings(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings that are valid only with them, and settings that are invalid only with them."""
    own = ["--set", "bookie.id=b1", "--set", "limits.disk_usage_low_watermark=0.97"]
    assert app.run(["config", "check", *own]) == MISUSED
    assert settings("set", "limits.disk_usage_max=0.98") == 0
    assert app.run(["config", "check", "--cluster", *own]) == 0
    assert settings("set", "limits.disk_usage_max=0.96") == 0
    capsys.readouterr()
    assert app.run(["config", "check", "--cluster", *own]) == MISUSED
    assert "with cluster setting limits.disk_usage_max" in capsys.readouterr().err


def test_labels(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Set, shown, and removed one by one."""

    def label(*words: str) -> dict[str, str]:
        assert app.run(["node", "label", *words, "-o", "json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["bookie"] == "b1"
        labels: dict[str, str] = record["labels"]
        return labels

    assert label("b1") == {}
    assert label("b1", "zone=a", "rack=r1") == {"zone": "a", "rack": "r1"}
    assert label("b1", "room=7", "--remove", "zone", "--remove", "rack") == {"room": "7"}
    assert label("b1") == {"room": "7"}


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["b1", "zone"], MISUSED, "must look like key=value"),
        (["b1", "zone=a b"], MISUSED, "the label has the name or value 'a b'"),
        (["b1", "zone=a", "--remove", "zone"], MISUSED, "zone is both set and removed"),
        (["b1", "--remove", "zone"], MISUSED, "bookie b1 has no label zone"),
        (["b2", "zone=a"], 1, "no bookie b2 ever joined this cluster"),
    ],
)
def test_wrong_labels(
    words: list[str], status: int, sentence: str, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, and nothing is kept."""
    assert app.run(["node", "label", *words]) == status
    assert sentence in capsys.readouterr().err
    assert app.run(["node", "label", "b1", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"] == {}
