"""A client takes the address that its settings permit, and never plaintext by itself."""

from __future__ import annotations

import pytest

from bookie.cluster.endpoints import endpoint_for, entries_endpoint, speaks_tls
from bookie.cluster.registration_record import (
    Endpoint,
    Registration,
    decode_registration,
    encode_registration,
)
from bookie.config import SecuritySettings, Transport
from bookie.errors import BookieUnreachableError, TlsError

PLAIN = Endpoint("bookie", "h", 1, "grpc")
TLS = Endpoint("bookie", "h", 2, "grpcs")
HTTPS = Endpoint("http", "h", 3, "https")

WITHOUT = SecuritySettings()
WITH = SecuritySettings(ca_file="ca.pem")
CHANGING = SecuritySettings(ca_file="ca.pem", allow_plaintext=True)


@pytest.mark.parametrize(
    ("offered", "settings", "taken"),
    [
        ((PLAIN,), WITHOUT, PLAIN),
        ((PLAIN, TLS), WITHOUT, PLAIN),
        ((TLS,), WITH, TLS),
        ((PLAIN, TLS), WITH, TLS),
        ((PLAIN, TLS), CHANGING, TLS),
        ((PLAIN,), CHANGING, PLAIN),
        ((TLS,), CHANGING, TLS),
    ],
)
def test_taken(offered: tuple[Endpoint, ...], settings: SecuritySettings, taken: Endpoint) -> None:
    registration = decode_registration(encode_registration(Registration("b1", (*offered, HTTPS))))
    assert endpoint_for(registration, "bookie", settings) == taken


@pytest.mark.parametrize(
    ("offered", "settings", "sentence"),
    [
        ((TLS,), WITHOUT, "bookie b1 speaks only TLS: set security.ca_file"),
        ((PLAIN,), WITH, "bookie b1 does not speak TLS, and this client must not use plaintext"),
    ],
)
def test_refused(offered: tuple[Endpoint, ...], settings: SecuritySettings, sentence: str) -> None:
    with pytest.raises(TlsError, match=sentence):
        endpoint_for(Registration("b1", offered), "bookie", settings)


def test_a_service_that_is_not_offered() -> None:
    with pytest.raises(BookieUnreachableError, match="bookie b1 names no address for http"):
        endpoint_for(Registration("b1", (TLS,)), "http", WITH)


def test_an_earlier_client_takes_the_first_of_a_name() -> None:
    """Beside TLS, plaintext comes first in a registration."""
    assert Registration("b1", (PLAIN, TLS)).endpoint("bookie") is PLAIN
    assert [speaks_tls(one) for one in (PLAIN, TLS, HTTPS)] == [False, True, True]
    assert [speaks_tls(one) for one in (FRAMED, FRAMED_TLS)] == [False, True]


FRAMED = Endpoint("frames", "h", 4, "frames")
FRAMED_TLS = Endpoint("frames", "h", 5, "frames+tls")


@pytest.mark.parametrize(
    ("offered", "settings", "transport", "taken"),
    [
        ((PLAIN, FRAMED), WITHOUT, "auto", FRAMED),
        ((PLAIN, FRAMED), WITHOUT, "frames", FRAMED),
        ((PLAIN, FRAMED), WITHOUT, "grpc", PLAIN),
        ((PLAIN,), WITHOUT, "auto", PLAIN),
        ((TLS, FRAMED_TLS), WITH, "auto", FRAMED_TLS),
        ((TLS, FRAMED), CHANGING, "auto", TLS),
        ((PLAIN, TLS, FRAMED_TLS), WITHOUT, "auto", PLAIN),
        ((PLAIN, TLS, FRAMED_TLS), CHANGING, "auto", FRAMED_TLS),
    ],
)
def test_frames_are_taken_where_they_are_as_safe(
    offered: tuple[Endpoint, ...],
    settings: SecuritySettings,
    transport: Transport,
    taken: Endpoint,
) -> None:
    """Nobody gives up TLS for speed."""
    registration = decode_registration(encode_registration(Registration("b1", (*offered, HTTPS))))
    assert entries_endpoint(registration, settings, transport) == taken


def test_a_client_that_wants_only_frames_is_told_that_there_are_none() -> None:
    with pytest.raises(BookieUnreachableError, match="bookie b1 names no address for frames"):
        entries_endpoint(Registration("b1", (PLAIN,)), WITHOUT, "frames")


def test_an_earlier_client_never_takes_an_address_for_frames() -> None:
    """It looks for the service "bookie" alone."""
    registration = Registration("b1", (PLAIN, HTTPS, FRAMED))
    assert endpoint_for(registration, "bookie", WITHOUT) == PLAIN
    assert registration.endpoint("bookie") == PLAIN
