"""The sockets of a server that listens on each address of a host."""

from __future__ import annotations

import socket

import pytest

from bookie.env import listening
from bookie.env.listening import ATTEMPTS_MAX, bind_all


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


@pytest.mark.parametrize("taken_times", [1, ATTEMPTS_MAX])
async def test_another_port_is_tried_if_one_is_taken_at_the_second_address(
    monkeypatch: pytest.MonkeyPatch, taken_times: int
) -> None:
    """And nothing stays bound if none is found."""
    bind_each, made, taken = listening._bind_each, list[socket.socket](), 0

    async def bind(host: str, port: int) -> list[socket.socket]:
        nonlocal taken
        if port and taken < taken_times:
            taken += 1
            raise OSError("taken")
        bound = await bind_each(host, port)
        made.extend(bound)
        return bound

    monkeypatch.setattr(listening, "_bind_each", bind)
    if taken_times == ATTEMPTS_MAX:
        with pytest.raises(OSError, match="taken"):
            await bind_all("", 0)
        kept = []
    else:
        kept = await bind_all("", 0)
        assert len({one.getsockname()[1] for one in kept}) == 1
    assert [one for one in made if one.fileno() >= 0] == kept
    for one in kept:
        one.close()
