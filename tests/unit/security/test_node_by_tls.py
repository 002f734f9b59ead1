"""``bookie node`` on a bookie whose HTTP server speaks TLS on loopback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bookie.cli import node
from bookie.cli.node import tls_name_for
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.errors import BookieError, BookieUnreachableError, RequestError, TlsError
from bookie.security import PemFiles, authority
from tests.unit.security.test_grpc_tls import settings
from tests.unit.security.test_http_tls import serve

PLAIN = Endpoint("bookie", "plain.example", 3180, "grpc")
TLS = Endpoint("bookie", "b1.example", 3181, "grpcs")
HTTP = Endpoint("http", "127.0.0.1", 8080, "https")


@pytest.mark.parametrize(
    ("http", "others", "name"),
    [
        (HTTP, (PLAIN, TLS), "b1.example"),
        (HTTP, (PLAIN,), None),
        (Endpoint("http", "10.0.0.1", 8080, "https"), (TLS,), None),
        (Endpoint("http", "127.0.0.1", 8080, "http"), (PLAIN, TLS), None),
    ],
)
def test_the_name_to_verify(http: Endpoint, others: tuple[Endpoint, ...], name: str | None) -> None:
    assert tls_name_for(Registration("b1", (*others, http)), http) == name


@pytest.fixture
def client(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in authority.variables_for(certificates, "client").items():
        monkeypatch.setenv(name, value)


async def ask(monkeypatch: pytest.MonkeyPatch, port: int, name: str | None) -> BookieError:
    """Return how a command fails on the bookie at `port`, verified as `name`."""

    async def address(*_: object) -> tuple[Endpoint, str, str | None]:
        return Endpoint("http", "127.0.0.1", port, "https"), "an instance", name

    monkeypatch.setattr(node, "_http_address", address)
    with pytest.raises(BookieError) as caught:
        await node._ask("memory://any", "b1", "bookie")
    return caught.value


@pytest.mark.usefixtures("client")
async def test_a_certificate_for_the_host_of_the_bookie(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has no bookie behind it, so that its answer is a refusal."""
    async with serve(PemFiles(settings(certificates, "elsewhere"))) as port:
        answered = await ask(monkeypatch, port, "elsewhere.example")
        assert isinstance(answered, RequestError), answered
        for wrong in (None, "b1.example"):
            refused = await ask(monkeypatch, port, wrong)
            assert isinstance(refused, TlsError)
            assert "mismatch" in str(refused)


@pytest.mark.usefixtures("client")
async def test_a_port_that_nobody_listens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and it does not listen
        error = await ask(monkeypatch, taken.getsockname()[1], None)
    assert type(error) is BookieUnreachableError, "TLS is not to blame"
    assert "does not answer" in str(error)
