"""Runs on a real server whose clients have a store with a bug: it is found out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bookie.errors import BadVersionError
from bookie.metadata.model import Change, Operation, Put, Resync, Stat
from bookie.metadata.store import MetadataStore
from bookie.metadata.zookeeper.backend import ZooKeeperStore
from tests.conformance.faulty_store import FaultyStore
from tests.histories.checker import check
from tests.histories.ensembles import Fault, Servers
from tests.histories.faulted_run import ClientFault, Manner, record_under_faults
from tests.histories.workload import FENCE, REGISTERS
from tests.servers.zookeeper import ZooKeeperServer, expire_session, new_scope


class OneServer(Servers):
    """A ZooKeeper server alone, which nothing befalls."""

    reads_are_current = False
    splits_commits = True
    silence_seconds = 0.0

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._scope = new_scope()

    @property
    def ports(self) -> list[int]:
        return [self._server.port]

    def uri(self, ports: Sequence[int]) -> str:
        return f"zk://127.0.0.1:{ports[0]}{self._scope}"

    async def strike(self, fault: Fault) -> None:
        raise NotImplementedError

    async def heal(self) -> None:
        pass

    def session_of(self, store: MetadataStore) -> int:
        assert isinstance(store, ZooKeeperStore)
        return store.credentials[0]

    async def expire(self, store: MetadataStore, by: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        await asyncio.to_thread(expire_session, self._server.address, *store.credentials)


class SilentGaps(FaultyStore):
    """A watch that missed changes does not say so."""

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        async with super().watch(prefix) as changes:
            yield (change async for change in changes if not isinstance(change, Resync))


class ImmortalLeases(FaultyStore):
    """Leased records outlive their owner."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        return await super().transaction(
            [replace(o, ephemeral=False) if isinstance(o, Put) else o for o in operations]
        )


class GuessedOutcomes(FaultyStore):
    """Now and then, what was done after all is called a conflict."""

    writes = 0
    """To registers."""

    async def transaction(self, operations: Sequence[Operation]) -> list[Stat | None]:
        answer = await super().transaction(operations)
        is_register = operations[0].key.startswith(f"{REGISTERS}/") and operations[0].key != FENCE
        self.writes += is_register
        if is_register and self.writes % 3 == 0:
            raise BadVersionError("the reply was lost, and now another version is there")
        return answer


MANNER = Manner(session_seconds=1.5, margin_seconds=20.0)


@pytest.mark.parametrize(
    ("kind", "faults", "rules"),
    [
        (SilentGaps, [ClientFault.ABSENCE], {"M8"}),
        (GuessedOutcomes, [ClientFault.SILENCE], {"M1", "M4"}),
    ],
)
async def test_a_bug_is_found(
    zookeeper_server: ZooKeeperServer,
    kind: type[FaultyStore],
    faults: list[ClientFault],
    rules: set[str],
) -> None:
    history, _ = await record_under_faults(
        OneServer(zookeeper_server), 1, [], faults, replace(MANNER, kind=kind)
    )
    assert {offence.partition(":")[0] for offence in check(history)} & rules


async def test_a_lease_that_outlives_its_owner_is_found(zookeeper_server: ZooKeeperServer) -> None:
    manner = replace(MANNER, kind=ImmortalLeases, margin_seconds=2.0)
    with pytest.raises(ExceptionGroup) as raised:
        await record_under_faults(OneServer(zookeeper_server), 1, [], [ClientFault.EXPIRY], manner)
    assert raised.group_contains(AssertionError, match=r"still: \['/marks/")
