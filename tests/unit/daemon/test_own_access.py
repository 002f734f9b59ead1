"""The roles that a bookie takes from the metadata store, and what its log says of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bookie.cluster import keys
from bookie.cluster.instance import initialize_cluster
from bookie.cluster.role_grants import RoleGrants, encode_grants
from bookie.config import Settings
from bookie.daemon.own_access import GRANTS_TOLD_MAX, OwnAccess
from bookie.env import beside
from bookie.metadata.connect import open_store
from bookie.security.grants import Grant, Grants, GrantScope
from bookie.security.identity import PeerIdentity
from bookie.security.rights import Right, Role
from tests.unit.wire.fake_node import until

SETTINGS = Settings.model_validate(
    {"security": {"certificate_file": "/a", "key_file": "/b", "ca_file": "/c"}}
)


@asynccontextmanager
async def followed(*grants: Grant) -> AsyncIterator[tuple[OwnAccess, RoleGrants]]:
    """A bookie's access that follows the store, with these roles at its start."""
    async with open_store(f"memory://access-{uuid.uuid4()}") as store:
        instance_id = await initialize_cluster(store)
        roles = RoleGrants(store)
        for one in grants:
            await roles.grant(one)
        access = OwnAccess(SETTINGS)
        await access.load(store)
        async with beside([access.follow(store, instance_id)]):
            yield access, roles


def may(access: OwnAccess, name: str) -> bool:
    caller = access.gatekeeper.caller(PeerIdentity(name), "", "")
    return bool(caller.decide(Right.READ, 7))


async def test_the_log_says_who_got_and_who_lost_a_role(caplog: pytest.LogCaptureFixture) -> None:
    """Roles are changed in the store, where nobody notes it: the bookie's log has to."""
    caplog.set_level("INFO")
    async with followed(Grant("ann", Role.READER)) as (access, roles):
        assert may(access, "ann")
        await roles.grant(Grant("eve", Role.READER))
        await until(lambda: may(access, "eve"))
        await roles.revoke("ann", None, None)
        await until(lambda: not may(access, "ann"))
        await roles.grant(Grant("eve", Role.WRITER, GrantScope(log="shop/*")))
        await until(lambda: "eve is writer" in caplog.text)
    lines = [line for record in caplog.records if "roles_" in (line := record.getMessage())]
    assert [line.partition(" grants=")[0] for line in lines] == ["roles_taken"] * len(lines)
    assert "given=['ann is reader for everything'] revoked=[]" in lines[0]
    changes = [line.partition("given=")[2] for line in lines[1:]]
    assert [one for one in changes if one != "[] revoked=[]"] == [
        "['eve is reader for everything'] revoked=[]",
        "[] revoked=['ann is reader for everything']",
        "['eve is writer for log shop/*'] revoked=[]",
    ]


async def test_many_changed_roles_make_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    many = [Grant(f"p{number:03}", Role.READER) for number in range(GRANTS_TOLD_MAX + 5)]
    access = OwnAccess(SETTINGS)
    async with open_store("memory://many-roles") as store:
        await initialize_cluster(store)
        await store.put(keys.ROLES, encode_grants(Grants(many)))
        await access.load(store)
    (line,) = [record.getMessage() for record in caplog.records if "roles_" in record.getMessage()]
    assert line.count(" is reader ") == GRANTS_TOLD_MAX
    assert "'and 5 more'" in line


async def test_a_damaged_record_takes_no_role_away(caplog: pytest.LogCaptureFixture) -> None:
    async with followed(Grant("ann", Role.READER)) as (access, roles):
        await roles._store.put(keys.ROLES, b"{")
        await until(lambda: "metadata_not_understood" in caplog.text)
        await asyncio.sleep(0)
        assert may(access, "ann")
