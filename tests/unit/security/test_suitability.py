"""A bookie's certificate is judged as its peers judge it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.x509 import ObjectIdentifier

from bookie.config import Settings
from bookie.daemon.own_security import registered_host
from bookie.security import PemFiles, authority
from bookie.security.suitability import faults_of
from tests.unit.security.odd_certificates import CLIENT, SERVER, issue_odd
from tests.unit.security.test_grpc_tls import ask, served
from tests.unit.security.test_pem_files import settings

NAMES = ("b1.example", "10.0.0.1", "::1", "2001:db8::a", "*.stars.example")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA with a bookie of many names."""
    made = tmp_path_factory.mktemp("authority")
    authority.create_authority(made)
    authority.issue(made, "b1", NAMES)
    authority.issue(made, "client")
    return made


@pytest.mark.parametrize(
    ("host", "is_named"),
    [
        ("B1.example", True),
        ("b1.example.", False),
        ("b2.example", False),
        ("10.0.0.1", True),
        ("10.0.0.2", False),
        ("0:0:0:0:0:0:0:1", True),
        ("2001:DB8:0::A", True),
        ("2001:db8::b", False),
        ("b7.stars.example", True),
        ("stars.example", False),
        ("a.b7.stars.example", False),
    ],
)
def test_hosts(directory: Path, host: str, is_named: bool) -> None:
    own = Settings.model_validate({"listen": {"advertised_host": host}})
    faults = faults_of(settings(directory), registered_host(own))
    assert set(faults) == (set() if is_named else {"host"})


@pytest.mark.parametrize(
    ("written", "registered"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8:0::A", "2001:db8::a"),
        ("10.0.0.1", "10.0.0.1"),
        ("B1.example", "B1.example"),
    ],
)
def test_an_address_is_registered_in_its_shortest_form(written: str, registered: str) -> None:
    """gRPC refuses every other form, because the certificate's is the shortest."""
    own = Settings.model_validate({"listen": {"advertised_host": written}})
    assert registered_host(own) == registered


@pytest.mark.parametrize("purposes", [[], [SERVER, CLIENT]])
async def test_no_fault(directory: Path, purposes: list[ObjectIdentifier]) -> None:
    """Both ends of gRPC agree."""
    issue_odd(directory, "b3", purposes=purposes)
    assert faults_of(settings(directory, "b3"), "127.0.0.1") == {}
    async with served(PemFiles(settings(directory, "b3"))) as held:
        assert await ask(held.port, settings(directory, "b3"))


def test_all_faults_are_told(directory: Path) -> None:
    issue_odd(directory, "b4", purposes=[SERVER], addresses=["10.0.0.2"])
    assert set(faults_of(settings(directory, "b4"), "10.0.0.1")) == {"host", "client"}
    assert set(faults_of(settings(directory, "b4"))) == {"client"}
