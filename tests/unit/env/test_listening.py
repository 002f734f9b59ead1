"""The sockets of a server that listens on each address of a host."""

from __future__ import annotations

import socket

import pytest

from bookie.env.listening import bind_all


async def test_all_addresses_of_a_host_have_one_port() -> None:
    """Clients find one port in the registration, and the bounds of connections watch it."""
    bound = await bind_all("", 0)
    try:
        assert {one.family for one in bound} == {socket.AF_INET, socket.AF_INET6}
        assert len({one.getsockname()[1] for one in bound}) == 1
    finally:
        for one in bound:
            one.close()


async def test_a_port_that_is_taken_at_one_address_is_taken_at_all() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        await bind_all("", int(taken.getsockname()[1]))
