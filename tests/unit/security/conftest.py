"""Certificates for tests, made once: nothing changes them but `renewable`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bookie.security import authority


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA with the certificates of a bookie on loopback, of another host, and of a client."""
    home = tmp_path_factory.mktemp("certificates") / "ca"
    authority.create_authority(home)
    authority.issue(home, "bookie", ["127.0.0.1", "localhost"])
    authority.issue(home, "elsewhere", ["elsewhere.example"])
    authority.issue(home, "client")
    return home


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same names, of a CA that nobody trusts."""
    home = tmp_path_factory.mktemp("strangers") / "ca"
    authority.create_authority(home)
    authority.issue(home, "bookie", ["127.0.0.1", "localhost"])
    authority.issue(home, "client")
    return home


@pytest.fixture
def renewable(certificates: Path, tmp_path: Path) -> Path:
    """A copy of the certificates that a test may change."""
    return Path(shutil.copytree(certificates, tmp_path / "renewable"))
