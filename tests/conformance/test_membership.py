"""Groups and services: who is a member, who is found, and who took the name."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie.coordination.discovery import Discovery
from bookie.coordination.membership import Group, GroupView
from bookie.coordination.participant import Participant
from bookie.coordination.service_instance import ServiceInstance
from bookie.errors import (
    BadRequestError,
    BookieError,
    LockBusyError,
    MetadataClosedError,
    MetadataUnavailableError,
)
from bookie.metadata.model import Record
from tests.conformance.backends import Backend
from tests.conformance.clients import Client, NewClient
from tests.conformance.waiting import settle, until, until_found


async def shows(view: GroupView, members: dict[str, bytes]) -> None:
    """Wait until the view shows exactly these."""
    async with asyncio.timeout(60):
        while view.members != members:
            await view.wait_for_change()


async def test_members_come_change_and_go(new_client: NewClient) -> None:
    first, second = await new_client(), await new_client()
    group = Group(first.participant, "/group")
    async with Group(second.participant, "/group").view() as view:
        assert view.members == {}
        async with group.join("a", b"1") as member:
            assert member.is_member
            await shows(view, {"a": b"1"})
            await member.update(b"2")
            await shows(view, {"a": b"2"})
            async with Group(second.participant, "/group").join("b"):
                await shows(view, {"a": b"2", "b": b""})
                await first.session.sync()
                assert await group.members() == {"a": b"2", "b": b""}
        await shows(view, {})
    await first.session.sync()
    assert await group.members() == {}


async def test_a_member_comes_back_after_its_session_and_after_a_deletion(
    backend: Backend, new_client: NewClient
) -> None:
    client, observer = await new_client(session_timeout_seconds=3.0), await new_client()
    async with (
        Group(observer.participant, "/group").view() as view,
        Group(client.participant, "/group").join("a", b"1") as member,
    ):
        await shows(view, {"a": b"1"})
        await observer.session.delete(member.key)
        await until(lambda: client.store.counts["transaction"] == 2)
        await shows(view, {"a": b"1"})
        await backend.expire(client.session)
        await until(lambda: client.store.counts["transaction"] >= 3)
        await until(lambda: member.is_member)
        await shows(view, {"a": b"1"})


async def test_a_name_is_waited_for_and_then_taken(new_client: NewClient) -> None:
    """An earlier life of the same process goes, or a stranger stays."""
    first, second = await new_client(), await new_client(session_timeout_seconds=1.0)
    async with Group(first.participant, "/group").join("a", b"1"):
        await second.session.sync()
        with pytest.raises(LockBusyError, match="another process has the record /group/a"):
            await Group(second.participant, "/group").join("a", b"2").__aenter__()
    async with asyncio.TaskGroup() as tasks:
        member = Group(first.participant, "/group").join("a", b"1")
        await member.__aenter__()
        waiting = tasks.create_task(Group(second.participant, "/group").join("a").__aenter__())
        await until(lambda: second.store.counts["get"] >= 2)
        await member.__aexit__(None, None, None)
        await (await waiting).__aexit__(None, None, None)


async def test_a_slow_store_is_no_stranger(client: Client) -> None:
    client.store.session_timeout_seconds = 0.02
    client.store.latency_seconds = 0.05
    async with Group(client.participant, "/group").join("a", b"1") as member:
        assert member.is_member


async def test_a_store_that_falls_silent_says_nothing_of_strangers(new_client: NewClient) -> None:
    first, second = await new_client(), await new_client()
    async with Group(first.participant, "/group").join("a", b"1"):
        await second.session.sync()
        second.store.session_timeout_seconds = 0.2
        async with asyncio.TaskGroup() as tasks:
            entering = tasks.create_task(_entered(second, "/group", "a"))
            await until(lambda: second.store.counts["get"] >= 1)
            second.store.is_down = True
        assert isinstance(entering.result(), MetadataUnavailableError)


async def _entered(client: Client, path: str, name: str) -> BookieError | None:
    try:
        await Group(client.participant, path).join(name).__aenter__()
    except BookieError as error:
        return error
    return None


async def test_a_member_leaves_although_the_store_is_away(new_client: NewClient) -> None:
    client, observer = await new_client(), await new_client()
    member = Group(client.participant, "/group").join("a")
    async with member:
        client.store.is_down = True
    assert not member.is_member
    await observer.session.sync()
    assert await observer.session.get_children("/group") == ["a"]
    client.store.is_down = False
    await until_found(lambda: _has_no_members(observer))
    with pytest.raises(MetadataClosedError):
        await member.update(b"late")


async def test_a_member_that_leaves_while_it_is_written_is_gone(client: Client) -> None:
    """Also when the one who leaves is cancelled in the middle of it."""
    member = Group(client.participant, "/group").join("a")
    await member.__aenter__()
    client.store.hold_writes.clear()
    await client.session.delete(member.key)
    await until(lambda: client.store.counts["transaction"] == 2)
    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(member.__aexit__(None, None, None))
        await settle()
        leaving.cancel()
    client.store.hold_writes.set()
    await until(lambda: client.store.counts["transaction"] == 3)
    await until_found(lambda: _has_no_members(client))


async def test_a_member_that_did_not_get_in_does_not_come_in_late(client: Client) -> None:
    """Its write was not answered, and happens after it gave up."""
    client.store.lost_requests = 1
    with pytest.raises(MetadataUnavailableError):
        await Group(client.participant, "/group").join("a").__aenter__()
    await settle()
    await client.session.transaction(client.store.lost[0])
    await until_found(lambda: _has_no_members(client))


async def _has_no_members(client: Client) -> bool:
    await client.session.sync()
    return not await client.session.get_children("/group")


async def test_members_end_with_their_participant(backend: Backend, client: Client) -> None:
    async with backend.session() as session, Participant(session) as participant:
        await Group(participant, "/group").join("a").__aenter__()
        await client.session.sync()
        assert await Group(client.participant, "/group").members() == {"a": b""}
    await client.session.sync()
    assert await Group(client.participant, "/group").members() == {}


async def test_services_are_found_by_name(new_client: NewClient) -> None:
    first, second = await new_client(), await new_client()
    here, there = Discovery(first.participant), Discovery(second.participant)
    instance = ServiceInstance("10.0.0.1", 3181, "grpc", {"zone": "a"})
    assert await there.services() == []
    async with (
        there.view("auditor") as view,
        here.announce("auditor", "one", instance),
    ):
        await second.session.sync()
        assert await there.services() == ["auditor"]
        assert await there.lookup("auditor") == {"one": instance}
        assert await there.lookup("other") == {}
        async with asyncio.timeout(60):
            while view.instances != {"one": instance}:
                await view.wait_for_change()
        # What a newer version announces does not hide the others.
        await second.session.put("/services/auditor/two", b"{}")
        assert await there.lookup("auditor") == {"one": instance}
    with pytest.raises(BadRequestError):
        here.announce("auditor", "one", ServiceInstance("10.0.0.1", 0))


async def test_a_member_that_did_not_get_in_goes_also_on_a_late_server(
    client: Client, new_client: NewClient
) -> None:
    """Its record was written and not answered; the server that is asked does not have it yet."""
    observer = await new_client()
    await client.store.fall_behind()
    client.store.lost_replies = 1
    with pytest.raises(MetadataUnavailableError):
        await Group(client.participant, "/group").join("a").__aenter__()

    async def is_gone() -> bool:
        await observer.session.sync()
        return await Group(observer.participant, "/group").members() == {}

    await until_found(is_gone)


async def test_a_record_of_the_session_before_is_taken_over(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still there when the member looks, and goes with that session a moment later."""
    async with Group(client.participant, "/group").join("a", b"1") as member:
        get, writes = client.store.get, client.store.counts["transaction"]

        async def get_as_another_session(key: str) -> Record | None:
            record = await get(key)
            return record and replace(record, stat=replace(record.stat, created_by_self=False))

        monkeypatch.setattr(client.store, "get", get_as_another_session)
        await member.update(b"1")
        assert client.store.counts["transaction"] == writes + 1
        monkeypatch.undo()
        record = await client.session.get(member.key)
        assert record is not None
        assert record.created_by_self
