"""The layout of a local cluster, and the configuration of each bookie."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.config import load_settings
from bookie.daemon.local.layout import (
    free_ports,
    load_layout,
    locked,
    make_directory,
    prepare,
    save_layout,
)
from bookie.daemon.local.process import child_environment
from bookie.errors import ConfigurationError, DirectoryLockedError


def prepared(directory: Path, **asked: object) -> tuple[str, list[tuple[str, int]]]:
    """Metadata URI and (id, port) of what `prepare` plans."""
    arguments = {"bookies": None, "metadata_uri": None, "base_port": None, "settings": {}} | asked
    layout = prepare(directory, **arguments)  # type: ignore[arg-type]
    return layout.metadata_uri, [(member.id, member.port) for member in layout.members]


def test_new_cluster_has_three_bookies_on_free_ports(tmp_path: Path) -> None:
    """Without a wish there are three bookies and the embedded metadata store."""
    uri, members = prepared(tmp_path)
    assert uri == f"local://{tmp_path}/metadata"
    assert [name for name, _ in members] == ["bookie-1", "bookie-2", "bookie-3"]
    assert len({port for _, port in members}) == 3


def test_second_start_keeps_ports_and_count(tmp_path: Path) -> None:
    """Started again the cluster is the same, whatever ports are free now."""
    assert prepared(tmp_path, bookies=2) == prepared(tmp_path)


def test_cluster_can_grow_but_not_shrink(tmp_path: Path) -> None:
    """More bookies join the old ones; fewer are refused, because ledgers may be on all."""
    _, before = prepared(tmp_path, bookies=2)
    _, after = prepared(tmp_path, bookies=4)
    assert after[:2] == before
    with pytest.raises(ConfigurationError, match="holds a cluster of 4 bookies"):
        prepared(tmp_path, bookies=3)


def test_a_newcomer_takes_no_directory_of_a_bookie_that_has_left(tmp_path: Path) -> None:
    prepared(tmp_path, bookies=3)
    layout = load_layout(tmp_path)
    assert layout is not None
    save_layout(tmp_path, layout.without(["bookie-1", "bookie-3"]))
    assert [name for name, _ in prepared(tmp_path)[1]] == ["bookie-2"]
    assert [name for name, _ in prepared(tmp_path, bookies=2)[1]] == ["bookie-2", "bookie-4"]
    (tmp_path / "bookie-1" / "bookie.toml").unlink()
    (tmp_path / "bookie-1").rmdir()
    _, members = prepared(tmp_path, bookies=3, base_port=4000)
    assert members == [("bookie-2", 4000), ("bookie-4", 4002), ("bookie-1", 4004)]


def test_other_metadata_store_is_refused(tmp_path: Path) -> None:
    """A directory belongs to one metadata store."""
    prepared(tmp_path, metadata_uri="memory://a")
    assert prepared(tmp_path)[0] == "memory://a"
    with pytest.raises(ConfigurationError, match="on memory://a, not memory://b"):
        prepared(tmp_path, metadata_uri="memory://b")


def test_base_port_moves_all(tmp_path: Path) -> None:
    """A base port gives each bookie two ports in a row, also to a cluster that had others."""
    prepared(tmp_path, bookies=2)
    assert prepared(tmp_path, base_port=4000)[1] == [("bookie-1", 4000), ("bookie-2", 4002)]
    assert prepared(tmp_path)[1] == [("bookie-1", 4000), ("bookie-2", 4002)]


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', '{"version": 1, "members": [1]}'])
def test_foreign_file_is_refused(text: str, tmp_path: Path) -> None:
    """A foreign file ends the start with one sentence. Old data is never overwritten."""
    (tmp_path / "cluster.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="does not describe a cluster"):
        load_layout(tmp_path)


def test_newer_file_is_refused(tmp_path: Path) -> None:
    """A layout of a newer version is not guessed at."""
    (tmp_path / "cluster.json").write_text('{"version": 2}', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="newer version"):
        load_layout(tmp_path)


def test_written_configuration_is_valid(tmp_path: Path) -> None:
    """The file of each bookie loads, and holds what was asked for on top."""
    directory = tmp_path / 'with "quotes" and ü'
    make_directory(directory)
    _, members = prepared(directory, bookies=1, settings={"storage": {"read_threads": 2}})
    settings = load_settings(directory / "bookie-1" / "bookie.toml", environment={})
    assert settings.bookie.id == "bookie-1"
    assert settings.listen.port == members[0][1]
    assert settings.storage.journal_dir == directory / "bookie-1" / "journal"
    assert settings.storage.read_threads == 2


def test_second_supervisor_is_refused(tmp_path: Path) -> None:
    """Two supervisors on one directory: the second is told in one sentence."""
    with (
        locked(tmp_path),
        pytest.raises(DirectoryLockedError, match="another cluster runs in"),
        locked(tmp_path),
    ):
        pytest.fail("locked twice")
    with locked(tmp_path):
        pass


def test_free_ports_are_different() -> None:
    """As many ports as asked for, none twice."""
    assert len(set(free_ports(20))) == 20


def test_children_do_not_inherit_settings() -> None:
    """A shell that points at another cluster does not move our bookies there."""
    inherited = child_environment(
        {
            "PATH": "/bin",
            "BOOKIE_METADATA": "zk://elsewhere",
            "BOOKIE_LISTEN__PORT": "1",
            "BOOKIE_DEBUG": "1",
        }
    )
    assert inherited == {"PATH": "/bin", "BOOKIE_DEBUG": "1"}
