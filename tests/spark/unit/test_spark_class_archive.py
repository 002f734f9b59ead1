"""The archive of Java's classes that ``bookie spark prepare`` makes, without Java."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest

from bookie.spark import session
from bookie.spark.class_archive import archive_path, reading_options, writing_options
from bookie.spark.session import DRIVER_OPTIONS, LOCAL, local_settings


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in (*session._OTHERS_SETTINGS, "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _made() -> Path:
    path = archive_path()
    path.parent.mkdir(parents=True, mode=0o700)
    path.touch(mode=0o600)
    return path


def test_without_an_archive_nothing_is_said_of_one() -> None:
    assert reading_options() == []
    assert "SharedArchive" not in local_settings()[DRIVER_OPTIONS]


def test_local_sessions_read_an_archive() -> None:
    path = _made()
    assert f"-XX:SharedArchiveFile={path}" in local_settings()[DRIVER_OPTIONS].split()


def test_another_spark_has_another_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    first = archive_path()
    monkeypatch.setattr(pyspark, "__path__", ["/elsewhere/pyspark"])
    assert archive_path() != first


def test_a_spark_of_the_users_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    _made()
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert local_settings() == LOCAL


def test_another_users_file_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java would run what it holds."""
    _made()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert reading_options() == []


def test_what_others_may_write_is_not_run() -> None:
    """The file itself, or the directory in which they could replace it."""
    path = _made()
    for place, others in ((path, 0o620), (path.parent, 0o702)):
        mode = place.stat().st_mode
        place.chmod(others)
        assert reading_options() == []
        place.chmod(mode)
        assert reading_options()


def test_a_path_with_a_space_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    _made()
    assert reading_options() == []


def test_an_archive_is_written_beside(tmp_path: Path) -> None:
    assert f"-XX:ArchiveClassesAtExit={tmp_path}/a" in writing_options(tmp_path / "a")
