"""Roles at bookies that are processes: who may do what, live, and never by mistake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bookie.api import BookKeeper
from bookie.cluster.instance import read_instance_id
from bookie.cluster.role_grants import RoleGrants
from bookie.env import SystemClock
from bookie.errors import NotPermittedError
from bookie.log.catalog.namespaces import NamespaceManager
from bookie.metadata.connect import open_store
from bookie.security import authority
from bookie.security.authority import settings_for
from bookie.security.grants import Grant, GrantScope
from bookie.security.rights import Role
from bookie.security.token_keys import create_key, make_token
from tests.fault.daemon_cluster import BOOKIES
from tests.fault.secure_cluster import SecureCluster, secure_cluster
from tests.fault.test_tls import command

FOLLOWED_SECONDS_MAX = 60.0
"""A bookie follows a change within a second, on an idle machine."""


@asynccontextmanager
async def roles(cluster: SecureCluster) -> AsyncIterator[RoleGrants]:
    async with open_store(cluster.uri) as store:
        yield RoleGrants(store)


def named(cluster: SecureCluster, name: str, **options: Any) -> BookKeeper:
    """A client with a certificate of its own."""
    if not authority.certificate_path(cluster.authority, name).exists():
        authority.issue(cluster.authority, name)
    return cluster.connect(name, **options)


@pytest.mark.timeout(300)
async def test_roles_decide_what_a_client_may_do(tmp_path: Path) -> None:
    """Each role does its own, and no more; a role that comes and goes counts at once."""
    async with secure_cluster(tmp_path) as cluster, roles(cluster) as grants:
        for name in BOOKIES:
            await cluster.start(name)
        await grants.grant(Grant("shop-*", Role.WRITER))
        await grants.grant(Grant("reports", Role.READER))
        async with (
            named(cluster, "shop-1") as shop,
            named(cluster, "reports") as reports,
            named(cluster, "stranger") as stranger,
        ):
            writer = await until_permitted(shop)
            await writer.append(b"a")
            reader = await reports.open_ledger(writer.ledger_id)
            assert [one.payload async for one in reader.read(0, 0)] == [b"a"]
            with pytest.raises(NotPermittedError, match="stranger lacks the role reader"):
                await stranger.open_ledger(writer.ledger_id)
            with pytest.raises(NotPermittedError, match="reports lacks the role recoverer"):
                await reports.open_ledger(writer.ledger_id, recover=True)
            with pytest.raises(NotPermittedError, match="reports lacks the role writer"):
                await (await reports.create_ledger()).append(b"x")
            # What was refused has changed nothing: the writer still writes.
            await writer.append(b"b")
            await grants.grant(Grant("reports", Role.RECOVERER, GrantScope(writer.ledger_id)))
            await until_recovered(reports, writer.ledger_id)
            reader = await reports.open_ledger(writer.ledger_id)
            assert [one.payload async for one in reader.read(0, 1)] == [b"a", b"b"]
            other = await shop.create_ledger()
            await other.append(b"x")
            await grants.revoke("shop-*", None, None)
            with pytest.raises(NotPermittedError, match="shop-1 lacks the role writer"):
                await append_for_ever(other)


async def until_permitted(client: BookKeeper) -> Any:
    """A writer of a new ledger, once all bookies have followed the grant."""
    async with asyncio.timeout(FOLLOWED_SECONDS_MAX):
        while True:
            try:
                writer = await client.create_ledger()
                await writer.append(b"first")
                return await client.create_ledger()
            except NotPermittedError:
                await asyncio.sleep(0.1)


async def append_for_ever(writer: Any) -> None:
    async with asyncio.timeout(FOLLOWED_SECONDS_MAX):
        while True:
            await writer.append(b"y")


async def until_recovered(client: BookKeeper, ledger_id: int) -> None:
    async with asyncio.timeout(FOLLOWED_SECONDS_MAX):
        while True:
            try:
                await client.open_ledger(ledger_id, recover=True)
                return
            except NotPermittedError:
                await asyncio.sleep(0.1)


@pytest.mark.timeout(300)
async def test_a_role_for_some_logs(tmp_path: Path) -> None:
    """An owner of some logs owns these, and nothing else, and a ledger without a log neither."""
    async with secure_cluster(tmp_path) as cluster, roles(cluster) as grants:
        for name in BOOKIES:
            await cluster.start(name)
        async with cluster.connect() as admin:
            async with open_store(cluster.uri) as store:
                for namespace in ("shop", "bank"):
                    await NamespaceManager(store).create(namespace)
            for log in ("shop/orders", "shop/bills", "bank/accounts"):
                await admin.create_log(log)
        for role in (Role.WRITER, Role.RECOVERER):
            await grants.grant(Grant("owner", role, GrantScope(log="shop/*")))
        async with named(cluster, "owner") as owner:
            async with asyncio.timeout(FOLLOWED_SECONDS_MAX):
                while True:
                    try:
                        async with owner.open_log("shop/orders") as owned:
                            await owned.append(b"one")
                        break
                    except NotPermittedError:
                        await asyncio.sleep(0.1)
            async with owner.open_log("shop/orders") as owned:  # again: a takeover fences
                await owned.append(b"two")
            found = [one.value async for one in owner.read_log("shop/orders")]
            assert found == [b"one", b"two"]
            with pytest.raises(NotPermittedError, match="owner lacks the role"):
                async with owner.open_log("bank/accounts") as owned:
                    await owned.append(b"x")
            ledger = await owner.create_ledger()
            with pytest.raises(NotPermittedError, match="owner lacks the role writer"):
                await ledger.append(b"x")


async def test_an_admin_from_anywhere_and_nobody_else(tmp_path: Path) -> None:
    """Commands that change a bookie need an admin; each change and refusal is in the log."""
    async with secure_cluster(tmp_path) as cluster:
        daemon = await cluster.start("b1")
        authority.issue(cluster.authority, "guest")
        guest = {
            f"BOOKIE_SECURITY__{key.upper()}": path
            for key, path in settings_for(cluster.authority, "guest").items()
        }
        status, out, said = await command(cluster, "node", "readonly", "b1", "on", **guest)
        assert (status, "guest lacks the role admin" in said) == (1, True), said
        async with roles(cluster) as grants:
            await grants.grant(Grant("guest", Role.READER))
        async with asyncio.timeout(FOLLOWED_SECONDS_MAX):
            while status:
                info = ("node", "info", "b1", "-o", "json")
                status, out, said = await command(cluster, *info, **guest)
        assert json.loads(out)["read_only"] is False
        status, _, said = await command(cluster, "node", "readonly", "b1", "on", **guest)
        assert (status, "guest lacks the role admin" in said) == (1, True), said
        status, _, said = await command(cluster, "node", "readonly", "b1", "on")
        assert status == 0, said
        await daemon.until("audit_did")
        did = json.loads(daemon.lines[-1])
        assert (did["who"], did["what"]) == ("client", "PUT /read-only read_only=true")


@pytest.mark.timeout(300)
async def test_a_token_says_who_it_is(tmp_path: Path) -> None:
    """A token counts for its life and its cluster; streams that outlive it go on with the next."""
    async with secure_cluster(tmp_path) as cluster, roles(cluster) as grants:
        home = tmp_path / "tokens"
        create_key(home)
        keys = {"token_keys_file": str(home / "token-keys.json")}
        for name in BOOKIES:
            await cluster.start(name, settings_for(cluster.authority, "bookie") | keys)
        async with open_store(cluster.uri) as store:
            audience = await read_instance_id(store)
        for role in (Role.WRITER, Role.RECOVERER):
            await grants.grant(Grant("shop", role))
        file = tmp_path / "token"

        def write(subject: str = "shop", seconds: int = 900, audience: str = audience) -> None:
            now = SystemClock().now_ms() / 1000
            file.write_text(make_token(home, subject, audience, seconds=seconds, now_seconds=now))

        # The certificate is an admin's. The token counts more.
        write("stranger")
        async with cluster.connect(token_file=str(file)) as client:
            ledger = await client.create_ledger()
            with pytest.raises(NotPermittedError, match="stranger lacks the role writer"):
                await ledger.append(b"x")
        write(audience="another")
        async with cluster.connect(token_file=str(file)) as client:
            ledger = await client.create_ledger()
            with pytest.raises(NotPermittedError, match="token"):
                await ledger.append(b"x")
        write(seconds=20)
        async with cluster.connect(token_file=str(file)) as client:
            writer = await until_permitted(client)
            for number in range(60):
                if number == 20:
                    write(seconds=900)
                await writer.append(b"%d" % number)
                await asyncio.sleep(1.0)
            reader = await client.open_ledger(writer.ledger_id, recover=True)
            assert reader.last_entry_id == 59
