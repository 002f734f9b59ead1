"""The addresses that a bookie advertises, from those on which it listens."""

from __future__ import annotations

import socket

import pytest

from bookie.config import load_settings
from bookie.daemon.daemon import endpoints_of, offers_frames

EVERY = "0.0.0.0"
NAME = socket.gethostname()


@pytest.mark.parametrize(
    ("listen", "http", "advertised", "found"),
    [
        ("127.0.0.1", "127.0.0.1", "", ("127.0.0.1", "127.0.0.1")),
        ("::1", "::1", "", ("::1", "::1")),
        ("h1", "127.0.0.1", "", ("h1", "127.0.0.1")),
        # As in a container: by the machine's name.
        (EVERY, EVERY, "", (NAME, NAME)),
        ("::", "::", "", (NAME, NAME)),
        ("0::0", "::", "", (NAME, NAME)),
        (EVERY, EVERY, "b1.example", ("b1.example", "b1.example")),
        (EVERY, "127.0.0.1", "b1.example", ("b1.example", "127.0.0.1")),
        ("10.0.0.1", EVERY, "", ("10.0.0.1", "10.0.0.1")),
        ("10.0.0.1", "::", "", ("10.0.0.1", "10.0.0.1")),
        # HTTP that takes IPv4 alone is not found at the IPv6 address of gRPC.
        ("fd00::1", EVERY, "", ("fd00::1", NAME)),
        ("fd00::1", "::", "", ("fd00::1", "fd00::1")),
    ],
)
def test_a_wildcard_is_found_by_an_address_that_leads_there(
    listen: str, http: str, advertised: str, found: tuple[str, str]
) -> None:
    settings = load_settings(
        overrides={"listen.host": listen, "http.host": http, "listen.advertised_host": advertised},
        environment={},
    )
    endpoints = endpoints_of(settings, 1, 2)
    assert [(one.name, one.port) for one in endpoints] == [("bookie", 1), ("http", 2)]
    assert tuple(one.host for one in endpoints) == found


@pytest.mark.parametrize(
    ("set_to", "is_offered"),
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"frames": "false"}, False),
        ({"frames": "false", "frames_port": "3182"}, False),
        # A firewall must know the port, and nobody can map a port that is not known before.
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "frames_port": "3182"}, True),
        ({"advertised_host": "b1.example"}, False),
        ({"advertised_port": "4181"}, False),
        ({"advertised_port": "4181", "advertised_frames_port": "4182"}, False),
        ({"advertised_port": "4181", "frames_port": "3182"}, True),
    ],
)
def test_frames_are_offered_where_clients_can_reach_them(
    set_to: dict[str, str], *, is_offered: bool
) -> None:
    overrides = {f"listen.{name}": value for name, value in set_to.items()}
    settings = load_settings(overrides=overrides, environment={})
    assert offers_frames(settings) == is_offered


@pytest.mark.parametrize(
    ("port", "advertised", "named"), [(0, 0, []), (3182, 0, [3182]), (3182, 4182, [4182])]
)
def test_frames_are_named_by_the_port_that_leads_there(
    port: int, advertised: int, named: list[int]
) -> None:
    """Containers may all have the same port inside; outside each needs its own."""
    settings = load_settings(
        overrides={
            "listen.frames_port": str(port),
            "listen.advertised_frames_port": str(advertised),
        },
        environment={},
    )
    found = endpoints_of(settings, 1, 2, frames_port=port)
    assert [one.port for one in found if one.name == "frames"] == named
