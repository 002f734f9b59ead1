"""The servers that other tests rely on: they start, die, come back with their data."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

from tests.servers.etcd import EtcdCluster, EtcdMember, EtcdServer


def _health(endpoint: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{endpoint}/health", timeout=60) as answer:
            return str(json.load(answer)["health"])
    except urllib.error.HTTPError as error:
        return str(json.load(error)["health"])


async def _becomes_healthy(member: EtcdMember) -> None:
    """A member has no health while a leader is elected."""
    async with asyncio.timeout(60):
        healthy = False
        while not healthy:
            healthy = await asyncio.to_thread(_health, member.endpoint) == "true"


def test_a_single_server_answers(etcd_server: EtcdServer) -> None:
    assert _health(etcd_server.member.endpoint) == "true"


def test_a_scope_is_given_once(etcd_server: EtcdServer) -> None:
    assert etcd_server.uri() != etcd_server.uri()
    assert etcd_server.uri("/mine").endswith("/mine")


async def test_a_cluster_lives_through_the_death_of_a_member(etcd_cluster: EtcdCluster) -> None:
    first, second, third = etcd_cluster.members.values()
    for member in (first, second, third):
        await _becomes_healthy(member)
    first.kill()
    await _becomes_healthy(second)
    await first.restart()
    third.kill()
    await _becomes_healthy(first)
