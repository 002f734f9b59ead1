"""The servers that other tests rely on: they start, die, come back with their data."""

from __future__ import annotations

import asyncio
import json
import urllib.request

from tests.servers.etcd import EtcdCluster, EtcdServer


def _is_healthy(endpoint: str) -> bool:
    with urllib.request.urlopen(f"http://{endpoint}/health", timeout=10) as answer:
        return bool(json.load(answer)["health"] == "true")


def test_a_single_server_answers(etcd_server: EtcdServer) -> None:
    assert _is_healthy(etcd_server.member.endpoint)


def test_a_scope_is_given_once(etcd_server: EtcdServer) -> None:
    assert etcd_server.uri() != etcd_server.uri()
    assert etcd_server.uri("/mine").endswith("/mine")


async def test_a_cluster_lives_through_the_death_of_a_member(etcd_cluster: EtcdCluster) -> None:
    first, second, third = etcd_cluster.members.values()
    for member in (first, second, third):
        assert await asyncio.to_thread(_is_healthy, member.endpoint)
    first.kill()
    assert await asyncio.to_thread(_is_healthy, second.endpoint)
    await asyncio.to_thread(first.restart)
    third.kill()
    assert await asyncio.to_thread(_is_healthy, first.endpoint)
